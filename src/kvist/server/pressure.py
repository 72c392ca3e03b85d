"""How long the work that is inside will take: the tokens still to compute, at the speed of late."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvist.errors import KvistError
from kvist.server.job import Delta

WINDOW_S: Final = 5.0
"""Speed is judged over windows of this length; half of what was known is kept from one to the next."""
FIRST_GUESS_TOKENS: Final = 256
"""Length of an answer while none has ended."""


@dataclass(slots=True)
class _Load:
    prompt_tokens: int
    output_tokens: int
    drawn_tokens: int = 0


class Pressure:
    """Counts tokens in and out. A prompt counts until its first token came, an output token until it was drawn.

    Prompts and outputs run at different speeds; one number for both is coarse, but it follows the mix of the moment,
    and it only has to tell seconds from minutes. Nothing is refused before a speed is known.
    """

    def __init__(self) -> None:
        self._loads: dict[int, _Load] = {}
        self._waiting_tokens = 0
        self._rate = 0.0
        self._done = 0
        self._since: float | None = None
        self._usual_tokens = float(FIRST_GUESS_TOKENS)

    @property
    def wait_s(self) -> float:
        """Seconds of work inside; 0 while no speed is known."""
        return self._waiting_tokens / self._rate if self._rate else 0.0

    @property
    def waiting_tokens(self) -> int:
        """Tokens still to compute; an answer counts as twice the usual length of late, or as what it may use."""
        return self._waiting_tokens

    @property
    def tokens_per_s(self) -> float:
        """Tokens done a second, of late and while there was work."""
        return self._rate

    def enter(self, ticket: int, prompt_tokens: int, output_tokens: int) -> None:
        """A request came in; ``output_tokens`` is the most it may draw."""
        output_tokens = min(output_tokens, round(2 * self._usual_tokens))
        self._loads[ticket] = _Load(prompt_tokens, output_tokens)
        self._waiting_tokens += prompt_tokens + output_tokens

    def note(self, ticket: int, parcel: Delta | KvistError, now_s: float) -> None:
        """Something was done for it."""
        load = self._loads.get(ticket)
        if load is None or isinstance(parcel, KvistError):
            return
        drawn = len(parcel.token_ids)
        load.drawn_tokens += drawn
        step = load.prompt_tokens + min(drawn, load.output_tokens)
        load.prompt_tokens = 0
        load.output_tokens -= min(drawn, load.output_tokens)
        self._waiting_tokens -= step
        self._done += step
        if self._since is None:
            self._since = now_s
        elif now_s - self._since >= WINDOW_S:
            rate = self._done / (now_s - self._since)
            self._rate = rate if not self._rate else (self._rate + rate) / 2
            self._done, self._since = 0, now_s

    def leave(self, ticket: int) -> None:
        """It ended, for whatever reason."""
        load = self._loads.pop(ticket)
        self._waiting_tokens -= load.prompt_tokens + load.output_tokens
        if load.drawn_tokens:
            self._usual_tokens += (load.drawn_tokens - self._usual_tokens) / 16
        if not self._loads:
            self._done, self._since = 0, None

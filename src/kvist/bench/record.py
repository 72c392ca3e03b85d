"""One request: its clock while it runs, and what is kept of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from kvist.bench.wire import Piece

INTERRUPTED: Final = "interrupted"


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server said. ``token_ids`` is None where the server does not tell them."""

    text: str
    token_ids: tuple[int, ...] | None
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Record:
    """Times in seconds; ``sent_s`` and ``due_s`` from the start of the measurement. Counts are the server's ``usage``.

    ``error`` is a kind of failure ("" for none). ``itl_s`` holds every gap between two events that carried tokens.
    ``turn`` counts from 1. ``optimum_tokens``: prompt tokens that were a prefix of something sent or answered before;
    ``knowable_tokens``: of anything that the run sent before this one ended, siblings in flight included. ``alone``: no
    other request of the run was in flight from when it was sent until its first token.
    """

    name: str
    turn: int
    role: str
    due_s: float
    sent_s: float
    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float
    itl_s: tuple[float, ...]
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None
    asked_output_tokens: int
    optimum_tokens: int
    knowable_tokens: int
    alone: bool
    events: int
    usage_reported: bool
    finish_reason: str
    error: str = ""
    message: str = ""

    @property
    def ok(self) -> bool:
        """Whether it was answered to its end."""
        return not self.error

    @property
    def failed(self) -> bool:
        """Whether it went wrong (an interrupted request did not)."""
        return bool(self.error) and self.error != INTERRUPTED

    @property
    def late_s(self) -> float:
        """How long it waited in the load generator itself."""
        return max(0.0, self.sent_s - self.due_s)


@dataclass(slots=True, eq=False)
class Timeline:
    """The clock of a request in flight; times are absolute seconds of one clock."""

    sent_s: float
    first_s: float | None = None
    last_s: float | None = None
    opened_s: float | None = None
    end_s: float | None = None
    gaps_s: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str = ""
    alone: bool = True

    def take(self, piece: Piece, now_s: float) -> None:
        """One event of the stream."""
        if piece.is_choice and self.opened_s is None:
            self.opened_s = now_s
        if piece.carries:
            if self.last_s is None:
                self.first_s = now_s
            else:
                self.gaps_s.append(now_s - self.last_s)
            self.last_s = now_s
            self.texts.append(piece.text)
            self.token_ids.extend(piece.token_ids)
        self.finish_reason = piece.finish_reason or self.finish_reason
        if piece.prompt_tokens is not None:
            self.prompt_tokens = piece.prompt_tokens
        if piece.output_tokens is not None:
            self.output_tokens = piece.output_tokens
        if piece.cached_tokens is not None:
            self.cached_tokens = piece.cached_tokens

    @property
    def events(self) -> int:
        """Events that carried tokens."""
        return len(self.texts)

    @property
    def counted_output_tokens(self) -> int:
        """By usage, else by ids, else one an event."""
        if self.output_tokens is not None:
            return self.output_tokens
        return len(self.token_ids) or self.events

    @property
    def ttft_s(self) -> float | None:
        """Seconds to the first token; an answer of invisible tokens counts from its first event."""
        first_s = self.first_s
        if first_s is None and self.counted_output_tokens:
            first_s = self.opened_s
        return None if first_s is None else first_s - self.sent_s

    @property
    def tpot_s(self) -> float | None:
        """Seconds per token after the first, or None for answers of one event or one token."""
        tokens = self.counted_output_tokens
        if self.first_s is None or self.last_s is None or tokens < 2 or self.events < 2:
            return None
        return (self.last_s - self.first_s) / (tokens - 1)

    def answer(self) -> Answer:
        """What was said, ids where every token's was told."""
        tokens = self.counted_output_tokens
        ids = tuple(self.token_ids) if self.token_ids and len(self.token_ids) == tokens else None
        return Answer("".join(self.texts), ids, tokens)

"""What parsers have in common: text outside calls goes through, text that may be a call is held."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kvist.errors import StateError
from kvist.text.tools.base import ToolCall, ToolDelta

WAIT: Final = None
"""A reader's answer: not to be told yet."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A reader's answer: the first ``chars`` characters are settled. Without calls they are content."""

    chars: int
    calls: tuple[tuple[str, str], ...] = ()


class CallReader:
    """A ``ToolParser`` made of one function that looks at held text.

    ``begin(text, at_start)`` says how many characters from the left are surely content (``at_start``: nothing was
    settled yet, or only calls). What is left is held and given to ``look``, made anew by ``new`` for each candidate:
    ``look(held, ended)`` gives ``Taken``, or None to wait for more text; when the answer has ``ended`` it is content.
    """

    def __init__(
        self, begin: Callable[[str, bool], int], new: Callable[[], Callable[[str, bool], Taken | None]]
    ) -> None:
        self._begin = begin
        self._new = new
        self._look = new()
        self._held = ""
        self._candidate = False
        self._at_start = True
        self._calls = 0
        self._finished = False

    def push(self, text: str) -> list[ToolDelta]:
        """What this text settles."""
        if self._finished:
            raise StateError("the parser has finished", remedy="make a new one for each answer")
        self._held += text
        return self._settle(ended=False)

    def finish(self) -> list[ToolDelta]:
        """What was held back."""
        out = [] if self._finished else self._settle(ended=True)
        self._finished = True
        return out

    def _settle(self, *, ended: bool) -> list[ToolDelta]:
        out: list[ToolDelta] = []
        while self._held:
            if not self._candidate:
                plain = self._begin(self._held, self._at_start)
                self._content(out, plain)
                self._candidate = bool(self._held)
                if not self._candidate:
                    break
            taken = self._look(self._held, ended)
            if taken is WAIT and not ended:
                break
            self._candidate, self._look = False, self._new()
            if taken is not None and taken.calls:
                self._call(out, taken)
            else:
                self._content(out, taken.chars if taken is not None else len(self._held))
        return out

    def _content(self, out: list[ToolDelta], chars: int) -> None:
        if not chars:
            return
        text, self._held = self._held[:chars], self._held[chars:]
        self._at_start = self._at_start and not text.strip()
        if out and out[-1].call is None:
            text = out.pop().content + text
        out.append(ToolDelta(text))

    def _call(self, out: list[ToolDelta], taken: Taken) -> None:
        raw, self._held = self._held[: taken.chars], self._held[taken.chars :]
        for name, arguments in taken.calls:
            out.append(ToolDelta(call=ToolCall(self._calls, name, arguments, raw)))
            self._calls, raw = self._calls + 1, ""


def before_marker(text: str, marker: str) -> int:
    """Characters of ``text`` before ``marker``, or before its end that may grow into one."""
    at = text.find(marker)
    if at >= 0:
        return at
    reach = range(min(len(marker) - 1, len(text)), 0, -1)
    return len(text) - next((n for n in reach if text.endswith(marker[:n])), 0)

"""A log as lines: colours, progress bars and Windows line ends removed, and who wrote each line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

MAX_LINE: Final = 200_000
"""Longer lines are cut: an engine's longest (its configuration) has some thousand characters."""

MAX_LINES: Final = 250_000
"""Lines that are read, from the start: where engines print their memory. More would be minutes of requests served."""

_COLOUR: Final = re.compile(r"\x1b?\[[0-9;]{1,16}m|\x1b\[[0-9;?]{0,16}[A-Za-z]")
_VLLM_WORKER: Final = re.compile(
    r"\((?:Vllm|Ray)?Worker(?:Process|Proc|Wrapper)?(?:_(?P<place>[A-Z]+\d+(?:_[A-Z]+\d+)*))?"
    r"(?: rank=(?P<rank>\d+))?(?: pid=(?P<pid>\d+))?"
)
_VLLM_CORE: Final = re.compile(r"\(EngineCore(?:_(?P<place>[A-Z]+_?\d+))?(?: pid=\d+)?\)")
_SGLANG: Final = re.compile(r"^\W*\[?[\d\-/]+[ T][\d:.,]+(?P<place>(?: (?:DP|PP|TP|EP|CP|ATTN\w*)\d+)+)\]")
_SGLANG_OLD: Final = re.compile(r"\[gpu=(?P<gpu>\d+)\]")
_TENSORRT: Final = re.compile(r"\[RANK (?P<rank>\d+)\]")


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line: its number in the file (from 1), and its text without decoration."""

    number: int
    text: str


def split_lines(text: str) -> list[LogLine]:
    """The first ``MAX_LINES`` lines. What a progress bar overwrote (carriage returns) is text of the same line."""
    return list(islice(_pieces(text), MAX_LINES))


def _pieces(text: str) -> Iterator[LogLine]:
    for number, raw in enumerate(text.split("\n", MAX_LINES)[:MAX_LINES], start=1):
        for piece in raw[: 5 * MAX_LINE].split("\r"):
            if piece.strip():
                cut = piece[:MAX_LINE]
                yield LogLine(number, _COLOUR.sub("", cut) if "[" in cut else cut)


def rank_of(text: str) -> str:
    """Who wrote a line, as the engine names it: ``TP0``, ``PP1 TP0``, ``rank 2``, ``pid 507``; empty when unsaid."""
    if "(" in text:
        if "Worker" in text and (found := _VLLM_WORKER.search(text)):
            place, rank, pid = found.group("place"), found.group("rank"), found.group("pid")
            return place.replace("_", " ") if place else f"rank {rank}" if rank else f"pid {pid}" if pid else ""
        if "EngineCore" in text and (found := _VLLM_CORE.search(text)):
            return (found.group("place") or "").replace("_", " ")
    if "[" in text:
        if found := _SGLANG.match(text):
            return found.group("place").strip()
        if found := _SGLANG_OLD.search(text):
            return f"gpu {found.group('gpu')}"
        if found := _TENSORRT.search(text):
            return f"rank {found.group('rank')}"
    return ""

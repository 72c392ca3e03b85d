"""``cache_control``: where it may stand, and what it changes.

The cache keeps every prompt by itself, whether marked or not, and gives room by use, not by the clock. So a mark
changes only how the usage is told: in a request with marks every prompt token that was not read from the cache counts
as written to it (``cache_creation_input_tokens``, under the longest ``ttl`` asked for); without marks it counts as
plain ``input_tokens``. Either way the three add up to the prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kvist.errors import BadValue
from kvist.server.check import an_object, bad
from kvist.server.live import Bill

MAX_MARKS: Final = 4
_TTL: Final = ("5m", "1h")


class Marks:
    """Counts the marks of one request."""

    def __init__(self) -> None:
        self.count = 0
        self.ttl = "5m"

    def take(self, holder: Mapping[str, Any], where: str) -> None:
        """Look at one place where a mark may stand. Raises ``BadValue``."""
        mark = holder.get("cache_control")
        if mark is None:
            return
        where = f"{where}.cache_control" if where else "cache_control"
        mark = an_object(mark, where)
        if mark.get("type") != "ephemeral":
            raise bad(f"{where}.type", mark.get("type"), "ephemeral")
        ttl = mark.get("ttl") or "5m"
        if ttl not in _TTL:
            raise bad(f"{where}.ttl", ttl, "5m or 1h")
        self.count += 1
        if self.count > MAX_MARKS:
            raise BadValue(where, f"mark number {self.count}", f"at most {MAX_MARKS} marks in a request")
        self.ttl = max(self.ttl, ttl, key=_TTL.index)


def input_usage(marks: Marks, prompt_tokens: int, cached_tokens: int, cache_write_tokens: int) -> dict[str, Any]:
    """How the prompt is told: what was read from the cache, what was written to it, and the rest."""
    written = cache_write_tokens if marks.count else 0
    return {
        "input_tokens": prompt_tokens - cached_tokens - written,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": cached_tokens,
        "cache_creation": {
            "ephemeral_5m_input_tokens": written if marks.ttl == "5m" else 0,
            "ephemeral_1h_input_tokens": written if marks.ttl == "1h" else 0,
        },
    }


def usage_of(marks: Marks, bill: Bill) -> dict[str, Any]:
    """All that an answer cost."""
    told = input_usage(marks, bill.prompt_tokens, bill.cached_tokens, bill.cache_write_tokens)
    return {**told, "output_tokens": bill.completion_tokens, "service_tier": "standard"}

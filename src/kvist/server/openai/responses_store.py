"""Responses that can be asked for again, or continued. In memory, bounded, each tenant's own."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

MOST_RESPONSES: Final = 1000
MOST_CHARS: Final = 64_000_000


@dataclass(frozen=True, slots=True)
class Stored:
    """A response, and the whole conversation with it (without instructions), as chat messages.

    ``chars`` is what it may hold in memory; what it shares with earlier turns counts again.
    """

    response: dict[str, Any]
    messages: tuple[dict[str, Any], ...]
    chars: int


@dataclass(slots=True)
class _Shelf:
    known: OrderedDict[str, Stored]
    chars: int = 0


class Responses:
    """The last used ones of each tenant: at most so many responses and characters. Owner: the router."""

    def __init__(self, most: int = MOST_RESPONSES, most_chars: int = MOST_CHARS) -> None:
        self._most = most
        self._most_chars = most_chars
        self._shelves: dict[str, _Shelf] = {}

    def put(self, tenant: str, stored: Stored) -> None:
        """Keep one; the least recently used go."""
        shelf = self._shelves.setdefault(tenant, _Shelf(OrderedDict()))
        shelf.known[stored.response["id"]] = stored
        shelf.chars += stored.chars
        while len(shelf.known) > self._most or shelf.chars > self._most_chars:
            _, gone = shelf.known.popitem(last=False)
            shelf.chars -= gone.chars

    def find(self, tenant: str, name: str) -> Stored | None:
        """A tenant's own response; it counts as used."""
        shelf = self._shelves.get(tenant)
        if shelf is None or name not in shelf.known:
            return None
        shelf.known.move_to_end(name)
        return shelf.known[name]

    def drop(self, tenant: str, name: str) -> bool:
        """Forget one; False when there was none."""
        shelf = self._shelves.get(tenant)
        gone = shelf.known.pop(name, None) if shelf is not None else None
        if shelf is None or gone is None:
            return False
        shelf.chars -= gone.chars
        return True

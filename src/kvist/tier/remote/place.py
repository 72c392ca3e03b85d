"""What a kind of server has to offer so that ``RemoteTier`` can make a tier of it.

Every call takes ``until``, a time of ``time.monotonic`` at which it gives up with ``TimeoutError``. A call raises
whatever its library raises when the server fails; ``RemoteTier`` turns that into answers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Literal, Protocol

from kvist.ids import RecordId
from kvist.tier.base import Got, Label, Put, Record
from kvist.tier.envelope import Header

Answer = tuple[Got, Label | None]
Seen = Header | Literal["damaged", "foreign"]
"""What lies under a key, as far as its beginning tells."""


class PlaceError(Exception):
    """The server said something that ends the question. Never leaves the room."""


class Place(Protocol):
    """``where`` names the server for people, without secrets. Several threads may ask at once."""

    where: str

    def exists(self, ids: Sequence[RecordId], until: float) -> list[bool]:
        """Whether a value lies under each id."""
        ...

    def get(self, ids: Sequence[RecordId], buffers: Sequence[memoryview], until: float, out: list[Answer]) -> None:
        """Append an answer for each id in turn: after an exception those that were read still count."""
        ...

    def put(self, records: Sequence[Record], until: float, out: list[Put]) -> None:
        """Append an answer for each record in turn."""
        ...

    def touch(self, ids: Sequence[RecordId], until: float) -> None:
        """Tell the server that these were used."""
        ...

    def remove(self, ids: Sequence[RecordId], until: float) -> int:
        """Remove values; how many there were."""
        ...

    def walk(self, patience_s: float) -> Iterator[tuple[RecordId, Seen, int]]:
        """Every id with the beginning of its value and the value's bytes; ``patience_s`` for each answer."""
        ...

    def measure(self, until: float) -> tuple[int, int, int | None]:
        """Records, bytes they take, bytes there is room for (None: no bound known)."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


def left_s(until: float) -> float:
    """Seconds until then. Raises ``TimeoutError`` when there are none."""
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError("no answer in time")
    return left

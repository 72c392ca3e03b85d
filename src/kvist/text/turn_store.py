"""Ids of answers that have ended, by key, within a bound. Any thread may ask."""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final

ENTRY_TOKENS: Final = 64
"""What a key and its books weigh, counted in ids of 4 bytes."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A conversation's ids up to the end of an answer. ``prompt_tokens`` of them came before the answer."""

    ids: array[int]
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Path:
    """One path through a conversation as it was put: whole, and safe to keep. ``serial`` names it while it grows.

    ``entries``: (key, prompt tokens, tokens up to the answer's end), ends ascending. ``ids``: 4 bytes each, native.
    """

    serial: int
    owner: str
    ids: bytes
    entries: tuple[tuple[bytes, int, int], ...]


@dataclass(slots=True, eq=False)
class _Run:
    """One path through a conversation. ``entries``: key -> (prompt tokens, tokens up to the answer's end).

    Ends ascend in the order of ``entries``; the last one is the end of ``ids``.
    """

    serial: int
    owner: str
    ids: array[int]
    entries: dict[bytes, tuple[int, int]] = field(default_factory=dict)

    def copy(self) -> Path:
        """As it is now."""
        entries = tuple((key, split, end) for key, (split, end) in self.entries.items())
        return Path(self.serial, self.owner, self.ids.tobytes(), entries)

    @property
    def weight(self) -> int:
        return len(self.ids) + ENTRY_TOKENS * len(self.entries)


@dataclass(slots=True)
class _Shelf:
    """What one owner holds, last used last."""

    runs: OrderedDict[_Run, None] = field(default_factory=OrderedDict)
    held_tokens: int = 0


class TurnStore:
    """``max_tokens`` bounds ids, with 64 more for each key. When it is full, the owner of the most makes room: his
    least recently used paths go. So each of n owners may hold an n-th part, whatever the others store.

    A conversation that grows is one path: the answers of earlier turns point into the latest turn's ids, so n turns
    cost the ids of the last one, not the sum of all prompts. Where it branches, a new path begins.

    ``on_put`` is called with each path that a put began or lengthened, in order, and must be quick.
    """

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.evicted = 0
        self.on_put: Callable[[Path], None] | None = None
        self._serials = count(1)
        self._shelves: defaultdict[str, _Shelf] = defaultdict(_Shelf)
        self._where: dict[bytes, _Run] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Keys that ``get`` would find."""
        return len(self._where)

    @property
    def held_tokens(self) -> int:
        """Ids, and 64 more for each key."""
        with self._lock:
            return self._held()

    def put(
        self,
        keys: Sequence[bytes],
        earlier: Sequence[bytes],
        prompt: Sequence[int],
        output: Sequence[int],
        owner: str = "",
    ) -> None:
        """Store one answer under each of ``keys``, unless it is larger than the store.

        ``earlier``: keys of the answers before it, first to last. Costs O(prompt and output), however many they are.
        """
        ids = array("i", prompt)
        split = len(ids)
        ids.extend(output)
        if len(ids) + ENTRY_TOKENS * len(keys) > self.max_tokens:
            return
        with self._lock:
            for key in keys:
                self._forget(key)
            run = self._gone_on(earlier, ids) or _Run(next(self._serials), owner, ids)
            run.owner = owner
            for key in keys:
                run.entries[key] = (split, len(ids))
                self._where[key] = run
            self._shelves[owner].runs[run] = None
            self._shelves[owner].held_tokens += run.weight
            while self._held() > self.max_tokens:
                self._evict()
            if self.on_put is not None:
                self.on_put(run.copy())

    def restore(self, owner: str, ids: array[int], entries: Sequence[tuple[bytes, int, int]]) -> int:
        """Take a path that was put in an earlier life, where it fits beside what is held. Returns its serial, or 0."""
        run = _Run(0, owner, ids, {key: (split, end) for key, split, end in entries})
        with self._lock:
            if not entries or self._held() + run.weight > self.max_tokens:
                return 0
            for key in run.entries:
                self._forget(key)
                self._where[key] = run
            run.serial = next(self._serials)
            self._shelves[owner].runs[run] = None
            self._shelves[owner].held_tokens += run.weight
            return run.serial

    def forget_owner(self, owner: str) -> int:
        """Drop all that is kept for ``owner``. Returns how many keys."""
        with self._lock:
            shelf = self._shelves.pop(owner, _Shelf())
            keys = [key for run in shelf.runs for key in run.entries]
            for key in keys:
                del self._where[key]
            return len(keys)

    def get(self, key: bytes) -> Kept | None:
        """What ``put`` stored, as a copy; counts as a use."""
        with self._lock:
            run = self._where.get(key)
            if run is None:
                return None
            self._shelves[run.owner].runs.move_to_end(run)
            prompt_tokens, end = run.entries[key]
            return Kept(run.ids[:end], prompt_tokens)

    def _held(self) -> int:
        return sum(shelf.held_tokens for shelf in self._shelves.values())

    def _gone_on(self, earlier: Sequence[bytes], ids: array[int]) -> _Run | None:
        """The path that ``ids`` go on from, taken off its shelf and lengthened to them; None where they leave it."""
        run = next((self._where[key] for key in reversed(earlier) if key in self._where), None)
        if run is None or ids[: len(run.ids)] != run.ids:
            return None
        shelf = self._shelves[run.owner]
        shelf.held_tokens -= run.weight
        del shelf.runs[run]
        run.ids = ids
        return run

    def _forget(self, key: bytes) -> None:
        run = self._where.pop(key, None)
        if run is None:
            return
        shelf = self._shelves[run.owner]
        shelf.held_tokens -= run.weight
        del run.entries[key]
        _, end = next(reversed(run.entries.values()), (0, 0))
        del run.ids[end:]
        shelf.held_tokens += run.weight
        if not run.entries:
            del shelf.runs[run]

    def _evict(self) -> None:
        shelf = max(self._shelves.values(), key=lambda each: each.held_tokens)
        run, _ = shelf.runs.popitem(last=False)
        shelf.held_tokens -= run.weight
        self.evicted += len(run.entries)
        for key in run.entries:
            del self._where[key]

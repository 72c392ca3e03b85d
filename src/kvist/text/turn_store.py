"""Ids of answers that have ended, by key, within a bound. Any thread may ask."""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
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


@dataclass(slots=True)
class _Run:
    """One path through a conversation. ``entries``: key -> (prompt tokens, tokens up to the answer's end)."""

    ids: array[int]
    entries: dict[bytes, tuple[int, int]] = field(default_factory=dict)

    @property
    def weight(self) -> int:
        return len(self.ids) + ENTRY_TOKENS * len(self.entries)


class TurnStore:
    """Least recently used paths go first. ``max_tokens`` bounds ids, with 64 more for each key.

    A conversation that grows is one path: the answers of earlier turns point into the latest turn's ids, so n turns
    cost the ids of the last one, not the sum of all prompts.
    """

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.held_tokens = 0
        self.evicted = 0
        self._runs: OrderedDict[int, _Run] = OrderedDict()
        self._where: dict[bytes, int] = {}
        self._serials = count()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Keys that ``get`` would find."""
        return len(self._where)

    def put(
        self, keys: Iterable[bytes], earlier: Sequence[bytes], prompt: Sequence[int], output: Sequence[int]
    ) -> None:
        """Store one answer under each of ``keys``, unless it is larger than the store.

        ``earlier``: keys of the answers before it, first to last.
        """
        ids = array("i", prompt)
        split = len(ids)
        ids.extend(output)
        run = _Run(ids, dict.fromkeys(keys, (split, len(ids))))
        if run.weight > self.max_tokens:
            return
        with self._lock:
            for key in run.entries:
                self._forget(key)
            self._adopt(run, earlier)
            serial = next(self._serials)
            self._runs[serial] = run
            self._where |= dict.fromkeys(run.entries, serial)
            self.held_tokens += run.weight
            while self.held_tokens > self.max_tokens:
                self._evict()

    def get(self, key: bytes) -> Kept | None:
        """What ``put`` stored, as a copy; counts as a use."""
        with self._lock:
            serial = self._where.get(key)
            if serial is None:
                return None
            self._runs.move_to_end(serial)
            run = self._runs[serial]
            prompt_tokens, end = run.entries[key]
            return Kept(run.ids[:end], prompt_tokens)

    def _adopt(self, run: _Run, earlier: Sequence[bytes]) -> None:
        """Move the answers that ``run`` goes on from into it."""
        serial = next((self._where[key] for key in reversed(earlier) if key in self._where), None)
        if serial is None:
            return
        parent, size = self._runs[serial], run.ids.itemsize
        new, old = run.ids.tobytes(), parent.ids.tobytes()
        shared = max((end for _, end in parent.entries.values() if new.startswith(old[: end * size])), default=0)
        for key, spans in list(parent.entries.items()):
            if spans[1] <= shared:
                self._forget(key)
                run.entries[key] = spans

    def _forget(self, key: bytes) -> None:
        serial = self._where.pop(key, None)
        if serial is None:
            return
        run = self._runs[serial]
        self.held_tokens -= run.weight
        del run.entries[key]
        del run.ids[max((end for _, end in run.entries.values()), default=0) :]
        if not run.entries:
            del self._runs[serial]
        else:
            self.held_tokens += run.weight

    def _evict(self) -> None:
        _, run = self._runs.popitem(last=False)
        self.held_tokens -= run.weight
        self.evicted += len(run.entries)
        for key in run.entries:
            del self._where[key]

"""Mooncake Store: memory (and SSD) of many hosts as one pool, with replicas and RDMA. A value is header and data.

Values pass through registered staging memory of our own. The client has no list of keys, so ``list`` and removal by
tenant ask the master's HTTP port (``metrics``). A put on a key that exists keeps the old value, which is the same one.
Every client and the master listen without authentication: trusted networks only.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

from kvist.errors import BadValue, UsageError
from kvist.ids import RECORD_ID_BYTES, RecordId
from kvist.tier.base import Put, Record
from kvist.tier.remote.calls import Calls
from kvist.tier.remote.lanes import Lanes, round_up
from kvist.tier.remote.mooncake_pool import Joining, fetch, join
from kvist.tier.remote.place import Answer, PlaceError, Seen, left_s
from kvist.tier.remote.wire import FIRST_BYTES, look, more_needed, take, to_wire

T = TypeVar("T")

KEYS: Final = "kvist:1:"
LANES: Final = 2
LEAST_STAGING_BYTES: Final = 1 << 20
HEADER_ROOM_BYTES: Final = 8192
"""How much longer than its data a value may be to be read in one go."""
KEYS_A_CALL: Final = 64

_MISSING: Final = -704
_NOT_READY: Final = -703
"""Somebody is writing it."""
_TOO_LONG: Final = -600
_NO_SPACE: Final = -200
_NO_MASTER: Final = -900


class MooncakePlace:
    """Joins when first asked and a master is there. Leaving takes a second."""

    def __init__(self, joining: Joining) -> None:
        if joining.staging_bytes < LEAST_STAGING_BYTES:
            raise BadValue("staging", joining.staging_bytes, f"at least {LEAST_STAGING_BYTES} bytes")
        try:
            self._library: Any = importlib.import_module("mooncake.store")
        except ImportError as error:
            raise UsageError(
                f"Mooncake cannot be loaded ({error})",
                remedy="pip install mooncake-transfer-engine-non-cuda, and on Debian apt-get install libibverbs1",
            ) from error
        self.where = f"mooncake://{joining.master}"
        self._joining = joining
        self._calls = Calls(LANES, "kvist-mooncake")
        self._lanes = Lanes(LANES, joining.staging_bytes // LANES, self._calls)
        self._join_lock = threading.Lock()
        self._store: Any = None

    def exists(self, ids: Sequence[RecordId], until: float) -> list[bool]:
        """One question for all; it also prolongs their leases."""
        keys = [_key(id) for id in ids]
        codes = self._call(lambda store: store.batch_is_exist(keys), until)
        return [code == 1 for code in _answered(codes)]

    def get(self, ids: Sequence[RecordId], buffers: Sequence[memoryview], until: float, out: list[Answer]) -> None:
        """As many at a time as staging holds."""
        while len(out) < len(ids):
            first = len(out)
            rooms = [round_up(len(b) + HEADER_ROOM_BYTES) for b in buffers[first:]]
            n = self._fitting(rooms)
            if n == 0:
                out.append(("error", None))
                continue
            self._get(ids[first : first + n], buffers[first : first + n], rooms[:n], until, out)

    def put(self, records: Sequence[Record], until: float, out: list[Put]) -> None:
        """Ask which are there, write the others through staging."""
        there = self.exists([r.label.id for r in records], until)
        at = 0
        while at < len(records):
            if there[at]:
                out.append("known")
                at += 1
                continue
            new = next((i for i in range(at, len(records)) if there[i]), len(records))
            values = [to_wire(r) for r in records[at:new]]
            n = self._fitting([round_up(len(head) + len(data)) for head, data in values])
            if n:
                self._put([_key(r.label.id) for r in records[at : at + n]], values[:n], until, out)
            else:
                out.append("error")  # larger than staging
            at += max(n, 1)

    def touch(self, ids: Sequence[RecordId], until: float) -> None:
        """Asking for a key counts as use."""
        self.exists(ids, until)

    def remove(self, ids: Sequence[RecordId], until: float) -> int:
        """By force, for a lease that was just given would keep it."""
        keys = [_key(id) for id in ids]
        codes = _answered(self._call(lambda store: store.batch_remove(keys, True), until))
        bad = [code for code in codes if code not in (0, _MISSING)]
        if bad:
            raise PlaceError(f"the store did not remove a record (code {bad[0]})")
        return codes.count(0)

    def walk(self, patience_s: float) -> Iterator[tuple[RecordId, Seen, int]]:
        """Keys from the master's HTTP port, then the beginning of each value."""
        text = self._ask_master("get_all_keys", time.monotonic() + patience_s)
        ids = [id for line in text.splitlines() if (id := _id(line)) is not None]
        for at in range(0, len(ids), KEYS_A_CALL):
            yield from self._look(ids[at : at + KEYS_A_CALL], time.monotonic() + patience_s)

    def measure(self, until: float) -> tuple[int, int, int | None]:
        """What the master says of the whole pool."""
        facts = {}
        for line in self._ask_master("metrics", until).splitlines():
            name, _, value = line.partition(" ")
            facts[name] = value
        numbers = [int(float(facts[n])) for n in ("master_key_count", "master_allocated_bytes")]
        return numbers[0], numbers[1], int(float(facts["master_total_capacity_bytes"]))

    def close(self) -> None:
        """Leave the pool; what this process lent goes with it."""
        store, self._store = self._store, None
        if store is not None:
            try:
                self._calls.begin(store.close).result(time.monotonic() + 5.0)
            except Exception:  # it leaves all the same, when the process ends
                pass
        self._calls.close()

    def _get(
        self,
        ids: Sequence[RecordId],
        buffers: Sequence[memoryview],
        rooms: Sequence[int],
        until: float,
        out: list[Answer],
    ) -> None:
        keys, offsets = [_key(id) for id in ids], _offsets(rooms)

        def fill(lane: memoryview) -> Callable[[int], Any]:
            return lambda at: self._joined().batch_get_into(keys, [at + o for o in offsets], list(rooms))

        def use(lane: memoryview, codes: Any) -> None:
            for id, buffer, offset, code in zip(ids, buffers, offsets, _answered(codes), strict=True):
                left_s(until)
                if code >= 0:
                    out.append(take(id, lane[offset : offset + code], buffer))
                elif code in (_MISSING, _NOT_READY):
                    out.append(("missing", None))
                else:
                    out.append(("foreign" if code == _TOO_LONG else "error", None))

        self._lanes.run(until, fill, use)

    def _put(
        self, keys: Sequence[str], values: Sequence[tuple[bytes, memoryview]], until: float, out: list[Put]
    ) -> None:
        sizes = [len(head) + len(data) for head, data in values]
        offsets = _offsets([round_up(size) for size in sizes])
        how = self._library.ReplicateConfig()
        how.replica_num = self._joining.replicas

        def fill(lane: memoryview) -> Callable[[int], Any]:
            for (head, data), offset in zip(values, offsets, strict=True):
                lane[offset : offset + len(head)] = head
                lane[offset + len(head) : offset + len(head) + len(data)] = data
            return lambda at: self._joined().batch_put_from(list(keys), [at + o for o in offsets], sizes, how)

        def use(lane: memoryview, codes: Any) -> None:
            words: dict[int, Put] = {0: "stored", _NO_SPACE: "full"}
            out.extend(words.get(code, "error") for code in _answered(codes))

        self._lanes.run(until, fill, use)

    def _look(self, ids: Sequence[RecordId], until: float) -> list[tuple[RecordId, Seen, int]]:
        found: list[tuple[RecordId, Seen, int]] = []
        sizes = self._call(lambda store: [store.get_size(_key(id)) for id in ids], until)
        there = [(id, size) for id, size in zip(ids, _answered(sizes), strict=True) if size > 0]
        for (id, size), start in zip(there, self._starts(there, until), strict=True):
            if len(start) and (more := more_needed(start)) and more <= min(size, self._lanes.lane_bytes):
                (start,) = self._starts([(id, size)], until, more)
            if len(start):
                found.append((id, look(id, start, size), size))
        return found

    def _starts(
        self, there: Sequence[tuple[RecordId, int]], until: float, most_bytes: int = FIRST_BYTES
    ) -> list[bytes]:
        starts: list[bytes] = []
        wanted = [min(size, most_bytes) for _, size in there]
        offsets = _offsets([round_up(n) for n in wanted])
        keys = [_key(id) for id, _ in there]

        def fill(lane: memoryview) -> Callable[[int], Any]:
            ranges = [[[o] for o in offsets]], [[[0] for _ in keys]], [[[n] for n in wanted]]
            return lambda at: self._joined().get_into_ranges([at], [keys], *ranges)

        def use(lane: memoryview, codes: Any) -> None:
            for offset, n, code in zip(offsets, wanted, codes[0], strict=True):
                starts.append(bytes(lane[offset : offset + n]) if code[0] == n else b"")

        if there:
            self._lanes.run(until, fill, use)
        return starts

    def _fitting(self, rooms: Sequence[int]) -> int:
        """How many of these, from the first, fit in a lane together."""
        total = n = 0
        while n < len(rooms) and total + rooms[n] <= self._lanes.lane_bytes:
            total += rooms[n]
            n += 1
        return n

    def _call(self, question: Callable[[Any], T], until: float) -> T:
        return self._calls.begin(lambda: question(self._joined())).result(until)

    def _joined(self) -> Any:
        """The store, joined. Runs in a thread of ``Calls``: joining waits for a master."""
        with self._join_lock:
            if self._store is None:
                self._store = join(self._library, self._joining, self._lanes.all)
            return self._store

    def _ask_master(self, path: str, until: float) -> str:
        patience_s = left_s(until)
        return self._calls.begin(lambda: fetch(self._joining.metrics, path, patience_s)).result(until)


def _key(id: RecordId) -> str:
    return KEYS + id.hex()


def _id(key: str) -> RecordId | None:
    text = key.strip().removeprefix(KEYS)
    if not key.startswith(KEYS) or len(text) != 2 * RECORD_ID_BYTES or not set(text) <= set("0123456789abcdef"):
        return None
    return RecordId(bytes.fromhex(text))


def _answered(codes: Any) -> list[int]:
    """The codes, unless they say that the master does not answer."""
    if any(code in (_NO_MASTER, -1) for code in codes):
        raise PlaceError("the master does not answer")
    return list(codes)


def _offsets(rooms: Sequence[int]) -> list[int]:
    offsets, at = [], 0
    for room in rooms:
        offsets.append(at)
        at += room
    return offsets

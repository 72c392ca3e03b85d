"""Valkey, Redis, and what speaks their protocol: one value per record under ``kvist:1:<hex id>``.

Eviction is the server's (``maxmemory`` and ``maxmemory-policy``); reading and touching count there as use. There is
no index beside the values, because a server that evicts would evict that as well: ``list`` and removal by tenant scan
all keys of the database and read the beginning of each of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from kvist.ids import RECORD_ID_BYTES, RecordId
from kvist.tier.base import Put, Record
from kvist.tier.envelope import MAX_HEADER_BYTES
from kvist.tier.remote.dial import Pool
from kvist.tier.remote.place import Answer, PlaceError, Seen
from kvist.tier.remote.resp import Connection, Refused, command_bytes
from kvist.tier.remote.wire import FIRST_BYTES, SHORTEST_HEADER, check_in_place, look, more_needed, take, to_wire

T = TypeVar("T")

KEYS: Final = "kvist:1:"
WRITTEN_AHEAD: Final = 4
"""Values written before the first answer is awaited."""
ASKED_AHEAD: Final = 1
"""Values asked for while one is read. More is slower: the server copies what waits (measured, 320 KiB to 4 MiB)."""
KEYS_A_SCAN: Final = 512


class ValkeyPlace:
    """One server, one database of it. ``pool`` opens and keeps the connections."""

    def __init__(self, pool: Pool) -> None:
        self.where = pool.where
        self._pool = pool

    def exists(self, ids: Sequence[RecordId], until: float) -> list[bool]:
        """One round trip for all."""
        return self._pool.use(until, lambda c: _exists(c, ids, until))

    def get(self, ids: Sequence[RecordId], buffers: Sequence[memoryview], until: float, out: list[Answer]) -> None:
        """Each value goes from the socket into its buffer."""
        self._pool.use(until, lambda c: _get(c, ids, buffers, until, out))

    def put(self, records: Sequence[Record], until: float, out: list[Put]) -> None:
        """Ask which are there, write the others."""

        def work(connection: Connection) -> None:
            todo = records[len(out) :]
            there = _exists(connection, [r.label.id for r in todo], until)
            _put(connection, todo, there, until, out)

        self._pool.use(until, work)

    def touch(self, ids: Sequence[RecordId], until: float) -> None:
        """TOUCH, the deepest first."""
        self._pool.use(until, lambda c: c.ask(["TOUCH", *map(_key, reversed(ids))], until))

    def remove(self, ids: Sequence[RecordId], until: float) -> int:
        """UNLINK: the server frees the memory beside its other work."""
        removed = self._pool.use(until, lambda c: c.ask(["UNLINK", *map(_key, ids)], until))
        return _integer(removed)

    def walk(self, patience_s: float) -> Iterator[tuple[RecordId, Seen, int]]:
        """SCAN, then for each of our keys STRLEN and GETRANGE, pipelined."""
        cursor = b"0"
        seen: set[RecordId] = set()
        while True:
            cursor, ids = self._within(patience_s, lambda c, u, at=cursor: _scan(c, at, u))  # type: ignore[misc]
            new = [id for id in ids if id not in seen]  # a server may name a key twice while its table grows
            seen.update(new)
            yield from self._within(patience_s, lambda c, u, new=new: _look(c, new, u))  # type: ignore[misc]
            if cursor == b"0":
                return

    def measure(self, until: float) -> tuple[int, int, int | None]:
        """DBSIZE, and of INFO used_memory and maxmemory: right when the database is kvist's alone."""

        def work(connection: Connection) -> tuple[int, int, int | None]:
            records = _integer(connection.ask(["DBSIZE"], until))
            info = connection.ask(["INFO", "memory"], until)
            lines = info.decode(errors="replace").splitlines() if isinstance(info, bytes) else []
            facts = dict(line.split(":", 1) for line in lines if ":" in line)
            return records, int(facts.get("used_memory", 0)), int(facts.get("maxmemory", 0)) or None

        return self._pool.use(until, work)

    def close(self) -> None:
        """Close idle connections."""
        self._pool.close()

    def _within(self, patience_s: float, work: Callable[[Connection, float], T]) -> T:
        until = self._pool.in_s(patience_s)
        return self._pool.use(until, lambda c: work(c, until))


def _key(id: RecordId) -> str:
    return KEYS + id.hex()


def _exists(connection: Connection, ids: Sequence[RecordId], until: float) -> list[bool]:
    connection.send([b"".join(command_bytes(["EXISTS", _key(id)]) for id in ids)], until)
    return [_integer(connection.reply(until)) > 0 for _ in ids]


def _get(
    connection: Connection,
    ids: Sequence[RecordId],
    buffers: Sequence[memoryview],
    until: float,
    out: list[Answer],
) -> None:
    start = len(out)
    for i in range(start, len(ids) + ASKED_AHEAD):
        if i < len(ids):
            connection.send([command_bytes(["GET", _key(ids[i])])], until)
        if start <= (at := i - ASKED_AHEAD) < len(ids):
            out.append(_receive(connection, ids[at], buffers[at], until))


def _receive(connection: Connection, id: RecordId, buffer: memoryview, until: float) -> Answer:
    """Read one value. Its length tells where the data begins if it has the size that is wanted."""
    try:
        size = connection.bulk_bytes(until)
    except Refused as error:
        if error.word == "WRONGTYPE":
            return "foreign", None
        return "error", None
    if size is None:
        return "missing", None
    head_bytes = size - len(buffer)
    if SHORTEST_HEADER <= head_bytes <= MAX_HEADER_BYTES:
        head = bytearray(head_bytes)
        connection.read_into(memoryview(head), until)
        connection.read_into(buffer, until)
        connection.end_bulk(until)
        return check_in_place(id, bytes(head), buffer)
    start = memoryview(bytearray(min(size, len(buffer) + MAX_HEADER_BYTES)))
    connection.read_into(start, until)
    connection.skip(size - len(start), until)
    connection.end_bulk(until)
    if len(start) == size:
        return take(id, start, buffer)
    return ("damaged" if look(id, start, size) == "damaged" else "foreign"), None


def _put(
    connection: Connection, records: Sequence[Record], there: Sequence[bool], until: float, out: list[Put]
) -> None:
    """Write what is not there; answers go to ``out`` in order, so that they hold whatever happens later."""
    waiting: list[bool] = []

    def settle(most: int) -> None:
        while len(waiting) > most:
            out.append(_written(connection, until) if waiting.pop(0) else "known")

    for record, known in zip(records, there, strict=True):
        if not known:
            head, data = to_wire(record)
            size = len(head) + len(data)
            first = b"*4\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n" % (len(k := _key(record.label.id).encode()), k, size)
            connection.send([first + head, data, b"\r\n$2\r\nNX\r\n"], until)
        waiting.append(not known)
        settle(WRITTEN_AHEAD)
    settle(0)


def _written(connection: Connection, until: float) -> Put:
    try:
        reply = connection.reply(until)
    except Refused as error:
        if error.word == "OOM":
            return "full"
        if error.word in ("READONLY", "MISCONF", "NOPERM"):
            return "off"
        return "error"
    if reply not in (b"OK", None):
        raise PlaceError(f"the server answered {reply!r:.40} to SET")
    return "stored" if reply else "known"


def _scan(connection: Connection, cursor: bytes, until: float) -> tuple[bytes, list[RecordId]]:
    reply = connection.ask(["SCAN", cursor, "MATCH", KEYS + "*", "COUNT", KEYS_A_SCAN], until)
    if not isinstance(reply, list) or len(reply) != 2 or not isinstance(reply[1], list):
        raise PlaceError("the server's answer to SCAN makes no sense")
    ids = []
    for key in reply[1]:
        text = key.decode(errors="replace").removeprefix(KEYS) if isinstance(key, bytes) else ""
        if len(text) == 2 * RECORD_ID_BYTES and set(text) <= set("0123456789abcdef"):
            ids.append(RecordId(bytes.fromhex(text)))
    next_cursor = reply[0] if isinstance(reply[0], bytes) else b"0"
    return next_cursor, ids


def _look(connection: Connection, ids: Sequence[RecordId], until: float) -> list[tuple[RecordId, Seen, int]]:
    """The beginnings of values. One that is gone by now is left out."""
    last = FIRST_BYTES - 1
    both = (command_bytes(["STRLEN", _key(i)]) + command_bytes(["GETRANGE", _key(i), 0, last]) for i in ids)
    connection.send([b"".join(both)], until)
    found: list[tuple[RecordId, Seen, int]] = []
    long: list[tuple[RecordId, int, int]] = []
    for id in ids:
        size, start = _reply_or_none(connection, until), _reply_or_none(connection, until)
        if not isinstance(size, int) or not isinstance(start, bytes):
            found.append((id, "foreign", 0))
        elif size and (more := more_needed(start)):
            long.append((id, size, more))
        elif size:
            found.append((id, look(id, start, size), size))
    for id, size, more in long:
        start = connection.ask(["GETRANGE", _key(id), 0, more - 1], until)
        if isinstance(start, bytes) and start:
            found.append((id, look(id, start, size), size))
    return found


def _reply_or_none(connection: Connection, until: float) -> object:
    try:
        return connection.reply(until)
    except Refused:
        return None


def _integer(reply: object) -> int:
    if not isinstance(reply, int):
        raise PlaceError(f"a number was expected, the server answered {reply!r:.40}")
    return reply

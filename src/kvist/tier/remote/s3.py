"""S3 and what speaks its protocol, through obstore: the cold tier. One object a record: ``<prefix>/<2 hex>/<hex id>``.

Requests run on a few threads (the sync API: measured cheaper than the async one on small machines); whatever is read is
copied to the caller's memory by the caller's own thread. Credentials come from the environment (AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN and the rest that obstore reads). Nothing is evicted here: a lifecycle rule of
the bucket does that.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Final, TypeVar

from kvist.errors import UsageError
from kvist.ids import RECORD_ID_BYTES, RecordId
from kvist.tier.base import Put, Record
from kvist.tier.pack import Packer
from kvist.tier.remote.calls import Call, Calls
from kvist.tier.remote.place import Answer, Seen, left_s
from kvist.tier.remote.wire import FIRST_BYTES, look, more_needed, take, to_wire

T = TypeVar("T")

REQUEST_S: Final = 30
"""After so long the library itself ends a request that its caller gave up long ago."""
LISTED_AT_ONCE: Final = 256


class S3Place:
    """``records`` and ``used_bytes`` are what this process stored and removed, after the last whole ``walk``."""

    def __init__(
        self,
        bucket: str,
        prefix: str,
        *,
        endpoint: str = "",
        region: str = "",
        threads: int = 8,
        packer: Packer | None = None,
    ) -> None:
        try:
            self._obstore: Any = importlib.import_module("obstore")
            stores: Any = importlib.import_module("obstore.store")
        except ImportError as error:
            raise UsageError(
                "an S3 tier needs obstore, which is not installed", remedy="pip install obstore"
            ) from error
        self.where = f"s3://{bucket}/{prefix}" if prefix else f"s3://{bucket}"
        self._prefix = prefix
        self._packer = packer
        self._threads = threads
        self._calls = Calls(threads, "kvist-s3")
        options: dict[str, Any] = {"endpoint": endpoint} if endpoint else {}
        try:
            self._store = stores.S3Store(
                bucket,
                **options,
                **({"region": region} if region else {}),
                virtual_hosted_style_request=not endpoint,
                client_options={
                    "allow_http": endpoint.startswith("http://"),
                    "connect_timeout": timedelta(seconds=5),
                    "timeout": timedelta(seconds=REQUEST_S),
                },
                retry_config={"max_retries": 1, "retry_timeout": timedelta(seconds=5)},
            )
        except Exception as error:  # the library's word on a bad endpoint or region
            raise UsageError(f"{self.where} cannot be used: {error}", remedy="check endpoint and region") from error
        self._lock = threading.Lock()
        self._records = 0
        self._used_bytes = 0

    def exists(self, ids: Sequence[RecordId], until: float) -> list[bool]:
        """HEAD for each."""
        return [size is not None for size in self._sizes(ids, until)]

    def get(self, ids: Sequence[RecordId], buffers: Sequence[memoryview], until: float, out: list[Answer]) -> None:
        """Objects are fetched side by side and checked in order."""

        def use(at: int, value: Any) -> None:
            if value is None:
                out.append(("missing", None))
            else:
                out.append(take(ids[at], memoryview(value), buffers[at], self._packer))

        self._in_turn(len(ids), lambda at: self._fetcher(ids[at]), until, use)

    def put(self, records: Sequence[Record], until: float, out: list[Put]) -> None:
        """HEAD for all, then PUT what is not there."""
        sizes = self._sizes([r.label.id for r in records], until)

        def use(at: int, written: int | None) -> None:
            out.append("known" if written is None else "stored")
            if written is not None:
                self._count(1, written)

        self._in_turn(len(records), lambda at: self._writer(records[at], sizes[at]), until, use)

    def touch(self, ids: Sequence[RecordId], until: float) -> None:
        """A bucket has no order of use."""

    def remove(self, ids: Sequence[RecordId], until: float) -> int:
        """HEAD for all (a bucket does not say what it removed), then one DELETE for all."""
        there = [(id, size) for id, size in zip(ids, self._sizes(ids, until), strict=True) if size is not None]
        if there:
            paths = [self._path(id) for id, _ in there]
            self._calls.begin(lambda: self._obstore.delete(self._store, paths)).result(until)
            self._count(-len(there), -sum(size for _, size in there))
        return len(there)

    def walk(self, patience_s: float) -> Iterator[tuple[RecordId, Seen, int]]:
        """LIST all objects, and read the beginning of each."""
        pages = self._obstore.list(self._store, self._prefix or None, chunk_size=LISTED_AT_ONCE)
        records = used_bytes = 0
        while True:
            until = time.monotonic() + patience_s
            page = self._calls.begin(lambda: next(pages, None)).result(until)
            if page is None:
                break
            found = [(id, int(m["size"])) for m in page if (id := self._id(str(m["path"]))) is not None]
            records, used_bytes = records + len(found), used_bytes + sum(size for _, size in found)
            for (id, size), start in zip(found, self._starts(found, patience_s), strict=True):
                if start is not None:
                    yield id, look(id, start, size), size
        with self._lock:
            self._records, self._used_bytes = records, used_bytes

    def measure(self, until: float) -> tuple[int, int, int | None]:
        """From memory: a bucket does not say how much is in it. One HEAD tells whether it answers."""
        self._sizes([RecordId(bytes(RECORD_ID_BYTES))], until)
        with self._lock:
            return max(0, self._records), max(0, self._used_bytes), None

    def close(self) -> None:
        """Let the threads end."""
        self._calls.close()

    def _in_turn(
        self, n: int, make: Callable[[int], Callable[[], T]], until: float, use: Callable[[int, T], None]
    ) -> None:
        """Make and begin n calls, a bounded number ahead of the one used next: so much lies in memory at most."""
        begun: list[Call[T]] = []
        try:
            for at in range(n):
                while len(begun) < min(at + 2 * self._threads, n):
                    begun.append(self._calls.begin(make(len(begun))))
                use(at, begun[at].result(until))
                left_s(until)
        finally:
            for call in begun:
                call.given_up = True

    def _sizes(self, ids: Sequence[RecordId], until: float) -> list[int | None]:
        sizes: list[int | None] = []
        self._in_turn(len(ids), lambda at: self._header(ids[at]), until, lambda _, size: sizes.append(size))
        return sizes

    def _header(self, id: RecordId) -> Callable[[], int | None]:
        def head() -> int | None:
            try:
                return int(self._obstore.head(self._store, self._path(id))["size"])
            except FileNotFoundError:
                return None

        return head

    def _fetcher(self, id: RecordId) -> Callable[[], Any]:
        def fetch() -> Any:
            try:
                return self._obstore.get(self._store, self._path(id)).bytes()
            except FileNotFoundError:
                return None

        return fetch

    def _writer(self, record: Record, size: int | None) -> Callable[[], int | None]:
        """Bytes that were written, None when an object was there.

        The record is copied here and now: a write that nobody waits for any more must not see its bytes change.
        """
        if size is not None:
            return lambda: None
        value, path = b"".join(to_wire(record, self._packer)), self._path(record.label.id)

        def write() -> int | None:
            self._obstore.put(self._store, path, value, use_multipart=False)
            return len(value)

        return write

    def _starts(self, found: Sequence[tuple[RecordId, int]], patience_s: float) -> list[Any]:
        def starter(id: RecordId, size: int) -> Callable[[], Any]:
            def read(n_bytes: int) -> Any:
                return self._obstore.get_range(self._store, self._path(id), start=0, end=min(size, n_bytes))

            def start() -> Any:
                if size == 0:
                    return b""
                try:
                    begin = memoryview(read(FIRST_BYTES))
                    more = more_needed(begin) if size > FIRST_BYTES else 0
                    return memoryview(read(more)) if more else begin
                except FileNotFoundError:
                    return None

            return start

        starts: list[Any] = []
        until = time.monotonic() + patience_s * (1 + len(found) // 32)
        self._in_turn(len(found), lambda at: starter(*found[at]), until, lambda _, start: starts.append(start))
        return starts

    def _count(self, records: int, n_bytes: int) -> None:
        with self._lock:
            self._records += records
            self._used_bytes += n_bytes

    def _path(self, id: RecordId) -> str:
        name = f"{id.hex()[:2]}/{id.hex()}"
        return f"{self._prefix}/{name}" if self._prefix else name

    def _id(self, path: str) -> RecordId | None:
        name = path.rpartition("/")[2]
        if len(name) != 2 * RECORD_ID_BYTES or not set(name) <= set("0123456789abcdef"):
            return None
        id = RecordId(bytes.fromhex(name))
        return id if self._path(id) == path else None

"""A tier in memory that can be slow, fail at chosen records, hang, lie and forget; what tests of the mover share."""

import hashlib
import threading
import time
from types import SimpleNamespace

import torch

from kvist.runtime.mover.mover import Mover
from kvist.runtime.store import Store
from kvist.tier.base import Label, Usage
from kvist.transfer import Load, Save, SavedBlock

BLOCK_BYTES = 8192
ORIGIN = b"o" * 16
GARBAGE = 0x5A
CLOCK = SimpleNamespace(now=time.perf_counter)


class StubTier:
    """``modes`` by record id says how a read fails. ``gate`` holds a call back while it is cleared.

    Copies are made in two halves with the delay between them, so that a copy that runs on after its answer shows.
    """

    def __init__(self, name="stub", *, get_s=0.0, put_s=0.0, find_s=0.0, takes_saves=True, remote=False):
        self.name, self.takes_saves, self.remote = name, takes_saves, remote
        self.get_s, self.put_s, self.find_s = get_s, put_s, find_s
        self.records = {}
        self.modes = {}
        self.put_answer = None
        self.condition = "ok"
        self.find_gate, self.get_gate, self.put_gate = (threading.Event() for _ in range(3))
        for gate in (self.find_gate, self.get_gate, self.put_gate):
            gate.set()
        self.touched, self.put_batches, self.get_batches, self.deletes = [], [], [], []
        self._lock = threading.Lock()

    def exists_many(self, ids):
        time.sleep(self.find_s)
        self.find_gate.wait()
        return [id in self.records for id in ids]

    def get_many_into(self, ids, buffers, *, timeout_s):
        end = time.monotonic() + timeout_s
        self.get_batches.append(tuple(ids))
        out = []
        for id, buffer in zip(ids, buffers, strict=True):
            out.append(("timeout", None) if out and out[-1][0] == "timeout" else self._get(id, buffer, end))
        return out

    def _get(self, id, buffer, end):
        mode = self.modes.get(id)
        half = len(buffer) // 2
        if mode == "exception":
            raise RuntimeError("a bug in the tier")
        if mode == "evicted":
            self.records.pop(id, None)
        if id not in self.records or mode == "missing":
            return "missing", None
        label, data = self.records[id]
        if mode == "foreign":
            return "foreign", None
        if mode == "other origin":
            label = Label(label.id, label.parent, b"x" * 16, label.depth, label.tenant, label.tokens)
        if mode == "other id":
            label = Label(b"z" * 18, label.parent, label.origin, label.depth, label.tenant, label.tokens)
        if mode == "timeout":
            buffer[:half] = bytes([GARBAGE]) * half
            time.sleep(max(0.0, end - time.monotonic()))
            return "timeout", None
        buffer[:half] = data[:half]
        time.sleep(self.get_s)
        self.get_gate.wait()
        if mode in ("short", "damaged"):
            buffer[:half] = bytes([GARBAGE]) * half
            return "damaged", None
        buffer[half:] = data[half:]
        return "hit", label

    def put_many(self, records, *, timeout_s):
        self.put_batches.append([r.label.id for r in records])
        out = []
        for record in records:
            first = bytes(record.data[: len(record.data) // 2])
            time.sleep(self.put_s)
            self.put_gate.wait()
            data = first + bytes(record.data[len(first) :])
            answer = self.put_answer(record.label) if self.put_answer else "stored"
            if answer == "stored":
                with self._lock:
                    answer = "known" if record.label.id in self.records else "stored"
                    self.records.setdefault(record.label.id, (record.label, data))
            out.append(answer)
        return out

    def touch_many(self, ids):
        self.touched += ids

    def delete(self, *, ids=(), tenant=None, origin=None):
        self.deletes.append((tenant, origin))
        with self._lock:
            gone = [
                id
                for id, (label, _) in self.records.items()
                if (not ids or id in ids) and tenant in (None, label.tenant) and origin in (None, label.origin)
            ]
            for id in gone:
                del self.records[id]
        return len(gone)

    def list(self, *, origin=None, tenant=None):
        return iter(())

    def usage(self):
        return Usage(len(self.records), len(self.records) * BLOCK_BYTES, None, self.condition, "the stub says so")

    def close(self):
        pass

    def give(self, first, n, *, tenant="", origin=ORIGIN):
        """Put ``n`` records of chain ``first`` there, past the mover."""
        for saved in chain(first, range(n)):
            label = Label(saved.record, saved.parent, origin, saved.depth, tenant, saved.tokens)
            self.records[saved.record] = (label, content(saved.record).tobytes())


def store(blocks=16):
    layout = SimpleNamespace(block_bytes=BLOCK_BYTES, groups=())
    return Store(layout, blocks=blocks, poison=True)


def mover(tiers, blocks=16, **options):
    defaults = {"origin": ORIGIN, "clock": CLOCK, "staging_bytes": 64 * BLOCK_BYTES, "linger_s": 0}
    return Mover(tiers, store(blocks), **defaults | options)


def pool_of(m):
    return m._desk.store.pool


def record(chain_name, depth, group=0):
    return hashlib.blake2b(f"{chain_name}/{depth}".encode(), digest_size=16).digest() + bytes((group, 0))


def content(id):
    """The bytes that belong under a record id."""
    state = int.from_bytes(id[:7], "little")
    return torch.randint(
        0, 250, (BLOCK_BYTES,), dtype=torch.uint8, generator=torch.Generator().manual_seed(state)
    ).numpy()


def chain(name, blocks):
    """A chain in these blocks, as a ``Save`` has it."""
    parents = [b""] + [record(name, d) for d in range(len(blocks))]
    return tuple(SavedBlock(record(name, d), parents[d], d, bytes(64), b) for d, b in enumerate(blocks))


def fill(m, name, blocks):
    """Compute a chain into these blocks; the ``Save`` body for it."""
    saved = chain(name, blocks)
    for s in saved:
        pool_of(m)[s.block] = torch.from_numpy(content(s.record))
    return saved


def save(m, id, name, blocks, tenant=""):
    m.save(Save(id, tenant, fill(m, name, blocks)))


def load(id, name, blocks, tiers=None, tenant=""):
    ids = tuple(record(name, d) for d in range(len(blocks)))
    return Load(id, ids, tuple(blocks), tuple(tiers or [0] * len(blocks)), tenant)


def is_poison(m, block):
    return bool((pool_of(m)[block] == 0xFF).all())


def holds(m, block, id):
    return bool((pool_of(m)[block] == torch.from_numpy(content(id))).all())


def settle(m, n=1, seconds=10.0):
    """``n`` answers of any kind, by kind."""
    out, end = ([], [], [], []), time.monotonic() + seconds
    while sum(map(len, out)) < n:
        assert time.monotonic() < end, f"only {out} came"
        m.wait(0.2)
        for into, got in zip(out, m.answers(), strict=True):
            into.extend(got)
    return out


def one(m, seconds=10.0):
    """The one answer that comes."""
    (answer,) = [a for kind in settle(m, 1, seconds) for a in kind]
    return answer

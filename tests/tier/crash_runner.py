"""Runs one script over and over, killed before and after each of its operations; every time the folder is looked at.

``python crash_runner.py FOLDER MODE [FIRST STEP]``: MODE is ``before``, ``after``, ``torn`` (half of a write reaches
the file) or ``power`` (some of what was not synced is lost); with ``mend-``
before it the script finds a damaged index. Each run is a process of its own: a fork of this one.
"""

import os
import random
import shutil
import sys
import threading
from pathlib import Path

from crash_bench import MIB, chain, check_books, data_of, get, ids_of, opened, physical, put, record, rid

from kvist.tier.disk.io import Io

CHANGES = ("pwritev", "fdatasync", "fsync", "rename", "unlink", "truncate", "fallocate", "punch", "commit")


class KillingIo(Io):
    """Ends the process at operation number ``at``."""

    def __init__(self, at, mode):
        super().__init__()
        self._at, self._mode, self._n, self._lock = at, mode, 0, threading.Lock()
        self._unsynced = []

    def _step(self, call, args, name):
        with self._lock:
            self._n += 1
            if self._n == self._at and self._mode != "after":
                if self._mode == "torn" and name == "pwritev":
                    fd, parts, offset = args
                    whole = b"".join(parts)
                    os.pwrite(os.open(f"/proc/self/fd/{fd}", os.O_WRONLY), whole[: len(whole) // 2], offset)
                self._die()
            if self._mode == "power" and name == "pwritev":
                fd, parts, offset = args
                plain = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
                self._unsynced.append((fd, plain, os.pread(plain, sum(map(len, parts)), offset), offset))
            out = call(*args)
            if name in ("fdatasync", "fsync"):
                self._unsynced = [u for u in self._unsynced if u[0] != args[0]]
            if self._n == self._at:
                self._die()
        return out

    def _die(self):
        draw = random.Random(self._at)
        for _, plain, old, offset in self._unsynced:
            for page in range(0, len(old), 4096):
                if draw.random() < 0.7:
                    os.pwrite(plain, old[page : page + 4096], offset + page)
        os._exit(9)


def _counted(name):
    def call(self, *args):
        return self._step(getattr(Io, name).__get__(self), args, name)

    return call


for _name in CHANGES:
    setattr(KillingIo, _name, _counted(_name))


def script(folder, io):
    """Every kind of change once: chains, eviction, other sizes, deletes, other bytes under an old id, tidying."""
    tier = opened(folder, MIB, io=io, sync=True)
    put(tier, chain("a", 12))
    put(tier, chain("b", 70))
    tier.delete(ids=[rid(f"a{i}") for i in range(6, 12)])
    put(tier, [record(f"a{d}", f"a{d - 1}", d, version=1) for d in range(6, 12)])
    get(tier, chain("b", 3))
    put(tier, chain("c", 8, size=20_000, tenant="u"))
    put(tier, chain("d", 12))
    tier.delete(tenant="u")
    tier.gc()
    put(tier, chain("c", 4, size=20_000, tenant="u"))
    tier.close()


def mend_script(folder, io):
    """The index is noise: it is moved aside and made again."""
    tier = opened(folder, MIB, io=io, sync=True)
    put(tier, chain("d", 12))
    tier.close()


def prepare(folder):
    tier = opened(folder, MIB, sync=True)
    put(tier, chain("b", 40))
    tier.close()
    index = folder / "index.db"
    index.write_bytes(random.Random(5).randbytes(index.stat().st_size))


def everything():
    """Every record that the script ever puts, with all bytes that it may have."""
    records = [*chain("a", 12), *chain("b", 70), *chain("d", 12), *chain("c", 8, size=20_000, tenant="u")]
    names = [f"{r}{i}" for r, n in (("a", 12), ("b", 70), ("d", 12), ("c", 8)) for i in range(n)]
    return records, [{data_of(n, r.data.nbytes, v) for v in (0, 1)} for n, r in zip(names, records, strict=True)]


def look(folder):
    """Old, new or nothing; the books exact; nothing lost for ever."""
    tier = opened(folder, MIB, sync=True)
    records, allowed = everything()
    there = tier.exists_many(ids_of(records))
    usage, foreign = tier.usage(), tier.usage().foreign_files
    buffers = [memoryview(bytearray(r.data.nbytes)) for r in records]
    got = tier.get_many_into(ids_of(records), buffers, timeout_s=30)
    for r, g, b, ok, is_there in zip(records, got, buffers, allowed, there, strict=True):
        assert g[0] == ("hit" if is_there else "missing"), (r.label, g[0], is_there)
        assert not is_there or (bytes(b) in ok and g[1] == r.label)
    facts = check_books(folder)
    assert (
        (usage.records, usage.used_bytes) == (facts["records"], facts["used_bytes"]) == (sum(there), usage.used_bytes)
    )
    assert usage.used_bytes == sum(e.stored_bytes for e in tier.list())
    assert usage.damaged_records == 0 and not foreign and physical(folder) <= MIB
    assert [p.name for p in folder.glob("owner-*")] == [f"owner-{tier._ground.owner.token.decode()}.lock"]
    tier.delete(origin=b"o" * 16)
    tier.gc()
    assert not list(folder.glob("slab-*")), "no slot stays lost"
    assert put(tier, chain("b", 60)) == ["stored"] * 60
    tier.close()


def run(folder, mode, at):
    """One run to its end or its death. True: it ended."""
    shutil.rmtree(folder, ignore_errors=True)
    mend, mode = mode.startswith("mend-"), mode.removeprefix("mend-")
    if mend:
        prepare(folder)
    child = os.fork()
    if not child:
        try:
            (mend_script if mend else script)(folder, KillingIo(at, mode))
            os._exit(0)
        except BaseException as error:
            print("script:", repr(error), flush=True)
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 9), f"the script failed at operation {at} ({mode})"
    if not code and at < 15:
        raise AssertionError(f"operation {at} never came")
    if Path(folder).exists():
        look(folder)
    return code == 0


def main(folder, mode, first=1, step=1):
    at = first
    while not run(Path(folder), mode, at):
        at += step
    print(f"{mode}: killed at {(at - first) // step} of {at - 1} operations")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))

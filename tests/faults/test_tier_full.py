"""F052: a disk that is full, that fails, or that may not be written: serving goes on, one line says it, and it ends."""

import errno
import logging
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("xxhash")

sys.path.append(str(Path(__file__).parents[1] / "tier"))

from crash_bench import FaultyIo, check_books  # noqa: E402
from tiny_engine import B, ask, engine, flush, run, words  # noqa: E402

from kvist.tier.disk.store import DiskTier  # noqa: E402
from kvist.units import MIB  # noqa: E402
from small_fs import small_fs  # noqa: E402

BLOCKS = 5


def request(n):
    return ask(f"r{n}", words(BLOCKS * B + 3, seed=n), 3)


@pytest.fixture(scope="module")
def reference():
    judge = engine("llama", reuse=False, attention="reference", budget=512)
    said = run(judge, [request(n) for n in range(24)], one_by_one=True)
    return {n: said[f"r{n}", 0].tokens for n in range(24)}


class Serving:
    """An engine over one disk tier, asked one prompt after another; every answer must be the reference's."""

    def __init__(self, tier, reference):
        self.tier, self.reference = tier, reference
        self.engine = engine("llama", tiers=(tier,), blocks=60)
        self.later = [0.0]
        tier.health._clock = lambda: time.monotonic() + self.later[0]

    def ask(self, *numbers):
        """How much of these prompts came from the tier."""
        loaded = 0
        for n in numbers:
            before = self.engine.scheduler.counters.loaded_tokens
            assert run(self.engine, [request(n)])[f"r{n}", 0].tokens == self.reference[n]
            assert self.engine.executor._mover.flush(30)
            loaded += self.engine.scheduler.counters.loaded_tokens - before
        return loaded

    def forget(self):
        """The pool alone."""
        self.engine.scheduler.cache.reset()

    def counted(self, prefix):
        counters = self.engine.executor.counters
        return sum(v for k, v in counters.items() if k.startswith(f"tier_disk_{prefix}"))

    def end(self):
        flush(self.engine)
        self.tier.close()


def opened(folder, **more):
    return DiskTier.open(folder, **{"capacity_bytes": 256 * MIB, "reserve_bytes": 0, **more})


def changes(caplog):
    return [r.getMessage().split(": ", 1)[1].split(" (")[0] for r in caplog.records if "->" in r.getMessage()]


def no_half_files(folder):
    names = {p.name.split("-")[0] for p in folder.iterdir()}
    assert names <= {"index.db", "kvist", "slab", "owner"}, names


def test_f052_a_quota_larger_than_the_file_system(tmp_path, reference, caplog):
    """Store until it is full: the latest prompts are there, none is served wrong, and nobody notices."""
    with small_fs(tmp_path, "2m") as fs:
        served = Serving(opened(fs.path / "c", capacity_bytes=10240 * MIB), reference)
        served.ask(*range(20))
        usage = served.tier.usage()
        assert usage.condition == "ok" and usage.evicted_records > 0 and usage.records >= 30
        served.forget()
        assert served.ask(19, 18, 17) == 3 * BLOCKS * B
        assert served.ask(*range(20, 24)) == 0 and not served.counted("miss_damaged")
        served.end()
        no_half_files(fs.path / "c")
        check_books(fs.path / "c")
    assert changes(caplog) == [] and len(caplog.records) == 1, "that the file system bounds it is said once"


def test_f052_others_fill_the_disk_and_empty_it(tmp_path, reference, caplog):
    with small_fs(tmp_path, "4m") as fs:
        served = Serving(opened(fs.path / "c"), reference)
        served.ask(0, 1)
        fs.fill()
        served.ask(*range(2, 12))
        assert served.tier.usage().condition == "read-only" and "full" in served.tier.usage().reason
        assert served.counted("lost_off") + served.counted("lost_error") > 0, "what was not saved is counted"
        served.forget()
        assert served.ask(0, 1) == 2 * BLOCKS * B, "what is there is still read"
        fs.empty()
        served.later[0] += 61
        served.ask(*range(12, 15))
        assert served.tier.usage().condition == "ok"
        served.forget()
        assert served.ask(12, 13, 14) == 3 * BLOCKS * B
        served.end()
        no_half_files(fs.path / "c")
        check_books(fs.path / "c")
    assert changes(caplog) == ["ok -> read-only", "read-only -> ok"]


def test_f052_a_server_that_starts_on_a_full_disk(tmp_path, reference, caplog):
    with small_fs(tmp_path, "4m") as fs:
        served = Serving(opened(fs.path / "c"), reference)
        served.ask(0)
        served.end()
        fs.fill()
        caplog.clear()
        served = Serving(opened(fs.path / "c"), reference)
        assert served.ask(0, 1, 2) == BLOCKS * B and served.tier.usage().condition == "read-only"
        fs.empty()
        served.later[0] += 61
        served.forget()
        assert served.ask(1, 2) == 0 and served.tier.usage().condition == "ok"
        served.forget()
        assert served.ask(0, 1, 2) == 3 * BLOCKS * B
        served.end()
        check_books(fs.path / "c")
    assert changes(caplog) == ["ok -> read-only", "read-only -> ok"]


@contextmanager
def read_only_view(folder, view):
    """The same folder at another path, where nothing can be written, also not by root; and a way to allow it."""
    view.mkdir()
    for args in (["--bind", folder, view], ["-o", "remount,bind,ro", view]):
        done = subprocess.run(["mount", *map(str, args)], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"a folder cannot be mounted here: {done.stderr.strip()}")
    try:
        yield lambda: subprocess.run(["mount", "-o", "remount,bind,rw", str(view)], check=True)
    finally:
        subprocess.run(["umount", "-l", str(view)], capture_output=True)


@pytest.mark.parametrize("filled", [True, False])
def test_f052_a_read_only_folder(tmp_path, reference, caplog, filled):
    (tmp_path / "c").mkdir()
    if filled:
        served = Serving(opened(tmp_path / "c"), reference)
        served.ask(0)
        served.end()
    with read_only_view(tmp_path / "c", tmp_path / "view") as allow:
        served = Serving(opened(tmp_path / "view"), reference)
        assert served.ask(0, 1) == filled * BLOCKS * B
        usage = served.tier.usage()
        assert usage.condition == "read-only" and "Read-only file system" in usage.reason
        assert served.counted("lost_off") > 0
        allow()
        served.later[0] += 61
        served.forget()
        served.ask(0, 1)
        assert served.tier.usage().condition == "ok"
        served.forget()
        assert served.ask(1) == BLOCKS * B
        served.end()
    check_books(tmp_path / "c")
    assert changes(caplog) == ["ok -> read-only", "read-only -> ok"]


@pytest.mark.parametrize("where", ["pwritev", "fdatasync", "fallocate", "commit", "preadv"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EROFS])
def test_f052_calls_that_fail_once_and_always(tmp_path, reference, caplog, where, code):
    io = FaultyIo()
    served = Serving(opened(tmp_path / "c", io=io), reference)
    served.ask(0, 1)
    io.fail[where] = [code]
    served.ask(2, 3)
    io.fail[where] = code
    served.forget()
    served.ask(0, 4, 5, 6)
    if where not in ("preadv", "fallocate"):
        assert served.tier.usage().condition == "read-only"
    io.fail.clear()
    served.later[0] += 200
    served.forget()
    served.ask(7, 8)
    assert served.tier.usage().condition == "ok"
    served.forget()
    assert served.ask(7, 8) == 2 * BLOCKS * B
    if code != errno.ENOSPC:  # where there is no space, what was used longest ago made room
        assert served.ask(0) == BLOCKS * B
    served.end()
    check_books(tmp_path / "c")
    assert len(changes(caplog)) % 2 == 0 and len(changes(caplog)) <= 4, "one line a change"


def test_f052_damage_found_while_serving_is_one_line(tmp_path, reference, caplog):
    served = Serving(opened(tmp_path / "c"), reference)
    served.ask(0, 1)
    for slab in (tmp_path / "c").glob("slab-*"):
        raw = bytearray(slab.read_bytes())
        raw[5000 :: len(raw) // 40] = bytes(len(raw[5000 :: len(raw) // 40]))
        slab.write_bytes(raw)
    served.forget()
    with caplog.at_level(logging.WARNING, "kvist.tier"):
        served.ask(0, 1)
    lines = [r.getMessage() for r in caplog.records]
    assert served.tier.usage().damaged_records > 0 and served.counted("miss_damaged") > 0
    assert len(lines) == 1 and str(tmp_path / "c") in lines[0] and "kvist cache verify" in lines[0]
    served.end()

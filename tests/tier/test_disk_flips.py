"""Ten thousand random bit flips, in slabs, the index and its log: no wrong byte is accepted, nothing raises."""

import os
import random
import shutil

import pytest
from crash_bench import MIB, chain, get, ids_of, in_memory, opened, put


@pytest.fixture
def tmp_path(tmp_path):
    with in_memory(tmp_path) as place:
        yield place


def flip(path, draw, n):
    size = path.stat().st_size
    with path.open("r+b") as f:
        for _ in range(n):
            at = draw.randrange(size)
            f.seek(at)
            byte = f.read(1)[0]
            f.seek(at)
            f.write(bytes([byte ^ (1 << draw.randrange(8))]))
        f.flush()
        os.fsync(f.fileno())


def test_flips_in_slabs(tmp_path):
    """6,000 flips, 60 at a time over 100 records, read by the tier that is open. Padding is nobody's byte."""
    draw = random.Random(1)
    folder = tmp_path / "c"
    tier = opened(folder)
    records = chain("a", 100, size=4000)
    damaged = 0
    for _ in range(100):
        put(tier, records)
        (slab,) = folder.glob("slab-*")
        flip(slab, draw, 60)
        answers, right = get(tier, records)
        assert right and set(answers) <= {"hit", "damaged", "missing"}
        damaged += answers.count("damaged")
        assert sum(tier.exists_many(ids_of(records))) == answers.count("hit")
    assert tier.usage().damaged_records == damaged > 1000
    tier.close()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder as a kill left it (a log beside the index) and one that was closed."""
    with in_memory(tmp_path_factory.mktemp("saved")) as folder:
        yield folder, save_both(folder)


def save_both(folder):
    records = chain("a", 60) + chain("b", 20, size=10_000, tenant="u")
    for name in ("killed", "closed"):
        child = os.fork()
        if not child:
            tier = opened(folder / name, MIB * 2)
            put(tier, records)
            if name == "closed":
                tier.close()
            os._exit(0)
        os.waitpid(child, 0)
    return records


@pytest.mark.parametrize("name,part", [("closed", "index.db"), ("killed", "index.db-wal"), ("killed", "index.db-shm")])
def test_flips_in_the_index(saved, tmp_path, name, part):
    """4,000 flips: after each lot the folder opens, answers rightly, takes records and gives them back."""
    folder, records = saved
    draw, hits = random.Random(2), 0
    for turn in range(40):
        here = tmp_path / f"c{turn}"
        shutil.copytree(folder / name, here)
        flip(here / part, draw, draw.choice([1, 2, 10, 100, 200]) if turn else 200)
        tier = opened(here, MIB * 2)
        answers, right = get(tier, records)
        assert right, (turn, "a wrong byte was accepted")
        hits += answers.count("hit")
        tier.usage(), tier.touch_many(ids_of(records)), list(tier.list()), tier.verify(), tier.gc()
        more = chain("more", 10)
        put(tier, more)
        put(tier, records)
        assert get(tier, more + records)[1]
        tier.delete(tenant="u")
        tier.close()
        shutil.rmtree(here)
    assert hits > 100, "flips do not simply empty the cache"


@pytest.mark.parametrize("what", ["empty", "noise", "text", "gone", "other version", "all zeros"])
def test_an_index_that_is_no_index(saved, tmp_path, what):
    """It is moved aside and made again from the slabs; everything is served."""
    import sqlite3

    folder, records = saved
    here = tmp_path / "c"
    shutil.copytree(folder / "closed", here)
    index = here / "index.db"
    if what == "gone":
        index.unlink()
    elif what == "other version":
        c = sqlite3.connect(index)
        c.execute("pragma user_version = 7")
        c.close()
    else:
        size = index.stat().st_size
        noise = random.Random(3).randbytes(size)
        index.write_bytes({"empty": b"", "noise": noise, "text": b"hello\n", "all zeros": bytes(size)}[what])
    tier = opened(here, MIB * 2)
    assert get(tier, records) == (["hit"] * 80, True)
    assert tier.usage().records == 80 and tier.usage().foreign_files == 0
    aside = [p.name for p in here.glob("index.db.damaged-*")]
    assert aside == ([] if what in ("gone", "empty", "all zeros") else ["index.db.damaged-1"]) or what == "all zeros"
    tier.close()


def test_an_index_that_breaks_while_it_is_used(saved, tmp_path):
    folder, records = saved
    here = tmp_path / "c"
    shutil.copytree(folder / "closed", here)
    tier, other = opened(here, MIB * 2), opened(here, MIB * 2)
    assert get(tier, records[:3])[0] == ["hit"] * 3 and get(other, records[:3])[0] == ["hit"] * 3
    size = (here / "index.db").stat().st_size
    with (here / "index.db").open("r+b") as f:
        f.write(random.Random(4).randbytes(size))
    put(tier, chain("new", 5))
    assert get(tier, records)[1] and get(other, records)[1]
    assert put(other, chain("new", 5))[0] in ("stored", "known", "error")
    put(tier, records + chain("new", 5))
    assert get(tier, records + chain("new", 5)) == (["hit"] * 85, True)
    assert get(other, records + chain("new", 5))[1]
    other.close()
    tier.close()
    tier = opened(here, MIB * 2)
    assert get(tier, records + chain("new", 5)) == (["hit"] * 85, True)
    tier.close()


def test_slabs_that_were_cut_or_taken_away(saved, tmp_path):
    folder, records = saved
    here = tmp_path / "c"
    shutil.copytree(folder / "closed", here)
    first, second = sorted(here.glob("slab-*"))
    first.unlink()
    with second.open("r+b") as f:
        f.truncate(8192 * 30 + 100)
    tier = opened(here, MIB * 2)
    usage = tier.usage()
    answers, right = get(tier, records)
    assert right and answers == ["hit"] * 30 + ["missing"] * 50 and usage.records == 30
    assert put(tier, records) == ["known"] * 30 + ["stored"] * 50
    second.unlink()
    answers, right = get(tier, records)
    assert right and set(answers) <= {"hit", "missing"}, "an open file that lost its name"
    tier.close()

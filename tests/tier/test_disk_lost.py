"""Records that are not there any more are counted and said: by opening the folder, by checking it, while serving."""

import errno
import logging

import pytest
from crash_bench import MIB, chain, check_books, get, opened, put

from kvist.tier.damage import Damage
from kvist.tier.disk.io import Io
from kvist.tier.disk.scan import Lost

FEW, MANY = chain("few", 10, size=20_000), chain("many", 40)


@pytest.fixture
def folder(tmp_path):
    tier = opened(tmp_path / "c")
    put(tier, MANY)
    put(tier, FEW)
    tier.close()
    return tmp_path / "c"


def slab(folder, slot_bytes=8192):
    (path,) = folder.glob(f"slab-{slot_bytes}-*.kvs")
    return path


def remove(path):
    path.unlink()


def empty(path):
    path.write_bytes(b"")


def cut(path):
    with path.open("r+b") as file:
        file.truncate(8192 * 25 + 100)


def replace_by_link(path):
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


@pytest.mark.parametrize(
    "harm,gone,words", [(remove, 40, "is gone"), (replace_by_link, 40, "is gone"), (empty, 40, "is cut short"),
                        (cut, 15, "is cut short")],
)  # fmt: skip
def test_opening_says_what_has_gone_with_a_slab(folder, caplog, harm, gone, words):
    path = slab(folder)
    harm(path)
    tier = opened(folder)
    (line,) = [r.getMessage() for r in caplog.records if "with it" in r.getMessage()]
    assert f"{path.name} {words}, and with it {gone} records" in line and str(folder) in line
    usage = tier.usage()
    assert usage.damaged_records == gone and usage.records == 50 - gone and usage.condition == "ok"
    assert get(tier, MANY)[0].count("hit") == 40 - gone and get(tier, FEW)[0] == ["hit"] * 10
    report = tier.verify()
    assert report.lost == (Lost(path.name, gone, cut="cut" in words),) and not report.damaged
    tier.close()
    caplog.clear()
    tier = opened(folder)
    assert tier.usage().damaged_records == gone and not tier.verify().lost, "it is said once, and stays counted"
    tier.close()
    if harm is not replace_by_link:
        check_books(folder)


def test_nothing_is_lost_by_tidying(folder, caplog):
    """Slots that are cut off because they are free, and slabs without records, are no loss."""
    tier = opened(folder)
    tier.delete(ids=[r.label.id for r in MANY[20:]])
    tier.gc()
    tier.delete(ids=[r.label.id for r in FEW])
    tier.gc()
    tier.close()
    tier = opened(folder)
    assert tier.usage().damaged_records == 0 and not tier.verify().lost
    tier.close()
    assert not caplog.records


@pytest.mark.parametrize("harm", [remove, empty, cut])
def test_a_slab_that_goes_while_it_is_served(folder, harm, caplog):
    """Before anything was read from it: each record is found out when it is asked for, in one line of the log."""
    tier = opened(folder)
    tier._slabs.forget(1)
    harm(slab(folder))
    answers, right = get(tier, MANY)
    left = 25 if harm is cut else 0
    assert right and answers == ["hit"] * left + ["damaged"] * (40 - left)
    assert tier.usage().damaged_records == 40 - left and tier.usage().records == 10 + left
    (line,) = [r.getMessage() for r in caplog.records]
    assert f"{40 - left} records were damaged" in line and f"kvist cache verify {folder}" in line
    tier.close()


def test_a_slab_that_is_removed_while_it_is_written_to(folder, caplog):
    """What was in it is said to be lost; what is stored from then on is there after a restart."""
    tier = opened(folder)
    more = chain("more", 30)
    assert put(tier, more) == ["stored"] * 30
    slab(folder).unlink()
    new = chain("new", 20)
    assert put(tier, new) == ["stored"] * 20 and tier.usage().condition == "ok"
    (line,) = [r.getMessage() for r in caplog.records]
    assert "slab-8192-1.kvs is gone, and with it 70 records" in line
    assert tier.usage().damaged_records == 70 == tier.verify().lost[0].records and get(tier, new) == (
        ["hit"] * 20,
        True,
    )
    tier.close()
    check_books(folder)
    tier = opened(folder)
    assert get(tier, new + FEW) == (["hit"] * 30, True) and len(caplog.records) == 1
    tier.close()


class Failing(Io):
    """Fails once where it is told to."""

    at = ""

    def unlink(self, name, dir_fd):
        if self.at == "unlink" and "damaged" in name:
            self.at = ""
            raise OSError(errno.EIO, "the disk is broken")
        super().unlink(name, dir_fd)

    def commit(self, connection):
        if self.at == "commit":
            self.at = ""
            raise OSError(errno.EIO, "the disk is broken")
        super().commit(connection)


@pytest.mark.parametrize("at", ["unlink", "commit"])
def test_tidying_that_fails_tells_no_loss_twice(folder, at, caplog):
    """What was rolled back was not found yet."""
    io = Failing()
    tier = opened(folder, io=io)
    (folder / "index.db.damaged-1").write_bytes(b"x")
    slab(folder).unlink()
    io.at = at
    assert tier.gc() == -1 and not io.at
    assert tier.usage().damaged_records == 0 and not tier.verify().lost and "with it" not in caplog.text
    assert tier.gc() >= 0 and tier.gc() >= 0
    assert tier.verify().lost == (Lost("slab-8192-1.kvs", 40, cut=False),) and caplog.text.count("with it") == 1
    assert tier.usage().damaged_records == 40
    tier.close()
    check_books(folder)


def test_another_record_in_its_slot_is_damage(folder):
    """A write that the device lost: the index says one record, the slot holds the one of before."""
    path = slab(folder)
    raw = bytearray(path.read_bytes())
    raw[3 * 8192 : 4 * 8192] = raw[:8192]
    path.write_bytes(raw)
    tier = opened(folder)
    assert get(tier, MANY)[0] == ["hit"] * 3 + ["damaged"] + ["hit"] * 36
    assert tier.usage().damaged_records == 1
    tier.close()


def test_damage_is_said_when_it_begins_and_as_it_grows(folder, caplog):
    path, counts = slab(folder), []
    for at in range(40):
        with path.open("r+b") as file:
            file.seek(at * 8192 + 5000)
            byte = file.read(1)
            file.seek(at * 8192 + 5000)
            file.write(bytes([byte[0] ^ 1]))
    tier = opened(folder)
    for record in MANY:
        assert get(tier, [record])[0] == ["damaged"]
        counts.append(len(caplog.records))
    assert counts[0] == 1 and counts[8] == 1 and counts[9] == 2 and counts[-1] == 2
    assert "1 record was damaged" in caplog.text and "10 records were damaged" in caplog.text
    assert get(tier, FEW)[0] == ["hit"] * 10 and len(caplog.records) == 2
    tier.close()


def test_checking_says_it_itself(folder, caplog):
    path = slab(folder)
    with path.open("r+b") as file:
        file.seek(5000)
        file.write(b"xyz")
    tier = opened(folder)
    report = tier.verify()
    assert (report.damaged, dict(report.damaged_in), report.lost) == (1, {path.name: 1}, ())
    assert not caplog.records
    tier.close()


def test_a_folder_that_is_only_read_says_what_is_damaged_and_keeps_it(folder):
    slab(folder).unlink()
    tier = opened(folder, read_only=True)
    report = tier.verify()
    assert report.damaged == 40 and report.damaged_in == {"slab-8192-1.kvs": 40} and not report.lost
    assert tier.usage().records == 50
    tier.close()


@pytest.mark.parametrize(
    "steps,lines", [([1] * 9, 1), ([1] * 10, 2), ([500], 1), ([500, 499], 1), ([500, 500], 2), ([0], 0)]
)
def test_lines_for_growing_damage(steps, lines, caplog):
    damage = Damage("a place", "do this")
    with caplog.at_level(logging.WARNING, "kvist.tier"):
        for n in steps:
            damage.found(n)
    assert len(caplog.records) == lines and damage.records == sum(steps)


def test_the_capacity_of_what_was_lost_is_free_again(folder):
    slab(folder).unlink()
    tier = opened(folder, MIB)
    assert put(tier, MANY) == ["stored"] * 40 and get(tier, MANY) == (["hit"] * 40, True)
    tier.close()
    check_books(folder)

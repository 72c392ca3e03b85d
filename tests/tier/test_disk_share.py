"""Several threads on one tier, several tiers on one folder, several processes."""

import ast
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from crash_bench import MIB, FaultyIo, Io, chain, check_books, get, ids_of, in_memory, opened, physical, put

HERE = Path(__file__).parent


def test_three_processes_write_read_evict_at_once(tmp_path):
    with in_memory(tmp_path) as place:
        share(place / "c")


def share(folder):
    most, stop = [0], threading.Event()

    def watch():
        while not stop.wait(0.01):
            most[0] = max(most[0], physical(folder) if folder.exists() else 0)

    watcher = threading.Thread(target=watch)
    watcher.start()
    children = [
        subprocess.Popen(
            [sys.executable, HERE / "crash_worker.py", folder, str(seed), "120"], stdout=-1, stderr=-1, text=True
        )
        for seed in range(3)
    ]
    said = [c.communicate(timeout=120) for c in children]
    stop.set()
    watcher.join()
    assert [c.returncode for c in children] == [0, 0, 0], [err[-1500:] for _, err in said]
    for out, _ in said:
        tally = ast.literal_eval(out)
        assert tally["hit"] > 50 and tally["stored"] > 50 and not tally.get("damaged"), tally
        # A record that somebody deletes while it is being written is an error for who writes it.
        assert not tally.get("error") and tally.get("put: error", 0) < 0.1 * tally["stored"], tally
    assert most[0] <= 2 * MIB
    tier = opened(folder, 2 * MIB)
    usage = tier.usage()
    assert usage.evicted_records > 0 and usage.damaged_records == 0
    assert usage.records == sum(1 for _ in tier.list())
    tier.close()
    assert check_books(folder) == {"records": usage.records, "used_bytes": usage.used_bytes}
    assert not list(folder.glob("owner-*"))


def test_threads(tmp_path):
    """Eight threads on one tier, the same records among others; it is closed while they run."""
    tier = opened(tmp_path / "c", 2 * MIB)

    def work(n):
        seen = set()
        for turn in range(25):
            records = chain(f"x{(n + turn) % 5}-", 30)
            seen |= set(put(tier, records)) | set(get(tier, records)[0])
            assert get(tier, records)[1]
            if turn % 9 == 8:
                tier.delete(ids=ids_of(records[20:]))
        return seen

    with ThreadPoolExecutor(8) as pool:
        seen = set().union(*pool.map(work, range(8)))
        assert seen <= {"stored", "known", "hit", "missing", "error", "full"}, seen
        last = pool.submit(work, 1)
        tier.close()
        assert last.result() <= {"stored", "known", "hit", "missing", "error", "full", "off"}
    check_books(tmp_path / "c")


def test_two_tiers_of_one_process_see_each_other(tmp_path):
    one, two = opened(tmp_path / "c"), opened(tmp_path / "c")
    a = chain("a", 20)
    assert put(one, a) == ["stored"] * 20 and put(two, a) == ["known"] * 20
    assert get(two, a) == (["hit"] * 20, True) and one.usage().records == two.usage().records == 20
    two.delete(tenant="t")
    assert get(one, a)[0] == ["missing"] * 20
    one.close()
    assert put(two, a) == ["stored"] * 20
    two.close()


def test_others_go_on_while_one_writes(tmp_path):
    """A batch that waits for the device holds no lock: the other reads and writes, and does not see the records."""
    waiting, go = threading.Event(), threading.Event()

    class Slow(Io):
        def fdatasync(self, fd):
            waiting.set()
            assert go.wait(20)

    slow, other = opened(tmp_path / "c", sync=True, io=Slow()), opened(tmp_path / "c")
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(put, slow, chain("slow", 8))
        assert waiting.wait(20)
        assert put(other, chain("b", 10)) == ["stored"] * 10 and get(other, chain("b", 10))[0] == ["hit"] * 10
        assert put(other, chain("slow", 8)) == ["known"] * 8, "somebody is at it"
        assert other.exists_many(ids_of(chain("slow", 8))) == [False] * 8
        assert other.delete(tenant="t") == 18, "also what is being written"
        go.set()
        assert writing.result() == ["error"] + ["full"] * 7, "the first was deleted, and what descends from it"
    assert other.usage().records == 0 and get(slow, chain("slow", 8))[0] == ["missing"] * 8
    other.gc()
    assert other.usage().used_bytes == 0
    slow.close()
    other.close()


def test_a_busy_index_is_a_timeout(tmp_path):
    one, two = opened(tmp_path / "c"), opened(tmp_path / "c")
    put(one, chain("a", 5))
    with one._now.access.current().write(1.0):
        assert two.put_many(chain("b", 5), timeout_s=0.2) == ["timeout"] * 5
        assert get(two, chain("a", 5)) == (["hit"] * 5, True), "readers do not wait"
        assert two.usage().condition == "ok"
    assert put(two, chain("b", 5)) == ["stored"] * 5
    one.close()
    two.close()


def test_a_record_that_goes_while_it_is_read_is_missing_not_damaged(tmp_path):
    """Its slot holds another record by the time that it is read: the answer is a miss, and nothing is dropped."""
    other = opened(tmp_path / "c", MIB)
    a = chain("a", 30)
    put(other, a)

    class Late(FaultyIo):
        done = False

        def preadv(self, fd, parts, offset):
            if not self.done:
                self.done = True
                for name in "bcdef":
                    put(other, chain(name, 30))
            return super().preadv(fd, parts, offset)

    tier = opened(tmp_path / "c", MIB, io=Late())
    answers, right = get(tier, a)
    assert right and set(answers) == {"missing"} and tier.usage().damaged_records == 0
    assert get(tier, chain("f", 30)) == (["hit"] * 30, True)
    tier.close()
    other.close()
    check_books(tmp_path / "c")


def test_a_record_that_is_deleted_while_it_is_read_is_missing_not_damaged(tmp_path):
    """Its slot is wiped by the time that it is read."""
    other = opened(tmp_path / "c")
    a = chain("a", 30)
    put(other, a)

    class Late(FaultyIo):
        def preadv(self, fd, parts, offset):
            other.delete(ids=ids_of(a))
            return super().preadv(fd, parts, offset)

    tier = opened(tmp_path / "c", io=Late())
    assert get(tier, a)[0] == ["missing"] * 30 and tier.usage().damaged_records == 0
    tier.close()
    other.close()

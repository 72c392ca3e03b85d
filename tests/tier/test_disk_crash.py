"""F046, F047: killed at any operation, the folder has old, new or nothing, and exact books."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from crash_bench import chain, check_books, get, in_memory, opened, put

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    "mode,first,step",
    [("torn", 1, 1), ("after", 1, 1), ("before", 2, 3), ("power", 1, 2), ("mend-torn", 1, 1), ("mend-after", 1, 1)],
)
def test_killed_at_every_operation(tmp_path, mode, first, step):
    """``torn`` is ``before``, but half of a write is done. In memory where that can be: nothing waits for a disk."""
    with in_memory(tmp_path) as place:
        done = subprocess.run(
            [sys.executable, HERE / "crash_runner.py", place / "c", mode, str(first), str(step)],
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-3000:]
    killed = int(done.stdout.split("killed at ")[1].split()[0])
    assert killed >= (15 if "mend" in mode else 60) // step, done.stdout


def test_kill_9_while_others_look_on(tmp_path):
    """Its slots are taken back by a process that lives, with the books right after a restart as well."""
    folder = tmp_path / "c"
    tier = opened(folder, 2 << 20)
    put(tier, chain("keep", 20))
    code = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "from crash_bench import *\n"
        "class Slow(Io):\n"
        "    def fdatasync(self, fd): print('now', flush=True); threading.Event().wait()\n"
        "put(opened(Path(sys.argv[1]), 2 << 20, io=Slow(), sync=True), chain('lost', 50))\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, folder, HERE], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "now\n"
    assert tier.usage().records == 20 and tier.usage().used_bytes == 36 * 8192, "its slots are in use"
    assert get(tier, chain("lost", 50))[0] == ["missing"] * 50
    tier.gc()
    assert tier.usage().used_bytes == 36 * 8192, "a live process keeps what it reserved"
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert put(tier, chain("lost", 50)) == ["stored"] * 50, "seen when somebody else writes"
    assert get(tier, chain("lost", 50)) == (["hit"] * 50, True)
    assert len(list(folder.glob("owner-*"))) == 1
    tier.close()
    assert check_books(folder)["records"] == 70


def test_usage_with_foreign_files_after_a_kill(tmp_path):
    """F046: fill to 75 %, kill, restart, store another 20 %: exact, in bounds, foreign files as they were."""
    folder = tmp_path / "c"
    folder.mkdir(0o755)
    foreign = {"notes.txt": "mine", "slab-8192-x.kvs": "mine", "index.db.old": "mine", "slab-8192-1.kvs.bak": "mine"}
    for name, text in foreign.items():
        (folder / name).write_text(text)
    (folder / "slab-8192-1.kvs").symlink_to(folder / "notes.txt")
    (folder / "sub").mkdir()
    child = os.fork()
    if not child:
        put(opened(folder, 2 << 20), chain("old", 140))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    tier = opened(folder, 2 << 20)
    usage = tier.usage()
    assert (usage.records, usage.used_bytes, usage.foreign_files) == (140, 140 * 8192, 6)
    assert put(tier, chain("new", 80)) == ["stored"] * 80
    there = tier.exists_many([r.label.id for r in chain("old", 140)])
    assert there == sorted(there, reverse=True) and 0 < sum(there) < 140, "the oldest, from the end of their chain"
    assert sum(f.lstat().st_blocks * 512 for f in folder.iterdir()) - 6 * 4096 <= 2 << 20
    assert {n: (folder / n).read_text() for n in foreign} == foreign and (folder / "slab-8192-1.kvs").is_symlink()
    tier.close()

"""Lives of a real engine over a disk tier, each a fork of this process, killed at a chosen operation or moment.

``python tier_kill_runner.py FOLDER MODES``: JSON, a list of [mode, first, step]. A mode is ``before`` or ``after`` an
operation on a file, ``torn`` (half of a write is done) or ``moment`` (SIGKILL after a while, ``first`` times). After
each life the next one asks everything again.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import torch
from crash_bench import check_books
from crash_runner import KillingIo
from tier_identity_kit import B, model_at, options

from kvist.runtime.llm import load
from kvist.tier.disk import store

OLD = tuple(3 + 5 * i % 120 for i in range(5 * B + 3))
NEW = tuple(3 + 11 * i % 120 for i in range(4 * B + 7))
ON = (*OLD, *range(20, 20 + 2 * B))
"""What goes on from the old one."""


def life(model, place, prompts):
    """One process's: what was said, and how much of it came from the tier."""
    with load(model, options(place)) as llm:
        said = [llm.generate(p, max_tokens=5, ignore_eos=True) for p in prompts]
        counters = dict(llm.engine.executor.counters)
    return [a.token_ids for a in said], [a.loaded_tokens for a in said], counters


def fork(act):
    """The exit code of a child that does this."""
    child = os.fork()
    if not child:
        try:
            act()
            os._exit(0)
        except BaseException as error:
            print("child:", repr(error), flush=True)
            os._exit(1)
    return child


def ended(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def told(act):
    """What a child says."""
    read, write = os.pipe()
    child = fork(lambda: os.write(write, json.dumps(act()).encode()))
    os.close(write)
    with os.fdopen(read) as said:
        text = said.read()
    assert ended(child) == 0, "a life that nobody ended failed"
    return json.loads(text)


def look(model, place, want):
    """A life after the kill: old and new prompts are answered as ever, and the books are right."""
    tokens, loaded, counters = told(lambda: life(model, place, (OLD, NEW, ON)))
    assert tokens == want, (tokens, want)
    misses = {k: v for k, v in counters.items() if k.startswith("tier_disk_miss_") and v}
    assert not misses, f"what was there could not be read: {misses}"
    assert loaded[0] == 5 * B, f"the old snapshot is whole, not {loaded}"
    tier = store.DiskTier.open(place, capacity_bytes=64 << 20, reserve_bytes=0)
    entries = list(tier.list())
    assert all(len(e.label.tokens) == 4 * B for e in entries) and len({e.data_bytes for e in entries}) == 1
    report, usage = tier.verify(), tier.usage()
    assert (report.records, report.damaged, report.missing) == (len(entries), 0, 0) and not report.lost
    assert usage.records == len(entries) and usage.foreign_files == 0 and usage.damaged_records == 0
    tier.gc()
    tier.close()
    assert check_books(place)["records"] == len(entries) and not list(place.glob("owner-*"))
    return loaded[1]


class TearingIo(KillingIo):
    """Counts writes alone: in other operations there is nothing to tear."""

    def _step(self, call, args, name):
        return super()._step(call, args, name) if name == "pwritev" else call(*args)


def killed_at(model, place, at, mode):
    """True: it came to its end first."""

    def act():
        store.Io = lambda: (TearingIo if mode == "torn" else KillingIo)(at, mode)
        life(model, place, (ON, NEW))

    code = ended(fork(act))
    assert code in (0, 9), f"it failed at operation {at} ({mode})"
    return code == 0


def killed_after(model, place, seconds):
    child = fork(lambda: life(model, place, (ON, NEW)))
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    return ended(child) == 0


def lives(folder, want, mode, first, step):
    """Kill after kill, each over a copy of the older snapshot; how often, and what there was of the new one.

    Operations (``torn``: writes) from ``first`` on, each ``step``-th, until one never comes.
    """
    model, template, place = folder / "model", folder / "template", folder / "place"
    draw, kills, new_loaded, at, over = random.Random(first), 0, set(), first, False
    while not over and (mode != "moment" or kills < first):
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(template, place)
        if mode == "moment":
            killed_after(model, place, 0.3 * draw.random())
        else:
            over, at = killed_at(model, place, at, mode), at + step
        new = look(model, place, want)
        if not over:
            kills += 1
            new_loaded.add(new)
    return {"kills": kills, "new": sorted(new_loaded)}


def main(folder, modes):
    torch.set_num_threads(1)
    model = model_at(folder / "model")
    want = [list(told(lambda p=p: life(model, None, (p,)))[0][0]) for p in (OLD, NEW, ON)]
    told(lambda: life(model, folder / "template", (OLD,)))
    print(json.dumps({mode: lives(folder, want, mode, first, step) for mode, first, step in modes}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))

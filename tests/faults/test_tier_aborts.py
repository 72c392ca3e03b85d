"""F033: requests that end while their copies are on the way; what is let go is poisoned, and nothing of it is used."""

import sys
from pathlib import Path
from random import Random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("xxhash")

sys.path.append(str(Path(__file__).parents[1] / "tier"))

from crash_bench import check_books, in_memory  # noqa: E402
from tier_torn import TornOver, read_out  # noqa: E402
from tier_truth import Poison, TornTier, check_all_records, check_at_rest, marked, settle  # noqa: E402
from tiny_engine import B, ask, engine, run  # noqa: E402

from kvist.cache.keys import pack_tokens  # noqa: E402
from kvist.sched.sequence import State  # noqa: E402
from kvist.tier.disk.store import DiskTier  # noqa: E402
from kvist.tier.ram import RamTier  # noqa: E402
from kvist.units import MIB  # noqa: E402

STAGES = ("queued", "prefill", "decode", "offloading", "restoring")
COPY_S = 0.2
OPEN = 10
"""Requests that are in the engine at a time: more than run at once, so that some are queued."""


MOST_MADE = 500
"""Where copies are never met in their midst, who ended by himself is made anew to be aborted while he decodes."""

PATIENCE = {"queued": 20, "prefill": 3, "decode": 60, "offloading": 1, "restoring": 40}
"""Steps in its stage after which a request is aborted, at most."""


class Crowd:
    """Requests that are each to be aborted at the stage they were given; ``ended`` counts last events.

    ``todo``: the stages of those to come. One that ended by itself before is made anew.
    """

    def __init__(self, eng, tiers, stems, rng):
        self.eng, self.tiers, self.stems, self.rng = eng, tiers, stems, rng
        self.todo = [stage for stage in STAGES for _ in range(20)]
        rng.shuffle(self.todo)
        self.live, self.left, self.ended = {}, {}, {}
        self.aborted = dict.fromkeys(STAGES, 0)
        self.made = 0

    def add(self):
        self.made += 1
        stage = self.todo.pop()
        fresh = marked(3 + self.made % 64, self.rng.randrange(3 * B, 8 * B), self.rng)
        prompt = fresh if stage != "restoring" else (*self.rng.choice(self.stems), *fresh[:9])
        request = ask(f"r{self.made}", prompt, 120)
        (seq,) = self.eng.add(request)
        self.live[request.id] = (stage, seq, prompt)
        self.left[request.id] = self.rng.randrange(PATIENCE[stage])

    def stands(self, seq, prompt):
        """The stages that a sequence is in now."""
        found = self.eng.scheduler.sequence(seq)
        if found is None:
            return set()
        if found.state is State.WAITING:
            return {"queued"}
        if found.load is not None:
            return {"restoring"}
        here = {"decode" if found.output_tokens else "prefill"}
        data = pack_tokens(prompt)
        own = {data[at : at + 4 * B] for at in range(0, len(data) - 4 * B + 1, 4 * B)}
        return here | ({"offloading"} if any(own & t.putting for t in self.tiers) else set())

    def note(self, events):
        for event in events:
            if event.finish_reason:
                self.ended[event.request] = self.ended.get(event.request, 0) + 1
                stage = self.live.pop(event.request)[0]
                if event.finish_reason == "abort":
                    self.aborted[stage] += 1
                else:
                    assert event.finish_reason == "length"
                    self.todo.append(stage if self.made < MOST_MADE else "decode")

    def abort_some(self):
        for name, (stage, seq, prompt) in list(self.live.items()):
            if stage in self.stands(seq, prompt):
                self.left[name] -= 1
                if self.left[name] < 0:
                    self.note(self.eng.abort(name))
                    assert name not in self.live


@pytest.fixture(params=["one", "ram and disk"])
def tiers(request, tmp_path):
    """A tier that keeps what it is given, or two real ones: the fast one has not room for all stems."""
    if request.param == "one":
        yield (TornTier(delay_s=lambda: 0.0),)
        return
    with in_memory(tmp_path) as folder:
        disk = DiskTier.open(folder / "tier", capacity_bytes=64 * MIB, reserve_bytes=0, sync=False)
        yield tuple(TornOver(inner, delay_s=lambda: 0.0) for inner in (RamTier(2 * MIB), disk))
        disk.close()
        check_books(folder / "tier")


def slow(tiers, seconds):
    for tier in tiers:
        tier.delay_s = lambda: seconds


def counted(eng, tiers, name):
    return [eng.executor.counters[f"tier_{tier.name}_{name}"] for tier in tiers]


def check_every_tier(eng, tiers):
    """Of each: its own books, and every record is what computing its tokens gives. How many there are."""
    found = []
    for tier in tiers:
        there = read_out(tier, eng.scheduler.layout.block_bytes) if isinstance(tier, TornOver) else tier
        hanging = len(tiers) > 1  # slow saves of one tier are lost where the other's fill the staging memory
        stored, compared = check_all_records(there, "llama", hanging=hanging)
        assert stored == compared or (hanging and compared > stored // 2)
        found.append(stored)
    return found


def test_f033_a_hundred_requests_aborted_at_any_stage(tiers):
    rng = Random(33)
    eng = engine("llama", tiers=tiers, blocks=60, budget=32, sequences=5)
    stems = [marked(3 + i, 5 * B, rng) for i in range(24)]
    run(eng, [ask(f"stem{i}", stem, 1) for i, stem in enumerate(stems)], one_by_one=True)
    settle(eng)
    slow(tiers, COPY_S)
    eng.executor._mover._writing._linger_s = 0.0
    poison, crowd = Poison(eng), Crowd(eng, tiers, stems, rng)
    while crowd.todo or crowd.live:
        assert crowd.made < 2 * MOST_MADE, f"they end before they are aborted: {crowd.aborted}"
        while crowd.todo and len(crowd.live) < OPEN:
            crowd.add()
        crowd.abort_some()
        crowd.note(eng.step())
        poison.look()
    assert sum(crowd.aborted.values()) == 100 and min(crowd.aborted.values()) >= 8, crowd.aborted
    assert len(crowd.ended) == crowd.made and set(crowd.ended.values()) == {1}
    settle(eng)
    poison.look()
    check_at_rest(eng)
    assert poison.blocks > 50 and poison.slots > 100 and sum(counted(eng, tiers, "miss_cancelled")) > 0
    slow(tiers, 0.0)
    assert check_every_tier(eng, tiers)[-1] > 150
    later = [
        ask(f"later{i}", (*stem[: rng.randrange(2 * B, 5 * B)], *range(70, 80)), 8) for i, stem in enumerate(stems)
    ]
    eng.scheduler.cache.reset()  # the pool alone: what hits comes from the tiers
    reference = run(engine("llama", reuse=False, attention="reference", budget=512), later, one_by_one=True)
    got = run(eng, later)
    assert {name: out.tokens for name, out in got.items()} == {name: out.tokens for name, out in reference.items()}
    assert all(counted(eng, tiers, "read_records")) and eng.scheduler.counters.loaded_tokens > 0
    settle(eng)
    check_at_rest(eng)
    poison.look()

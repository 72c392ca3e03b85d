"""F054 over memory and a real disk: a reset at any moment; after success nothing of what was warm is found."""

import sys
import threading
import time
from functools import cache
from pathlib import Path
from random import Random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("xxhash")

sys.path.append(str(Path(__file__).parents[1] / "tier"))

from crash_bench import check_books, in_memory  # noqa: E402
from tier_torn import TornOver  # noqa: E402
from tier_truth import Poison, check_at_rest, marked, settle  # noqa: E402
from tiny_engine import B, ask, engine, run  # noqa: E402

from kvist.cache.keys import pack_tokens  # noqa: E402
from kvist.tier.disk.store import DiskTier  # noqa: E402
from kvist.tier.ram import RamTier  # noqa: E402
from kvist.units import MIB  # noqa: E402

MOMENTS = ("idle", "running", "saving", "running and saving", "restoring", "asking")
CASES = [*(("llama", m) for m in MOMENTS), *(("gemma3", m) for m in MOMENTS[3:5])]


@cache
def prompts():
    """Six that are warm: nobody uses the first three when the reset comes. And what goes on from the others."""
    rng = Random(54)
    warm = [ask(f"warm{i}", marked(3 + i, 5 * B + 1, rng), 3) for i in range(6)]
    on = [ask(f"on{i}", (*one.prompt[: 5 * B], *marked(20 + i, 9, rng)), 30) for i, one in enumerate(warm[3:])]
    new = [ask(f"new{i}", marked(30 + i, 4 * B + 3, rng), 30) for i in range(3)]
    return warm, on, new


@cache
def reference(family):
    judge = engine(family, reuse=False, attention="reference", budget=512)
    said = run(judge, [r for part in prompts() for r in part], one_by_one=True)
    return {name: out.tokens for (name, _), out in said.items()}


class Serving:
    """An engine whose tiers are warm, and what it said since."""

    def __init__(self, family, folder):
        disk = DiskTier.open(folder / "t", capacity_bytes=64 * MIB, reserve_bytes=0, sync=False)
        self.tiers = tuple(TornOver(inner, delay_s=self.hold) for inner in (RamTier(64 * MIB), disk))
        self.go = threading.Event()
        self.go.set()
        self.eng = engine(family, tiers=self.tiers, blocks=140, budget=48, sequences=8)
        self.mover, self.cached, self.tokens = self.eng.executor._mover, {}, {}
        run(self.eng, prompts()[0])
        settle(self.eng)
        self.mover._writing._linger_s = 0.0
        self.poison = Poison(self.eng)

    def hold(self):
        """Copies stop in their midst until they may go on."""
        assert self.go.wait(4)
        return 0.0

    def step(self):
        for event in self.eng.step():
            self.tokens.setdefault(event.request, []).append(event.token)
            if event.finish_reason:
                assert event.finish_reason == "length"
                self.cached[event.request] = event.usage.cached_tokens
        self.poison.look()

    def until(self, what, *, steps=2000):
        for _ in range(steps):
            if what():
                return
            self.step()
            if self.eng.idle:
                self.mover.wait(0.01)
        pytest.fail("it never came to that")

    def bring_to(self, moment):
        """Everything is under way that belongs to this moment."""
        eng, (_, on, new) = self.eng, prompts()
        if moment == "idle":
            return
        if moment not in ("running", "asking"):
            self.go.clear()
        asked = on if moment in ("restoring", "asking") else new if moment == "saving" else (*on[:2], *new)
        if moment in ("restoring", "asking"):
            eng.scheduler.cache.reset()
        for request in asked:
            eng.add(request)
        if moment == "restoring":
            self.until(lambda: eng.scheduler.restores.loading and any(tier.reading for tier in self.tiers))
        elif moment == "asking":
            self.until(lambda: eng.scheduler.restores._questions)
        elif moment == "saving":
            self.until(lambda: eng.idle)
            assert self.mover._desk.saves
        else:
            self.until(lambda: self.mid_answer() >= 3)
            until_s = time.monotonic() + 3
            while moment != "running" and not any(tier.putting for tier in self.tiers):
                assert self.mover._desk.saves and time.monotonic() < until_s
                time.sleep(0.002)  # threads that write are nice, and begin late on a busy machine

    def mid_answer(self):
        """How many are in the middle of their answers."""
        return sum(seq.output_tokens > 3 for seq in self.eng.scheduler.running)

    def reset(self):
        """What became of each tier's part."""
        scheduler = self.eng.scheduler
        late = [seq.request.id for seq in scheduler.running if seq.load is not None]
        self.late = late + [self.eng.scheduler.sequence(seq).request.id for seq in scheduler.restores._questions]
        _, id = scheduler.reset()
        self.step()
        self.go.set()
        dropped = self.eng.scheduler.carry.dropped
        self.until(lambda: id in dropped)
        answer = dropped.pop(id)
        assert not answer.reason and len(answer.records) == 2
        return answer.records

    def stored(self):
        """Tokens of every record, by tier; each tier counts what it lists."""
        found = [{entry.label.tokens for entry in tier.list()} for tier in self.tiers]
        for tier in self.tiers:
            assert tier.usage().records == len(list(tier.list()))
        return found


@pytest.mark.parametrize("family,moment", CASES)
def test_f054_after_a_reset_at_any_moment_nothing_is_warm(family, moment, tmp_path):
    warm, _, _ = prompts()
    unused = {pack_tokens(one.prompt[at : at + B]) for one in warm[:3] for at in range(0, 5 * B, B)}
    with in_memory(tmp_path) as folder:
        served = Serving(family, folder)
        served.bring_to(moment)
        assert all(unused <= there for there in served.stored())
        assert all(removed >= len(unused) for removed in served.reset())
        late = served.late
        assert not any(unused & there for there in served.stored())
        if moment in ("idle", "saving"):
            assert served.stored() == [set(), set()], "nobody holds anything that could be stored again"
        served.eng.add(warm[0])
        served.until(lambda: served.eng.idle)
        assert served.cached["warm0"] == 0
        after = {name: tuple(tokens) for name, tokens in served.tokens.items()}
        assert after == {name: reference(family)[name] for name in after} and len(after) >= (moment != "idle") * 3 + 1
        assert all(served.cached[name] == 0 for name in late) and bool(late) == (moment in ("restoring", "asking"))
        settle(served.eng)
        check_at_rest(served.eng)
        assert all(served.stored())
        served.reset()
        assert served.stored() == [set(), set()]
        served.tokens.clear()
        for request in (r for part in prompts() for r in part[::2]):  # of which some ran when the first reset came
            served.eng.add(request)
            served.until(lambda: served.eng.idle)
            assert served.cached[request.id] < B, "no whole block of anybody's"
        assert {name: tuple(tokens) for name, tokens in served.tokens.items()}.items() <= reference(family).items()
        served.poison.look()
        settle(served.eng)
        served.mover.close()
        served.tiers[1].close()
        check_books(folder / "t")

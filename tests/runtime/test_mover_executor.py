"""The executor and its mover: a plan's transfers in the stated order, their answers in a later result, once."""

import threading

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tier_stubs import ORIGIN, StubTier, record  # noqa: E402
from tiny_engine import engine, words  # noqa: E402

from kvist.errors import StateError  # noqa: E402
from kvist.runtime.executor import TorchExecutor  # noqa: E402
from kvist.runtime.mover.mover import Mover  # noqa: E402
from kvist.spec.sampling import Sampling  # noqa: E402
from kvist.step import BlockCopy, Chunk, NewSequence, StepPlan, TableChange  # noqa: E402
from kvist.transfer import Drop, Find, Kept, Load, Save, SavedBlock  # noqa: E402


def with_mover(*tiers):
    """An executor over a tiny model's decoder and a poisoned store."""
    plain = engine("llama").executor
    plain.store.poison = True
    mover = Mover(tiers, plain.store, origin=ORIGIN, clock=plain._clock)
    return TorchExecutor(plain._decoder, plain.store, plain._clock, mover=mover), mover


def saving(id, *blocks):
    return Save(id, "t", tuple(SavedBlock(record("a", d), b"", d, b"", b) for d, b in enumerate(blocks)))


def answers_to(executor, plan, kind):
    """The answers of one kind, from the plan's own result or a later one."""
    answers = getattr(executor.execute(plan), kind)
    for i in range(100):
        if answers:
            break
        answers = getattr(executor.execute(StepPlan(plan.step + 1 + i, wait_s=0.2)), kind)
    return answers


@pytest.mark.parametrize("part", ["saves", "drops", "finds", "loads"])
def test_a_plan_that_asks_for_tiers_is_refused_whole_without_a_mover(part):
    executor = engine("llama").executor
    asks = {
        "saves": Save(1, "", ()),
        "drops": Drop(1, None),
        "finds": Find(1, ()),
        "loads": Load(1, (), (), ()),
    }
    new = NewSequence(0, (1, 2), Sampling())
    with pytest.raises(StateError, match="no.*tiers|tiers.*none"):
        executor.execute(StepPlan(0, new=(new,), **{part: (asks[part],)}))
    assert executor.live_sequences == 0, "nothing was applied"
    assert executor.execute(StepPlan(1, cancels=(5,), wait_s=0.01)).found == ()


def test_bytes_are_taken_before_the_plan_changes_anything_and_loads_come_after_copies():
    tier = StubTier()
    executor, _ = with_mover(tier)
    pool = executor.store.pool
    pool[0], pool[1], pool[3] = 10, 20, 40
    plan = StepPlan(0, saves=(saving(1, 0, 1),), fresh=(0,), copies=(BlockCopy(3, 1),))
    assert answers_to(executor, plan, "kept") == (Kept(1, 2, 0, 0),)
    assert [set(data) for _, data in tier.records.values()] == [{10}, {20}]
    assert bool((pool[0] == 0xFF).all()) and bool((pool[1] == 40).all())
    bring = Load(2, (record("a", 1),), (2,), (0,), "t")
    plan = StepPlan(200, fresh=(2,), copies=(BlockCopy(3, 2),), loads=(bring,))
    assert answers_to(executor, plan, "loaded")[0].good == (True,)
    assert bool((pool[2] == 20).all()), "not what the copy brought"


def test_a_plan_that_waits_ends_with_the_answer_and_a_step_brings_what_there_is():
    tier = StubTier()
    tier.find_gate.clear()
    executor, mover = with_mover(tier)
    ask = Find(7, (record("a", 0),))
    assert executor.execute(StepPlan(0, finds=(ask,))).found == ()
    threading.Timer(0.1, tier.find_gate.set).start()
    result = executor.execute(StepPlan(1, wait_s=10))
    assert [f.id for f in result.found] == [7] and 0.05 < result.seconds < 9
    executor.execute(StepPlan(2, finds=(Find(8, (record("a", 0),)),)))
    mover.wait(5)
    tokens = tuple(words(3))
    plan = StepPlan(
        3,
        new=(NewSequence(0, tokens, Sampling()),),
        tables=(TableChange(0, 0, 0, (5,)),),
        chunks=(Chunk(0, 0, tokens, (2,)),),
    )
    assert [f.id for f in executor.execute(plan).found] == [8]
    assert executor.execute(StepPlan(4)).found == ()


def test_answers_of_a_step_that_raised_come_with_the_next():
    tier = StubTier()
    executor, mover = with_mover(tier)
    executor.execute(StepPlan(0, finds=(Find(1, (record("a", 0),)),)))
    mover.wait(5)
    broken = StepPlan(1, finds=(Find(2, (record("a", 0),)),), chunks=(Chunk(99, 0, (1,), (0,)),))
    with pytest.raises(Exception):  # noqa: B017
        executor.execute(broken)
    mover.wait(5)
    got = [f.id for _ in range(20) for f in executor.execute(StepPlan(2, wait_s=0.2)).found]
    assert sorted(got) == [1, 2]


def test_cancels_go_first_and_the_movers_numbers_are_the_executors():
    tier = StubTier()
    tier.find_gate.clear()
    executor, _ = with_mover(tier)
    executor.execute(StepPlan(0, finds=(Find(1, (record("a", 0),)),)))
    result = executor.execute(StepPlan(1, cancels=(1,)))
    assert result.found[0].tiers == (-1,)
    tier.find_gate.set()
    assert executor.counters["tier_stub_queued_read_bytes"] == 0 and "native_steps" in executor.counters
    executor.close("over")
    with pytest.raises(StateError, match="over"):
        executor.execute(StepPlan(2))

"""The executor's own promises: what it refuses, what it forgets, and that void memory is poisoned."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny_engine import ask, engine, run, words  # noqa: E402

from kvist.errors import PoolTooSmall, StateError  # noqa: E402
from kvist.runtime.store import Store  # noqa: E402
from kvist.step import BlockCopy, Chunk, StepPlan  # noqa: E402


def test_drafts_are_refused_not_ignored():
    eng = engine("llama")
    with pytest.raises(StateError, match="drafts"):
        eng.executor.execute(StepPlan(0, chunks=(Chunk(0, 0, (1, 2), (1,), drafts=1),)))


def test_nothing_is_remembered_of_sequences_that_ended():
    eng = engine("llama")
    run(eng, [ask(f"r{i}", words(5, seed=i), 3, n=2) for i in range(4)])
    run(eng, [ask("last", words(5), 1)])
    assert eng.executor.live_sequences <= 1  # the last one's end travels with the next plan


@pytest.mark.parametrize("attention", ["native", "reference"])
def test_it_says_how_steps_ran_and_why(attention):
    pytest.importorskip("kvist.kernels.kvist_native")
    eng = engine("llama", attention=attention)
    run(eng, [ask("a", words(20), 5)])
    ran = eng.executor.steps
    if attention == "native":
        assert (ran.native, ran.by_layer, eng.executor.layers_reason) == (5, 0, "")
    else:
        assert (ran.native, ran.by_layer) == (0, 5)
        assert "reference" in eng.executor.layers_reason
    numbers = eng.metrics()
    assert (numbers["exec_native_steps"], numbers["exec_layered_steps"]) == (ran.native, ran.by_layer)


def test_void_blocks_are_nan_and_copies_go_in_order():
    layout = engine("llama").scheduler.layout
    store = Store(layout, blocks=4, poison=True)
    assert bool(store.pool.view(torch.float32).isnan().all())
    store.pool[0] = 1
    store.copy((BlockCopy(0, 1), BlockCopy(1, 2)))
    assert bool((store.pool[2] == 1).all()) and store.copied_blocks == 2
    store.void((1,))
    assert bool(store.pool[1].view(torch.float32).isnan().all()) and bool((store.pool[2] == 1).all())


def test_a_store_of_no_blocks_is_refused():
    with pytest.raises(PoolTooSmall):
        Store(engine("llama").scheduler.layout, blocks=0)


def test_step_plans_survive_the_wire():
    import msgpack

    from kvist.step import StepResult, from_plain, to_plain

    eng = engine("llama")
    plans, results = [], []
    real = eng.executor.execute

    def spy(plan):
        plans.append(plan)
        results.append(real(from_plain(StepPlan, msgpack.unpackb(msgpack.packb(to_plain(plan))))))
        return from_plain(StepResult, msgpack.unpackb(msgpack.packb(to_plain(results[-1]))))

    eng.executor.execute = spy
    over_the_wire = run(eng, [ask("r", words(40), 5), ask("s", words(3), 5)])
    assert over_the_wire == run(engine("llama"), [ask("r", words(40), 5), ask("s", words(3), 5)])
    assert len(plans) >= 5

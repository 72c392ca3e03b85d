"""Memory terms: intervals add up end by end, and what is left is what the engine may use less all of them."""

import pytest

from kvist.cost.device import Device
from kvist.cost.interval import Interval, loosest
from kvist.planner.budget import Budget, Term, activations, graphs, runtime
from kvist.spec.ffn import Ffn
from kvist.spec.layer import Full, LayerSpec
from kvist.spec.model import ModelSpec
from kvist.spec.place import Placement
from kvist.units import GIB

GPU = Device("toy", "kvist", "gpu", 80 * GIB, 1e12, {"bf16": 1e15})
SPEC = ModelSpec(
    "toy", 4096, tuple(LayerSpec(i, Full(), 32, 8, 128, 128, ffn=Ffn(14336)) for i in range(32)), 128_256, 8192
)


def test_what_is_left_is_the_rest():
    budget = Budget(
        100, 0.9, (Term("a", Interval(10, 20, 30, "exact"), ""), Term("b", Interval(1, 2, 3, "measured"), ""))
    )
    assert budget.available == Interval(90 - 33, 90 - 22, 90 - 11, "measured")


def test_an_interval_of_nothing_sure_is_tagged_by_its_loosest_part():
    assert loosest(()) == "exact"
    assert loosest(("exact", "assumed", "measured")) == "assumed"
    assert (Interval.exactly(1.0) + Interval(1, 2, 3, "measured")).tag == "measured"


def test_ends_must_be_in_order():
    with pytest.raises(AssertionError):
        Interval(2, 1, 3)


def test_activations_of_a_known_run():
    """Llama-3-8B, 8,192 tokens a step, 256 sequences: an H100's log says 1.26 GiB (vLLM issue 10511)."""
    term = activations(SPEC, Placement(), batched_tokens=8192, sequences=256)
    assert term.bytes.low < 1.26 * GIB < term.bytes.high
    assert term.bytes.best == pytest.approx(1.26 * GIB, rel=0.3)


@pytest.mark.parametrize("more", [{"batched_tokens": 16384}, {"sequences": 512}])
def test_activations_grow_with_the_step(more):
    base = {"batched_tokens": 8192, "sequences": 256}
    assert (
        activations(SPEC, Placement(), **{**base, **more}).bytes.best
        > activations(SPEC, Placement(), **base).bytes.best
    )


def test_ranks_hold_narrower_rows():
    one, four = (activations(SPEC, Placement(tp=n), batched_tokens=8192, sequences=1).bytes.best for n in (1, 4))
    assert four < one


def test_several_devices_need_buffers_and_a_cpu_captures_no_graphs():
    cpu = Device("cpu", "kvist", "cpu", GIB, 1e10, {"f32": 1e11})
    assert runtime(GPU, Placement(tp=2)).bytes.best > runtime(GPU, Placement()).bytes.best
    assert graphs(cpu, 32).bytes.high == 0
    assert graphs(GPU, 32).bytes.high > 0

"""First tokens of a burst against the real scheduler on paper."""

import pytest

from kvist.planner.schedule import EXACT_STEPS, _integrated, burst


def tokens_clock(chunks):
    """A step that takes a second a token and ten for itself."""
    return 10.0 + sum(n * c.new_tokens for c, n in chunks.items())


def test_one_prompt_in_one_chunk():
    found = burst(tokens_clock, 1, 100, 0, 512)
    assert (found.first_s, found.mean_s, found.last_s, found.steps) == (110.0, 110.0, 110.0, 1)


def test_a_cached_prefix_is_not_computed():
    assert burst(tokens_clock, 1, 100, 60, 512).first_s == 50.0
    assert burst(tokens_clock, 1, 100, 100, 512).first_s == 11.0  # the last token always is


def test_prompts_share_a_step_and_answers_ride_along():
    """Budget 10, prompts of 8: four fifths of a step for the oldest, 8 + 2 | 1 + 6 + 3 | 1 + 1 + 5."""
    found = burst(tokens_clock, 3, 8, 0, 10)
    assert found.first_s == 20.0
    assert found.last_s == 20.0 + 20.0 + 17.0
    assert found.mean_s == pytest.approx((20 + 40 + 57) / 3)


@pytest.mark.parametrize("users", [1, 3, 8])
def test_sampling_steps_is_close_to_stepping(users):
    prompt, budget = 16_000, 256

    def clock(chunks):
        return 0.01 + sum(n * c.new_tokens * (1e-4 + 1e-8 * c.cached_tokens) for c, n in chunks.items())

    from kvist.planner.schedule import _stepped

    exact = _stepped(clock, users, prompt, prompt, budget)
    close = _integrated(clock, users, prompt, prompt, budget)
    assert exact.steps > EXACT_STEPS - 2
    for name in ("first_s", "mean_s", "last_s"):
        assert getattr(close, name) == pytest.approx(getattr(exact, name), rel=0.02)


@pytest.mark.parametrize(
    "users,prompt,budget", [(1, 700, 256), (4, 100, 256), (5, 300, 128), (16, 64, 512), (3, 1000, 256)]
)
def test_the_engine_on_paper_agrees(users, prompt, budget):
    """Same prompts, same budget, a step that costs by its tokens: the same first tokens as the scheduler's own."""
    from kvist.config import CacheConfig, EngineConfig, SchedConfig
    from kvist.cost.table import CostTable
    from kvist.ids import RequestId
    from kvist.sched.request import Request
    from kvist.sim.run import Arrival, paper_engine, replay
    from kvist.spec.format import KVFormat
    from kvist.spec.layer import Full, LayerSpec
    from kvist.spec.layout import plan_layout
    from kvist.spec.model import ModelSpec

    layout = plan_layout(ModelSpec("toy", 64, (LayerSpec(0, Full(), 2, 2, 16, 16),), 1000, 4096), KVFormat())
    config = EngineConfig(CacheConfig(blocks=2000), SchedConfig(token_budget=budget))
    paper = paper_engine(layout, config, context_tokens=4096, cost=CostTable.linear(0.5, 0.001), check=False)
    prompts = [tuple(range(i * prompt + 1, (i + 1) * prompt + 1)) for i in range(users)]
    arrivals = [Arrival(0.0, Request(RequestId(f"r{i}"), p, 40, ignore_eos=True)) for i, p in enumerate(prompts)]
    done = replay(paper, arrivals)
    firsts = sorted(t.first_token_s for t in done.timelines)
    found = burst(
        lambda chunks: 0.5 + 0.001 * sum(n * c.new_tokens for c, n in chunks.items()), users, prompt, 0, budget
    )
    assert firsts[0] == pytest.approx(found.first_s)
    assert sum(firsts) / users == pytest.approx(found.mean_s)
    assert firsts[-1] == pytest.approx(found.last_s)

"""Crossovers and the table of what a cache saves: the numbers cross where they are said to cross."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_setup import (
    CARD,
    CHUNKS,
    DENSE,
    ONLY_STATES,
    ONLY_WINDOWS,
    STATES,
    WINDOWS,
    latents,
    setup,
    spec,
    use_toy_engine,
)

from kvist.cost.roofline import BEST
from kvist.cost.work import Chunk, ModelWork
from kvist.errors import BadValue
from kvist.planner.decide.crossover import batch_turns, decode_turns, linear_batch_turns, prefill_turns
from kvist.planner.decide.no_cache import rows
from kvist.planner.decide.prompt import PromptClock
from kvist.planner.decide.turns import first_yes, last_no
from kvist.planner.plan import timing_of
from kvist.spec.ffn import Ffn
from kvist.spec.format import BF16, KVFormat
from kvist.spec.place import Placement
from kvist.spec.weights import weight_elements

BF = KVFormat(BF16, BF16)
KINDS = {"dense": DENSE, "windows": WINDOWS, "chunks": CHUNKS, "states": STATES, "mla": latents()}
EXPERTS = spec(ffn=Ffn(0, experts=8, active=2, expert_width=64))


@pytest.fixture(autouse=True, scope="module")
def toy():
    with pytest.MonkeyPatch.context() as patch:
        use_toy_engine(patch)
        yield


def cache_and_weights(s, users, n):
    works = [w for w, _ in timing_of(s).works([Chunk(1, n)] * users)]
    cache = sum(w.kv_read_bytes + w.state_bytes / 2 for w in works)
    return cache, sum(w.weight_bytes + w.head_bytes for w in works)


def test_decode_turns_where_rows_weigh_as_much_as_weights():
    """4,096 bytes a token; a step reads all weights but the embedding: the turn is their quotient."""
    counted = weight_elements(DENSE)
    read = 2 * (counted.total - counted.embedding - DENSE.hidden)  # the last norm is counted with no layer
    found = decode_turns(setup(), 1)
    assert DENSE.kv_bytes_per_token(BF) == 4096
    assert found.at == pytest.approx(read / 4096, abs=1)
    assert found.reached and found.for_good == found.at
    assert decode_turns(setup(), 4).at == pytest.approx(read / 4 / 4096, abs=1)
    assert f"{found.at:,}" in found.how


@pytest.mark.parametrize("model", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("users", [1, 3, 16])
@pytest.mark.parametrize("place", [Placement(), Placement(tp=2), Placement(pp=2)], ids=lambda p: p.name)
def test_weights_win_below_and_the_cache_above(model, users, place):
    s = setup(model, place)
    found = decode_turns(s, users)
    assert found.at is not None and found.for_good is not None
    for n in (1, found.at // 2, found.at - 1):
        cache, weights = cache_and_weights(s, users, n)
        assert cache < weights or n == 0
    for n in (found.for_good, found.for_good + 1, 2 * found.for_good, 10 * found.for_good + 7):
        cache, weights = cache_and_weights(s, users, n)
        assert cache >= weights


def test_chunks_that_are_forgotten_tip_the_balance_back():
    found = decode_turns(setup(CHUNKS), 2)
    assert found.for_good > found.at
    cache, weights = cache_and_weights(setup(CHUNKS), 2, found.for_good - 1)
    assert cache < weights
    behind = -(-found.at // 1024) * 1024
    assert cache_and_weights(setup(CHUNKS), 2, behind)[0] < cache_and_weights(setup(CHUNKS), 2, behind)[1]


@pytest.mark.parametrize("model,word", [(ONLY_WINDOWS, "512"), (ONLY_STATES, "state")])
def test_what_never_turns_says_why(model, word):
    found = decode_turns(setup(model), 1)
    assert found.at is None and word in found.how and "never" in found.how
    prefill = prefill_turns(setup(model, batched_tokens=2048))
    assert prefill.at is None and word in prefill.how


def test_enough_states_outweigh_the_weights_from_the_first_token():
    found = decode_turns(setup(ONLY_STATES), 4096)
    assert found.at == 1


def test_a_turn_beyond_the_model_is_said_to_be_out_of_reach():
    found = decode_turns(setup(spec(context=1000)), 1)
    assert found.at > 1000 and not found.reached and "1,000" in found.how


def test_no_users_are_refused():
    with pytest.raises(BadValue, match="users"):
        decode_turns(setup(), 0)


@given(st.integers(1, 200), st.integers(1, 200))
@settings(max_examples=25, deadline=None)
def test_more_users_and_wider_rows_turn_earlier(users, more):
    base = decode_turns(setup(), users).at
    assert decode_turns(setup(), users + more).at <= base
    assert decode_turns(setup(fmt="f32"), users).at <= base <= decode_turns(setup(fmt="fp8"), users).at


@pytest.mark.parametrize("model", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("step", [256, 512, 4096])
def test_linear_layers_win_below_and_attention_above(model, step):
    s = setup(replace(model, context_tokens=1 << 20), batched_tokens=step)
    found, clock = prefill_turns(s), PromptClock.of(s)
    assert found.at is not None
    assert clock.parts(found.at).gap_s >= 0 > clock.parts(found.at - 1).gap_s
    turn = found.at // step
    for k in {turn // 4, turn // 2, turn} - {0}:
        assert clock.parts(k * step).gap_s < 0 or k * step == found.at
    for k in (turn + 1, turn + 2, 2 * turn + 3):
        assert clock.parts(k * step).gap_s >= 0


def test_prefill_turns_where_both_take_as_many_flops():
    """In one step and with equal rates: 2 n W = n^2 sum(q_heads (d_k + d_v)), head and small terms apart."""
    s = setup(replace(DENSE, context_tokens=1 << 20), batched_tokens=1 << 20)
    weights = ModelWork(DENSE, BF).dense_elements
    even = 2 * weights / (8 * 8 * 64) * BEST.attention / BEST.compute
    assert prefill_turns(s).at == pytest.approx(even, rel=0.02)


def test_a_clock_of_whole_steps_tells_the_plans_time():
    s = setup(batched_tokens=512)
    for n in (1, 511, 512, 513, 1024, 5000, 512 * 64):
        mine, plans = PromptClock.of(s).seconds(n), timing_of(s).prefill(n, 0, 0, n)
        assert (mine.low, mine.best, mine.high) == pytest.approx((plans.low, plans.best, plans.high))


def test_the_ridge_of_linear_layers():
    """2 FLOPs a weight and user against 2 bytes a weight and the user's own rows, at a good engine's rates."""
    flops, rate = CARD.flops["bf16"] * BEST.compute, CARD.bandwidth_bytes_per_s * BEST.bandwidth
    work = ModelWork(DENSE, BF)
    own = work.step([Chunk(1, 1)]).activation_bytes
    ridge = 2 * work.dense_elements / rate / (2 * work.dense_elements / flops - own / rate)
    found = linear_batch_turns(setup())
    assert found.at == pytest.approx(ridge, abs=1)
    timing = timing_of(setup())
    bounds = [timing.parts([Chunk(1, 1)] * n)[0].linear_bound for n in (found.at - 1, found.at)]
    assert bounds == ["bandwidth", "compute"]


def test_long_contexts_never_become_compute_bound_and_short_ones_do():
    assert batch_turns(setup(), 8).at == linear_batch_turns(setup()).at
    never = batch_turns(setup(), 30_000)
    assert never.at is None and "cache" in never.how


def test_replicas_share_the_users():
    one = linear_batch_turns(setup())
    four = linear_batch_turns(setup(place=Placement(dp=4)))
    assert four.at == (one.at - 1) * 4 + 1


def test_searches_find_the_edge():
    assert first_yes(lambda n: n >= 77, 0, 1000) == 77
    assert last_no(lambda n: n >= 77, 0, 1000) == 76
    wavy = {0, 10, 11, 12, 500, 501}
    assert last_no(lambda n: n not in wavy and n > 5, 0, 20) == 12


@given(st.integers(1, 10_000), st.integers(1, 10_000))
def test_the_last_failure_of_a_single_turn_is_the_one_before_it(edge, more):
    assert last_no(lambda n: n >= edge, 0, edge + more) == edge - 1


def test_without_a_cache_linear_layers_are_quadratic_and_attention_cubic():
    for row in rows(ModelWork(DENSE, BF), (1, 10, 300)):
        assert row.linear_times == pytest.approx((row.n_tokens + 1) / 2)
        assert row.attention_times == pytest.approx((row.n_tokens + 2) / 3)
        assert row.cache_bytes == 4096 * row.n_tokens


@pytest.mark.parametrize("model", [*KINDS.values(), EXPERTS], ids=[*KINDS, "experts"])
def test_rows_are_sums_of_steps(model):
    work = ModelWork(model, BF)
    _, row = rows(work, [5, 37])
    cached = [work.step([Chunk(1, i)]) for i in range(37)]
    plain = [work.step([Chunk(i + 1)]) for i in range(37)]
    for totals, steps in ((row.cached, cached), (row.plain, plain)):
        assert totals.flops == pytest.approx(sum(w.flops for w in steps))
        assert totals.bytes == pytest.approx(sum(w.bytes for w in steps))
    assert row.plain.bytes >= row.cached.bytes


def test_rows_come_as_asked_and_lengths_are_counts():
    work = ModelWork(DENSE, BF)
    assert [r.n_tokens for r in rows(work, (64, 8, 64))] == [64, 8, 64]
    assert rows(work, ()) == ()
    with pytest.raises(BadValue, match="lengths"):
        rows(work, (0,))

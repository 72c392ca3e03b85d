"""Inverse questions, comparisons and advice: every answer is held against the plan it speaks of."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_setup import CARD, DENSE, STATES, latents, setup, spec, use_toy_engine

from kvist.cost.interval import Interval
from kvist.cost.work import Widths
from kvist.errors import BadValue
from kvist.planner.budget import Overheads
from kvist.planner.decide.advice import advise, what_binds
from kvist.planner.decide.compare import compare
from kvist.planner.decide.fleet import places
from kvist.planner.decide.inverse import Slo, longest_context, most_users, smallest_devices, widest_format
from kvist.planner.decide.tiers import Tier
from kvist.planner.decide.variants import (
    Changed,
    Offloaded,
    SharedPrefix,
    narrower_kv,
    narrower_weights,
    other_places,
    smaller_steps,
    usual_variants,
    wider_places,
)
from kvist.planner.plan import plan
from kvist.planner.schedule import burst
from kvist.planner.setup import Load
from kvist.spec.format import KVFormat
from kvist.spec.place import Placement

TOKEN_BYTES = 4096
LOAD = Load(8192, 192, users=8)


@pytest.fixture(autouse=True, scope="module")
def toy():
    with pytest.MonkeyPatch.context() as patch:
        use_toy_engine(patch)
        yield


def card(mib, name="card"):
    return replace(CARD, name=name, memory_bytes=mib << 20)


def at(device=CARD, **more):
    return lambda place: setup(place=place, device=device, **more)


def test_users_are_what_is_left_over_what_each_holds():
    s = setup()
    left = CARD.memory_bytes * 0.9 - s.weights[0].best
    found = most_users(s, LOAD)
    assert found.value == left // (8192 * TOKEN_BYTES)
    assert (found.unit, found.binding) == ("users", "cache")


@given(
    st.integers(2000, 65_536), st.sampled_from(["bf16", "fp8", "f32"]), st.floats(0.0, 0.9),
    st.sampled_from([*(Placement(**{way: 2}) for way in ("tp", "pp", "dp")), Placement(tp=2, attention_dp=True)]),
    st.sampled_from([DENSE, STATES]),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_so_many_users_fit_and_one_more_does_not(context, fmt, hits, place, model):
    s = setup(model, place, fmt)
    load = Load(context, 100, hit_rate=hits)
    found = most_users(s, load).value
    assert plan(s, replace(load, users=found)).verdict.fits
    assert not plan(s, replace(load, users=found + 1)).verdict.fits


@given(st.integers(1, 60), st.sampled_from(["bf16", "fp8"]), st.sampled_from([0.0, 0.5]))
@settings(max_examples=25, deadline=None)
def test_so_long_a_context_fits_and_one_token_more_does_not(users, fmt, hits):
    s, load = setup(fmt=fmt), Load(1024, 100, users, hits)
    found = longest_context(s, load)
    assert plan(s, replace(load, context_tokens=found.value)).verdict.fits
    if found.binding == "context":
        assert found.value == s.spec.context_tokens
    else:
        assert found.binding == "cache"
        assert not plan(s, replace(load, context_tokens=found.value + 1)).verdict.fits


def test_a_device_too_small_for_the_weights_says_so():
    s = setup(device=card(10))
    assert (most_users(s, LOAD).value, most_users(s, LOAD).binding) == (0, "weights")
    assert (longest_context(s, LOAD).value, longest_context(s, LOAD).binding) == (0, "weights")


def test_promises_bind_before_memory_does():
    s, load = setup(), Load(4096, 192)
    slow = most_users(s, load, Slo(tpot_s=0.1))
    assert slow.binding == "tpot" and slow.value < most_users(s, load).value
    assert plan(s, replace(load, users=slow.value)).latency.tpot.best <= 0.1
    assert plan(s, replace(load, users=slow.value + 1)).latency.tpot.best > 0.1
    never = most_users(s, load, Slo(ttft_s=1e-6))
    assert (never.value, never.binding) == (0, "ttft")


def test_a_burst_of_more_users_than_a_step_has_tokens_ends():
    """Answers of all users would fill every step: no later prompt could ever start."""
    steps = []

    def clock(chunks):
        steps.append(len(chunks))
        assert len(steps) < 1000
        return 1.0

    found = burst(clock, 1000, 100, 90, 512)
    assert found.first_s <= found.mean_s <= found.last_s


def test_a_cap_of_the_engine_binds_where_it_was_set():
    found = most_users(setup(sequences=2, sequences_fixed=True), LOAD)
    assert (found.value, found.binding) == (2, "sequences") and "--sequences" in found.how
    assert most_users(setup(sequences=2), LOAD).value > 2  # whoever serves more starts the engine for more


@given(st.integers(1000, 30_000), st.integers(1, 30_000), st.integers(1, 40), st.integers(1, 40))
@settings(max_examples=15, deadline=None)
def test_longer_contexts_fit_fewer_users_and_more_users_shorter_contexts(context, longer, users, others):
    s = setup()
    assert most_users(s, Load(context + longer, 100)).value <= most_users(s, Load(context, 100)).value
    many = longest_context(s, Load(1000, 100, users + others)).value
    assert many <= longest_context(s, Load(1000, 100, users)).value


def test_the_fewest_devices_that_hold_the_load():
    """17 MB of weights and 8 x 32 MiB of cache: 256 MiB in all, in devices of 128 MiB."""
    small = card(128)
    found = smallest_devices(lambda d, p: setup(place=p, device=d), LOAD, Slo(), (1, 2, 4, 8), [small])
    best = found.answers[0]
    assert best.count == 4 and best.met and best.plan.verdict.fits
    for place in places(2):
        assert not plan(setup(place=place, device=small), LOAD).verdict.fits
    assert all(c.count == 4 for c in found.answers)
    assert {c.place for c in found.answers} <= set(places(4))
    assert found.nearest is None and found.impossible == 0


def test_smaller_and_larger_devices_are_ranked_together():
    found = smallest_devices(
        lambda d, p: setup(place=p, device=d), LOAD, Slo(), (1, 2, 4), [card(128, "small"), card(1000, "large")]
    )
    assert [c.device.name for c in found.answers][0] == "large"
    assert {c.device.name: c.count for c in found.answers} == {"large": 1, "small": 4}


def test_placements_that_do_not_divide_are_counted_and_left_out():
    found = smallest_devices(lambda d, p: setup(place=p, device=d), LOAD, Slo(), (3,), [CARD])
    assert found.impossible == 1 and {c.place.name for c in found.answers} == {"PP3", "DP3"}
    with pytest.raises(BadValue, match="tp"):
        smallest_devices(lambda d, _: setup(place=Placement(tp=3), device=d), LOAD, Slo(), (1,), [CARD])


def test_a_promise_nobody_keeps_has_a_nearest_miss():
    found = smallest_devices(lambda d, p: setup(place=p, device=d), LOAD, Slo(tpot_s=1e-9), (1, 2), [CARD])
    assert found.answers == () and found.nearest is not None
    assert "allowed" in found.nearest.how
    kept = smallest_devices(lambda d, p: setup(place=p, device=d), LOAD, Slo(tpot_s=10.0), (1, 2), [CARD]).answers[0]
    assert kept.sure == (kept.plan.verdict.sure and kept.plan.latency.tpot.high <= 10.0)
    with pytest.raises(BadValue, match="devices"):
        smallest_devices(lambda d, p: setup(place=p, device=d), LOAD, Slo(), (1,), [])


def test_worst_guesses_may_break_what_best_guesses_hold():
    doubt = Overheads(Interval(0.0, 0.0, 900e6), Interval.exactly(0.0), Interval.exactly(0.0))
    make = lambda d, p: setup(place=p, device=d, overheads=doubt)  # noqa: E731
    assert not smallest_devices(make, LOAD, Slo(), (1,), [CARD]).answers[0].sure


def test_every_way_to_cut_a_count():
    assert {p.name for p in places(4)} == {"TP4", "PP4", "DP4", "TP2 PP2", "TP2 DP2", "PP2 DP2"}
    assert Placement(tp=4, attention_dp=True) in places(4, attention_dp=True)
    assert all(p.devices == 12 for p in places(12))


def test_the_widest_format_that_fits():
    formats = [KVFormat.planned(name) for name in ("f32", "bf16", "fp8", "int4")]
    make = lambda fmt: setup(fmt=fmt.name, device=card(260))  # noqa: E731
    found = widest_format(make, LOAD, formats)
    fits = [plan(make(f), LOAD).verdict.fits for f in formats]
    assert fits == [False, False, True, True] and found.kv_format == formats[2]
    assert len(found.refused) == 2 and found.plan.verdict.fits
    none = widest_format(make, replace(LOAD, users=100), formats)
    assert none.kv_format is None and len(none.refused) == 4
    with pytest.raises(BadValue, match="formats"):
        widest_format(make, LOAD, [])


def test_limits_are_seconds_above_zero():
    with pytest.raises(BadValue, match="ttft_s"):
        Slo(ttft_s=0.0)
    assert Slo().room(plan(setup(), LOAD)) == float("inf")


def test_equal_plans_do_not_differ():
    assert compare(plan(setup(), LOAD), plan(setup(), LOAD)) == ()


def test_a_narrower_format_halves_what_follows():
    found = {d.name: d for d in compare(plan(setup(), LOAD), plan(setup(fmt="fp8"), LOAD))}
    order = list(found)
    assert order[0] == "KV format" and found["KV format"].setting
    assert found["KV format"].why == "KV halves: 2 B -> 1 B per element"
    assert (found["KV bytes of a token"].before, found["KV bytes of a token"].after) == (4096, 2048)
    assert found["cache of a user"].ratio == 0.5
    assert found["users that fit"].ratio == pytest.approx(2, abs=0.1)
    assert "KV halves: 2 B -> 1 B" in found["KV bytes of a token"].why
    assert "32 MiB -> 16 MiB" in found["users that fit"].why
    assert "cache read by a step" in found["TPOT"].why
    assert order.index("KV bytes of a token") < order.index("users that fit") < order.index("TPOT")
    assert not {"weights", "activations", "usable memory"} & set(order)


CHANGES = {
    "KV format": lambda s, x: (replace(s, kv_format=KVFormat.planned("int4")), x),
    "memory fraction": lambda s, x: (replace(s, memory_fraction=0.5), x),
    "tokens of a step": lambda s, x: (replace(s, batched_tokens=64), x),
    "sequences": lambda s, x: (replace(s, sequences=7), x),
    "bytes of a weight": lambda s, x: (replace(s, widths=Widths(1.0)), x),
    "placement": lambda s, x: (setup(place=Placement(tp=2)), x),
    "model": lambda s, x: (setup(spec(n=4)), x),
    "device": lambda s, x: (setup(device=replace(card(476, "half"), bandwidth_bytes_per_s=5e8)), x),
    "knobs": lambda s, x: (replace(s, knobs={"hybrid": False}), x),
    "format of products": lambda s, x: (replace(s, compute="fp8"), x),
    "context": lambda s, x: (s, replace(x, context_tokens=16_384)),
    "output": lambda s, x: (s, replace(x, output_tokens=1000)),
    "users": lambda s, x: (s, replace(x, users=40)),
    "hit rate": lambda s, x: (s, replace(x, hit_rate=0.5)),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_every_consequence_names_a_cause_that_differs(name):
    s = setup(overheads=None, device=replace(CARD, memory_bytes=10**10))
    base = setup() if name in ("placement", "model", "device") else s
    after = CHANGES[name](base, LOAD)
    found = compare(plan(base, LOAD), plan(*after))
    asked = [d for d in found if d.setting]
    assert [d.name for d in asked] == [name]
    assert [d.setting for d in found] == sorted((d.setting for d in found), reverse=True)
    for d in found:
        assert "no name here" not in d.why, d
        if d.name != "verdict" and isinstance(d.before, int | float) and d.before > 0 and d.after >= 0:
            assert d.ratio == pytest.approx(d.after / d.before)


def test_a_verdict_that_turns_is_said_last():
    found = compare(plan(setup(), LOAD), plan(setup(), replace(LOAD, users=1000)))
    assert (found[-1].name, found[-1].before, found[-1].after) == ("verdict", "fits", "does not fit")


def test_advice_is_ranked_by_plans():
    s, load = setup(), replace(LOAD, users=100)
    found = advise(s, load, usual_variants(s, at()))
    assert found and found[0].goal == "users"
    assert [x.gain for x in found] == sorted((x.gain for x in found), reverse=True)
    for x in found:
        assert x.gain == x.plan.users_fit[1] / plan(s, load).users_fit[1] > 1
        assert x.settles == x.plan.verdict.fits
    named = {x.name: x for x in found}
    assert named["KV in fp8"].gain == pytest.approx(2, abs=0.1) and named["KV in fp8"].devices_ratio == 1
    assert named["TP2"].devices_ratio == 2
    assert named["90% of the prompt shared and cached"].gain > named["KV in fp8"].gain


def test_what_binds_is_what_is_missed_by_most():
    fits = plan(setup(), LOAD)
    assert what_binds(fits) == "users"
    assert what_binds(plan(setup(), replace(LOAD, users=1000)), Slo(ttft_s=1e-9)) == "users"
    assert what_binds(fits, Slo(ttft_s=1e-9)) == "ttft"
    assert what_binds(fits, Slo(ttft_s=fits.latency.ttft.best / 2, tpot_s=fits.latency.tpot.best / 3)) == "tpot"
    assert what_binds(fits, Slo(ttft_s=1e9)) == "users"


def test_seconds_are_gained_where_seconds_bind():
    s = setup()
    faster = advise(s, LOAD, usual_variants(s, at()), goal="tpot")
    assert all(x.gain == x.tpot_ratio > 1 for x in faster)
    tier = Tier.given("shelf", 1e9)
    (kept,) = advise(s, LOAD, [Offloaded(tier, KVFormat.planned("fp8"))], goal="ttft")
    assert kept.gain > 2 and kept.plan.users_fit == plan(s, LOAD).users_fit
    assert kept.plan.latency.ttft_bound == "transfer from shelf"


def test_the_impossible_is_left_out_unless_asked_for():
    s = setup()
    three = [Placement(tp=3)]
    assert advise(s, LOAD, other_places(at(), three)) == ()
    with pytest.raises(BadValue, match="tp"):
        advise(s, LOAD, other_places(at(), three, asked=True))
    with pytest.raises(BadValue, match="kv_format"):
        advise(s, LOAD, narrower_kv(["f32"], asked=True))
    with pytest.raises(BadValue, match="tier"):
        advise(s, LOAD, [Offloaded(Tier.given("tape", 1.0), s.kv_format, asked=True)])
    with pytest.raises(BadValue, match="hit_rate"):
        advise(s, replace(LOAD, hit_rate=0.7), [SharedPrefix(0.5, asked=True)])


def test_what_gains_nothing_is_left_out_unless_asked_for():
    s = setup()
    same = Changed("the same", lambda x: x)
    assert advise(s, LOAD, [same]) == ()
    (told,) = advise(s, LOAD, [replace(same, asked=True)])
    assert told.gain == 1


def test_latents_are_not_copied_under_attention_dp():
    s = setup(latents(), Placement(tp=4))
    wider = wider_places(s)
    assert Placement(tp=4, attention_dp=True) in wider
    assert Placement(tp=4, attention_dp=True) not in wider_places(setup(place=Placement(tp=4)))
    (found,) = advise(s, replace(LOAD, users=400), other_places(lambda p: setup(latents(), p), [wider[-1]]))
    assert found.name == "TP4 attention-DP" and found.gain == pytest.approx(4, abs=0.6)


def test_narrower_weights_come_from_their_builders():
    def build(s):
        return replace(s, widths=Widths(1.0, 1.0, 2.0), weights=(s.weights[0].times(0.5),))

    s = setup(device=card(120))
    (found,) = advise(s, LOAD, narrower_weights({"fp8": build}))
    assert found.name == "weights in fp8" and found.plan.budget.terms[0].bytes.best == s.weights[0].best / 2


def test_smaller_steps_are_halves_and_quarters():
    assert [v.name for v in smaller_steps(setup(batched_tokens=512))] == ["steps of 256 tokens", "steps of 128 tokens"]
    assert smaller_steps(setup(batched_tokens=1)) == ()

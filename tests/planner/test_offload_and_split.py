"""Load or recompute, and prompts computed elsewhere: bytes by hand, choices checked against both clocks."""

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from toy_setup import CARD, DENSE, STATES, WINDOWS, latents, setup, spec, use_toy_engine

from kvist.errors import BadValue
from kvist.planner.decide.hit_rate import hit_rate_curve
from kvist.planner.decide.offload import crossover, decide, resting_bytes, table
from kvist.planner.decide.prompt import PromptClock
from kvist.planner.decide.split import arrival_rate, balance, landed_bytes, ship, shipped_bytes
from kvist.planner.decide.tiers import NVME, Tier, usual_tiers
from kvist.planner.plan import plan, timing_of
from kvist.planner.setup import Load
from kvist.spec.format import KVFormat
from kvist.spec.layer import Full, Recurrent, Window
from kvist.spec.place import Placement

FP8, INT4 = KVFormat.planned("fp8"), KVFormat.planned("int4")
TOKEN_BYTES = 4096
FAST = Tier.given("fast", 1e9, 1e-3)


@pytest.fixture(autouse=True, scope="module")
def toy():
    with pytest.MonkeyPatch.context() as patch:
        use_toy_engine(patch)
        yield


def test_loading_is_latency_and_bytes_over_bandwidth():
    found = decide(setup(), 1000, FAST)
    assert found.bytes == 1008 * TOKEN_BYTES  # 63 blocks of 16
    assert found.load_s.best == pytest.approx(1e-3 + 1008 * TOKEN_BYTES / 1e9)
    assert found.load_s == found.store_s
    assert found.recompute_s == PromptClock.of(setup()).seconds(1000)
    assert found.choice == "load"
    assert found.factor == pytest.approx(found.recompute_s.best / found.load_s.best)
    assert found.keep_from_reuse == pytest.approx(found.load_s.best / (found.recompute_s.best - found.load_s.best))


def test_where_loading_loses_dropping_is_best():
    found = decide(setup(), 1000, Tier.given("tape", 1e6))
    assert found.choice == "recompute" and found.keep_from_reuse is None
    assert found.factor == pytest.approx(1008 * TOKEN_BYTES / 1e6 / found.recompute_s.best)
    assert "drop" in found.how


def test_narrow_formats_load_in_a_fraction_of_the_time():
    wide, eight, four = table(setup(), 4096, [FAST], [FP8, INT4])
    assert (wide.bytes, eight.bytes, four.bytes) == (4096 * 4096, 4096 * 2048, 4096 * 1024)
    assert wide.load_s.best - 1e-3 == pytest.approx(2 * (eight.load_s.best - 1e-3))
    assert wide.recompute_s == eight.recompute_s


def test_an_interval_is_as_wide_as_the_tiers():
    found = NVME.seconds(6e9)
    assert found.low == pytest.approx(50e-6 + 6 / 13) and found.high == pytest.approx(500e-6 + 3)
    assert found.tag == "assumed"
    sure = decide(setup(), 1000, FAST)
    assert sure.sure == (sure.load_s.high < sure.recompute_s.low)


def test_the_last_window_is_all_that_windows_keep():
    """Under kvist's own blocks: a step's tokens beside the window are no longer held when nothing is computed."""
    s = replace(setup(WINDOWS, batched_tokens=512), engine="kvist", block_tokens=16)
    held = resting_bytes(s, 16_384)
    full = 2 * 16_384 * 512  # 2 of 8 layers keep everything, 512 bytes a token and layer
    windows = 6 * 512 * 512
    assert full + windows <= held <= full + windows + 6 * 3 * 16 * 512
    assert held < resting_bytes(replace(s, spec=DENSE), 16_384) / 3


@pytest.mark.parametrize("rate", [1e5, 5e5, 1.2e6, 2e6, 3e6, 5e6, 1e7])
@pytest.mark.parametrize("model", [DENSE, WINDOWS, STATES, latents()], ids="dense windows states mla".split())
@pytest.mark.parametrize("rest", [0, 1, 300])
def test_loading_wins_from_the_crossover_on(rate, model, rest):
    s, tier = setup(model), Tier.given("t", rate, 1e-2)
    found = crossover(s, tier, rest_tokens=rest)

    def loads(n):
        return decide(s, n, tier, rest_tokens=rest).choice == "load"

    if found.tokens is None:
        assert not loads(found.limit_tokens)
        return
    assert loads(found.tokens) and (found.tokens == 1 or not loads(found.tokens - 1))
    for n in (found.tokens + 1, found.tokens + 16, found.tokens + 512, 2 * found.tokens, found.limit_tokens):
        assert n > found.limit_tokens or loads(n)
    if found.recompute_from is not None and found.recompute_from > 1:
        assert loads(found.recompute_from - 1) and not loads(found.recompute_from)
    assert tier.name in found.how


def test_there_are_tiers_that_always_win_and_that_never_do():
    assert crossover(setup(), Tier.given("fast", 1e12)).tokens == 1
    never = crossover(setup(), Tier.given("tape", 1e3, 10.0))
    assert never.tokens is None and "65,536" in never.how


def test_a_short_prefix_rides_along_with_the_rest_for_nearly_nothing():
    drive = Tier.given("drive", 1e7, 1e-3)
    alone, beside = decide(setup(), 16, drive), decide(setup(), 16, drive, rest_tokens=16)
    assert alone.choice == "load" and beside.choice == "recompute"
    timing = timing_of(setup())
    assert beside.recompute_s.best == pytest.approx(
        timing.prefill(32, 0, 0, 32).best - timing.prefill(32, 16, 0, 32).best
    )
    assert beside.recompute_s.best < 0.3 * alone.recompute_s.best


@given(st.integers(1, 30_000), st.integers(1, 30_000), st.floats(1e5, 1e9))
@settings(max_examples=30, deadline=None)
def test_longer_prefixes_and_slower_tiers_take_longer(n, more, rate):
    near, far = Tier.given("near", rate), Tier.given("far", rate / 2)
    one = decide(setup(), n, near)
    longer = decide(setup(), n + more, near)
    assert longer.load_s.best >= one.load_s.best and longer.recompute_s.best > one.recompute_s.best
    assert decide(setup(), n, far).load_s.best > one.load_s.best
    assert decide(setup(), n, near, FP8).bytes * 2 == one.bytes


def test_ranks_load_their_own_share():
    assert decide(setup(place=Placement(tp=2)), 1600, FAST).bytes == 1600 * TOKEN_BYTES // 2
    assert decide(setup(latents(), Placement(tp=2)), 1600, FAST).bytes == decide(setup(latents()), 1600, FAST).bytes


def test_usual_tiers_come_from_the_device():
    found = {t.name: t for t in usual_tiers(CARD)}
    assert list(found) == ["neighbour", "host", "nvme", "network"]
    assert found["host"].bytes_per_s.high < CARD.host_bytes_per_s
    assert found["neighbour"].bytes_per_s.best == pytest.approx(0.8 * CARD.link_bytes_per_s)
    shared = replace(CARD, kind="soc", link_bytes_per_s=0.0)
    assert [t.name for t in usual_tiers(shared)] == ["nvme", "network"]
    assert "PCIe 4.0" in usual_tiers(replace(CARD, host_bytes_per_s=0.0))[1].how


def test_nonsense_is_refused():
    with pytest.raises(BadValue, match="bytes_per_s"):
        Tier.given("none", 0.0)
    with pytest.raises(BadValue, match="latency_s"):
        Tier.given("early", 1.0, -1.0)
    with pytest.raises(BadValue, match="tokens"):
        decide(setup(), 0, FAST)
    with pytest.raises(BadValue, match="rest_tokens"):
        decide(setup(), 1, FAST, rest_tokens=-1)


LOAD = Load(8448, 256, users=4)


@pytest.mark.parametrize(
    "place", [Placement(), Placement(tp=4), Placement(tp=2, pp=2), Placement(tp=8)], ids=lambda p: p.name
)
def test_a_cache_crosses_once_however_it_is_cut(place):
    assert shipped_bytes(setup(place=place), 8192) == 8192 * TOKEN_BYTES
    copies = max(1, place.tp // 4)  # 4 KV heads: with 8 ranks every head lies on two
    assert landed_bytes(setup(place=place), 8192) == 8192 * TOKEN_BYTES * copies


def test_latents_cross_once_and_land_on_every_rank():
    s = setup(latents(), Placement(tp=8))
    assert shipped_bytes(s, 8192) == 8192 * 8 * 160 * 2
    assert landed_bytes(s, 8192) == 8 * shipped_bytes(s, 8192)
    apart = setup(latents(), Placement(tp=8, attention_dp=True))
    assert landed_bytes(apart, 8192) == shipped_bytes(s, 8192)


def test_narrow_shipping_halves_bytes_exactly():
    wide, eight, four = (ship(setup(), LOAD, FAST, fmt) for fmt in (None, FP8, INT4))
    assert wide.bytes == 8192 * TOKEN_BYTES
    assert (eight.bytes * 2, four.bytes * 4) == (wide.bytes, wide.bytes)
    assert (wide.ratio, eight.ratio, four.ratio) == (1.0, 0.5, 0.25)
    assert eight.hide_bytes_per_s == pytest.approx(wide.hide_bytes_per_s / 2)


def test_a_transfer_hides_behind_equal_layers():
    """Layer i crosses while layer i + 1 is computed: all bytes over the prompt's seconds are enough."""
    found = ship(setup(), LOAD, FAST)
    assert found.hide_bytes_per_s == pytest.approx(found.bytes / found.prefill_s.best)
    just = ship(setup(), LOAD, Tier.given("just", found.hide_bytes_per_s))
    assert just.exposed_s == pytest.approx(just.transfer_s.best / 8)
    slow = ship(setup(), LOAD, Tier.given("slow", found.hide_bytes_per_s / 10))
    assert slow.exposed_s == pytest.approx(slow.transfer_s.best - slow.prefill_s.best * 7 / 8, rel=1e-6)
    assert found.transfer_s.best == pytest.approx(1e-3 + found.bytes / 1e9)
    assert found.share == pytest.approx(found.transfer_s.best / found.prefill_s.best)


UNEVEN = [
    (Full(), Full(), Window(16), Window(16)),
    (Window(16), Full()),
    (Full(), Window(16)),
    (Recurrent("toy", 4096), Full()),
]


@pytest.mark.parametrize("mixers", UNEVEN, ids=lambda m: " ".join(type(x).__name__ for x in m))
def test_the_hiding_rate_leaves_the_last_layer_and_no_less_would(mixers):
    s = setup(spec(*mixers))
    need = ship(s, LOAD, FAST).hide_bytes_per_s
    held = [x.kv_bytes(8192, s.kv_format) + 4 * x.state_elements for x in s.spec.layers]
    for rate in (need, 3 * need, 0.9 * need):
        found = ship(s, LOAD, Tier.given("t", rate))
        last = found.bytes * held[-1] / sum(held) / rate
        assert found.exposed_s == pytest.approx(last, rel=1e-6) if rate >= need else found.exposed_s > last * 1.0001


@given(st.floats(1e5, 1e9), st.sampled_from([DENSE, WINDOWS, STATES]))
@settings(max_examples=30, deadline=None)
def test_what_is_left_over_is_between_one_layer_and_the_whole(rate, model):
    found = ship(setup(model), LOAD, Tier.given("t", rate))
    assert 0 < found.exposed_s <= found.transfer_s.best * (1 + 1e-9)
    if rate >= found.hide_bytes_per_s * 1.001:
        last = ship(setup(model), LOAD, Tier.given("t", 1e30)).exposed_s + found.transfer_s.best / 2
        assert found.exposed_s < last


def test_hits_cross_no_more_but_states_do():
    half = replace(LOAD, hit_rate=0.5)
    assert ship(setup(), half, FAST).bytes == 4096 * TOKEN_BYTES
    state = 4 * STATES.state_elements
    assert ship(setup(STATES), half, FAST).bytes == 4096 * 4 * 512 + state


def test_users_send_prompts_as_fast_as_they_are_answered():
    s = setup()
    tpot = timing_of(s).decode(4, 8448 - 128).best
    ttft = timing_of(s).prefill(8192, 0, 0, 8192).best
    assert arrival_rate(s, LOAD) == pytest.approx(4 / (ttft + 256 * tpot))
    assert arrival_rate(s, LOAD, 1.0) == pytest.approx(4 / (1 + 256 * tpot))
    shipped = ship(s, LOAD, FAST)
    assert shipped.load_bytes_per_s == pytest.approx(shipped.rate_per_s * shipped.bytes)


def test_prefill_replicas_are_as_busy_as_prompts_arrive():
    decode, prefill = setup(place=Placement(tp=2)), setup()
    found = balance(prefill, decode, LOAD)
    assert found.prefill_replicas == pytest.approx(found.rate_per_s * found.prefill_s)
    assert found.whole_prefill_replicas - 1 < found.prefill_replicas <= found.whole_prefill_replicas
    assert found.devices_per_device == pytest.approx(found.prefill_replicas / 2)
    assert found.users_per_prefill_replica == pytest.approx(4 / found.prefill_replicas)
    assert balance(prefill, decode, LOAD, Tier.given("slow", 1e5)).rate_per_s < found.rate_per_s
    with pytest.raises(BadValue, match="decode"):
        balance(prefill, setup(WINDOWS), LOAD)


@given(st.integers(64, 4096), st.integers(1, 4))
@settings(max_examples=25, deadline=None)
def test_longer_answers_need_fewer_prefill_devices(output, times):
    assume(output * times < 30_000)
    short = Load(8192 + output, output, users=4)
    long = Load(8192 + output * (1 + times), output * (1 + times), users=4)
    assert balance(setup(), setup(), long).prefill_replicas < balance(setup(), setup(), short).prefill_replicas


def test_hits_save_seconds_and_bytes():
    load = Load(8192, 192, users=8)
    cold, half, most = hit_rate_curve(setup(), load, (0.0, 0.5, 0.9))
    assert (cold.saved_s, cold.saved_bytes, cold.cached_tokens) == (0.0, 0, 0)
    assert half.cached_tokens == 4000 and half.saved_bytes == 7 * 4000 * TOKEN_BYTES
    assert 0 < half.saved_s < most.saved_s
    assert cold.users_fit[1] < half.users_fit[1] < most.users_fit[1]
    warm = plan(setup(), replace(load, hit_rate=0.5))
    assert (half.ttft, half.users_fit) == (warm.latency.ttft, warm.users_fit)
    with pytest.raises(BadValue, match="hit_rate"):
        hit_rate_curve(setup(), load, (1.5,))

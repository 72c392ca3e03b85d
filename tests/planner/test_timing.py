"""Seconds of a placement on a toy device with round numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvist.cost.collective import traffic
from kvist.cost.device import Device
from kvist.cost.roofline import Efficiency, Roofline, Traffic
from kvist.cost.work import Chunk, ModelWork, Widths
from kvist.planner.timing import Timing
from kvist.spec.ffn import Ffn
from kvist.spec.format import BF16, FOREIGN, KVFormat
from kvist.spec.layer import Full, LayerSpec
from kvist.spec.model import ModelSpec
from kvist.spec.place import Placement
from kvist.spec.shard import rank_weights

TOY = Device("toy", "kvist", "gpu", 1 << 34, 1e9, {"bf16": 1e11, "f32": 1e10}, link_bytes_per_s=1e8)
ONE = Placement()
PLAIN = Efficiency(1.0, 1.0, 1.0, 1.0, 0.0, 0.0)
BF = KVFormat(BF16, BF16)
SPEC = ModelSpec("toy", 256, tuple(LayerSpec(i, Full(), 8, 4, 32, 32, ffn=Ffn(1024)) for i in range(8)), 4096, 65_536)


def timing(place=ONE, fmt=BF, spec=SPEC, **more):
    return Timing(spec, fmt, place, Widths(), Roofline(TOY), 512, 1e8, **more)


def test_decode_is_weights_and_cache_over_bandwidth():
    work = ModelWork(SPEC, BF).step([Chunk(1, 1000)])
    parts = Roofline(TOY).parts(work, Traffic(), PLAIN)
    assert parts.linear_s == pytest.approx((work.weight_bytes + work.activation_bytes) / 1e9)
    assert parts.attention_s == pytest.approx((work.kv_read_bytes + work.kv_write_bytes) / 1e9)
    assert parts.linear_bound == parts.attention_bound == "bandwidth"
    assert parts.total_s == pytest.approx(work.bytes / 1e9)


def test_prefill_is_arithmetic():
    work = ModelWork(SPEC, BF).step([Chunk(4096, 0)])
    parts = Roofline(TOY).parts(work, Traffic(), PLAIN)
    assert parts.linear_bound == "compute"
    assert parts.linear_s == pytest.approx(work.linear_flops / 1e11)


def test_low_best_high_are_in_order_and_tagged():
    found = timing().decode(4, 1000)
    assert found.low < found.best < found.high and found.tag == "assumed"


@given(st.integers(1, 32), st.integers(1, 60_000), st.integers(1, 4000))
def test_more_context_or_more_users_never_take_less_time(users, context, more):
    clock = timing()
    base = clock.decode(users, context).best
    assert clock.decode(users, context + more).best >= base
    assert clock.decode(users + 1, context).best >= base
    assert clock.prefill(context + more, 0, 0, context).best >= clock.prefill(context, 0, 0, context).best * (1 - 1e-9)


@given(st.integers(1, 16), st.integers(64, 60_000))
def test_fewer_bits_never_take_more_time(users, context):
    assert (
        timing(fmt=KVFormat(FOREIGN["fp8"], FOREIGN["fp8"])).decode(users, context).best
        <= timing().decode(users, context).best
    )


@given(st.integers(100, 20_000), st.integers(0, 20_000))
def test_a_cached_prefix_never_delays_the_first_token(prompt, cached):
    cached = min(cached, prompt - 1)
    assert timing().prefill(prompt, cached, 0, prompt).best <= timing().prefill(prompt, 0, 0, prompt).best * 1.01


def test_a_ring_moves_every_vector_almost_twice():
    rank = SPEC
    wire = traffic(rank, Placement(tp=4), 10, link_bytes_per_s=1e8)
    assert wire.messages == 16
    assert wire.bytes == pytest.approx(16 * 2 * 3 / 4 * 256 * 2 * 10)
    assert traffic(rank, Placement(), 10, link_bytes_per_s=1e8).bytes == 0


def test_stages_follow_each_other():
    one, two = timing(), timing(Placement(pp=2))
    assert two.step([Chunk(1, 1000)]).best == pytest.approx(one.step([Chunk(1, 1000)]).best, rel=0.3)
    assert len(two.stages) == 2
    assert sum(s.dense_elements for s in two.stages) == one.stages[0].dense_elements
    assert [s.head_size for s in two.stages] == [0, 4096 * 256]


def test_attention_dp_serves_a_share_of_the_users_on_each_rank():
    assert timing(Placement(tp=4, attention_dp=True)).local(10) == 3
    assert timing(Placement(tp=4)).local(10) == 10


def test_bursts_fill_the_stages():
    """Eight prompts over two stages: about half the time of one device that has the same rates, not the same time."""
    one, two = timing().burst(8, 4096, 0), timing(Placement(pp=2)).burst(8, 4096, 0)
    assert 0.5 <= two.last_s / one.last_s < 0.65
    assert timing(Placement(pp=2)).burst(1, 4096, 0).first_s == pytest.approx(
        timing().burst(1, 4096, 0).first_s, rel=0.05
    )


MIXED = Ffn(0, experts=16, active=2, expert_width=64)
MOE = ModelSpec("moe", 256, (LayerSpec(0, Full(), 8, 8, 32, 32, ffn=MIXED),), 64, 64)


def test_experts_are_dealt_out_and_cut():
    """Every way to spread 16 experts over eight ranks holds each weight once and moves every token's rows once."""
    whole = 16 * 3 * 256 * 64
    for place in (Placement(tp=8), Placement(tp=8, ep=8), Placement(tp=8, ep=4), Placement(tp=2, dp=4, ep=8)):
        assert place.tp * place.dp * rank_weights(MOE, place).experts == whole * (1 if place.ep > 1 else place.dp)
        stage = timing(place, spec=MOE).stages[0]
        work = stage.step([Chunk(64)])
        experts = work.linear_flops - 2 * 64 * stage.dense_elements
        tokens = 64 * (place.dp if place.ep > place.tp else 1)
        assert place.tp * place.dp * experts == pytest.approx(
            2 * tokens * 2 * 3 * 256 * 64 * (1 if place.ep > 1 else place.dp)
        )


def test_all_to_all_moves_a_ranks_own_tokens():
    """Eight ranks with whole attention send what eight replicas with the same tokens would."""
    apart = traffic(MOE, Placement(dp=8, ep=8), 16, link_bytes_per_s=1.0)
    group = traffic(MOE, Placement(tp=8, ep=8, attention_dp=True), 16, link_bytes_per_s=1.0)
    assert apart.bytes == group.bytes > 0

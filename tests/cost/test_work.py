"""FLOPs and bytes of a step against sums written out by hand, and the properties every step has."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvist.cost.work import Chunk, ModelWork, Widths
from kvist.spec.ffn import Ffn
from kvist.spec.format import BF16, KVFormat
from kvist.spec.layer import Attention, Full, Latent, LayerSpec, Recurrent, Shared, Window
from kvist.spec.model import ModelSpec

BF = KVFormat(BF16, BF16)
HIDDEN, VOCAB = 32, 100


def layer(mixer=None, index=0, **more):
    shape = {"q_heads": 4, "kv_heads": 2, "key_dim": 8, "value_dim": 8, "ffn": Ffn(64), **more}
    return LayerSpec(index, mixer or Full(), **shape)


def work(*layers, **more):
    return ModelWork(ModelSpec("toy", HIDDEN, tuple(layers), VOCAB, 1 << 20), BF, **more)


DENSE = 4 * 8 * HIDDEN * 2 + 2 * 2 * 8 * HIDDEN + 3 * 64 * HIDDEN + 2 * HIDDEN
"""q and o of 4 heads, k and v of 2, a gated MLP of 64, two norms."""


def test_one_decode_step_by_hand():
    w = work(layer()).step([Chunk(1, 9)])
    assert w.linear_flops == 2 * DENSE
    assert w.weight_bytes == 2 * DENSE
    assert w.head_flops == 2 * VOCAB * HIDDEN == w.head_bytes
    assert w.attention_flops == 2 * 4 * 16 * 10  # 4 heads, k and v of 8, 10 keys: its own included
    assert w.kv_read_bytes == 10 * 2 * 16 * 2
    assert w.kv_write_bytes == 2 * 16 * 2


def test_prefill_counts_every_pair_once_and_reads_rows_once():
    w = work(layer()).step([Chunk(10, 0)])
    assert w.attention_flops == 2 * 4 * 16 * (10 * 11 // 2)
    assert w.kv_read_bytes == 10 * 2 * 16 * 2
    assert w.weight_bytes == 2 * DENSE
    assert w.linear_flops == 20 * DENSE


@given(st.integers(0, 300), st.lists(st.integers(1, 60), min_size=1, max_size=6))
def test_chunks_of_a_prompt_compute_what_the_whole_prompt_does(cached, sizes):
    model = work(layer(), layer(Window(40, 2), 1), layer(Recurrent("delta", 64), 2, q_heads=0, kv_heads=0))
    whole = model.step([Chunk(sum(sizes), cached)])
    at, parts = cached, []
    for size in sizes:
        parts.append(model.step([Chunk(size, at)]))
        at += size
    for name in ("linear_flops", "attention_flops", "state_flops", "kv_write_bytes"):
        assert sum(getattr(p, name) for p in parts) == pytest.approx(getattr(whole, name))


@given(st.integers(1, 5000))
def test_a_window_reads_no_more_than_its_size(context):
    w = work(layer(Window(64))).step([Chunk(1, context)])
    assert w.kv_read_bytes == min(64, context + 1) * 64


def test_a_layer_that_shares_a_cache_reads_it_again_and_writes_nothing():
    one, two = work(layer()).step([Chunk(1, 99)]), work(layer(), layer(Shared(0), 1)).step([Chunk(1, 99)])
    assert two.kv_read_bytes == 2 * one.kv_read_bytes
    assert two.kv_write_bytes == one.kv_write_bytes


def test_latent_rows_are_read_once_for_all_heads():
    mla = layer(Latent(64, 16), q_heads=16, kv_heads=16, key_dim=24, value_dim=16, attention=Attention(nope_dim=8))
    assert work(mla).step([Chunk(1, 9)]).kv_read_bytes == 10 * 80 * 2


def test_expanded_latents_are_taken_where_they_cost_less():
    mla = layer(Latent(512, 64), q_heads=16, kv_heads=16, key_dim=192, value_dim=128, attention=Attention(nope_dim=128))
    long = work(mla).step([Chunk(4096, 0)]).attention_flops
    assert long < mla.attention_flops(4096, 4096)
    assert work(mla).step([Chunk(1, 4096)]).attention_flops == mla.attention_flops(1, 4097)
    assert long == 2 * 16 * 320 * (4096 * 4097 // 2)  # new rows are expanded by the linear layers
    behind = work(mla).step([Chunk(4096, 1000)]).attention_flops
    assert behind == 2 * 16 * 320 * (4096 * 4097 // 2 + 4096 * 1000) + 2 * 512 * 16 * 256 * 1000  # cached ones again


def test_experts_wake_as_chance_has_it():
    moe = layer(ffn=Ffn(0, experts=8, active=2, expert_width=16))
    one = 3 * HIDDEN * 16
    model = work(moe)
    assert model.expert_elements(1) == pytest.approx(2 * one)
    assert model.expert_elements(2) == pytest.approx((8 - 8 * 0.75**2) * one)
    assert model.expert_elements(10_000) == pytest.approx(8 * one)
    assert model.step([Chunk(3)]).linear_flops == 2 * 3 * (model.dense_elements + 2 * one)


def test_sparse_attention_reads_its_best_rows_only():
    sparse = layer(attention=Attention(top_rows=16))
    assert work(sparse).step([Chunk(1, 999)]).kv_read_bytes == 16 * 64


def test_narrow_weights_move_fewer_bytes_and_compute_the_same():
    wide, narrow = (work(layer(), widths=Widths(b, b, b)).step([Chunk(1, 9)]) for b in (2.0, 0.5))
    assert narrow.weight_bytes * 4 == wide.weight_bytes
    assert narrow.flops == wide.flops


def test_context_parallel_ranks_share_the_rows():
    one, four = (work(layer(), cp=n).step([Chunk(1, 399)]) for n in (1, 4))
    assert four.kv_read_bytes * 4 == one.kv_read_bytes
    assert four.linear_flops == one.linear_flops
    assert four.attention_flops == one.attention_flops  # for the queries of all four


def test_intensity_grows_with_the_batch():
    model = work(layer())
    assert [model.step([Chunk(1, 10)] * n).intensity for n in (1, 8, 64)] == sorted(
        model.step([Chunk(1, 10)] * n).intensity for n in (1, 8, 64)
    )


def test_an_indexers_keys_are_all_read():
    sparse = layer(Full(index_dim=4), attention=Attention(top_rows=16, index_heads=2))
    assert work(sparse).step([Chunk(1, 999)]).kv_read_bytes == 16 * 64 + 1000 * 8 * sparse.kv_heads


def test_where_attention_is_whole_the_rest_sees_every_ranks_tokens():
    moe = layer(ffn=Ffn(0, experts=64, active=2, expert_width=16, shared_width=8))
    alone, four = work(moe), work(moe, ffn_ranks=4, expert_ranks=4, expert_share=0.25)
    assert four.expert_elements(8) == pytest.approx(work(moe, expert_share=0.25).expert_elements(32))
    more = four.step([Chunk(8)]).linear_flops - alone.step([Chunk(8)]).linear_flops
    assert more == 2 * 8 * 3 * alone.ffn_elements


def test_chunks_may_be_counted():
    model = work(layer())
    assert model.step({Chunk(1, 50): 3, Chunk(9, 0): 1}) == model.step([Chunk(1, 50), Chunk(9, 0), *[Chunk(1, 50)] * 2])

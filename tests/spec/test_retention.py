"""Which tokens a layer keeps, holds and reads: closed forms against counting positions one by one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_kit import Compressed, Full, Latent, Shared, Window, layer

from kvist.spec.layer import Attention, Retention
from kvist.spec.retention import compressed_reads

RETENTIONS = st.one_of(
    st.just(Retention()),
    st.builds(Retention, window_tokens=st.integers(1, 40), sinks=st.integers(0, 9)),
    st.builds(Retention, chunk_tokens=st.integers(1, 40)),
)


def visible(retention, position):
    """Positions a query may read, itself included, from the definition."""
    if retention.window_tokens is not None:
        return {p for p in range(position + 1) if p > position - retention.window_tokens or p < retention.sinks}
    if retention.chunk_tokens is not None:
        return {p for p in range(position + 1) if p // retention.chunk_tokens == position // retention.chunk_tokens}
    return set(range(position + 1))


@given(RETENTIONS, st.integers(0, 150))
def test_kept_tokens_are_what_the_next_query_sees(retention, n):
    assert retention.kept_tokens(n) == len(visible(retention, n) - {n})


@given(RETENTIONS, st.integers(1, 150))
def test_held_tokens_are_what_the_last_query_sees(retention, n):
    assert retention.held_tokens(n) == len(visible(retention, n - 1))


@given(RETENTIONS, st.integers(0, 100), st.integers(0, 60))
def test_read_tokens_sum_over_queries(retention, start, length):
    expected = sum(len(visible(retention, p)) for p in range(start, start + length))
    assert retention.read_tokens(start, start + length) == expected


def test_f101_a_window_holds_the_window_or_the_sequence():
    window = Retention(window_tokens=128)
    assert [window.held_tokens(n) for n in (0, 1, 127, 128, 129, 32_768)] == [0, 1, 127, 128, 128, 128]
    assert Retention(window_tokens=4096).held_tokens(1000) == 1000


def test_a_window_with_sinks_and_a_chunk():
    assert Retention(window_tokens=10, sinks=4).held_tokens(100) == 14
    assert Retention(window_tokens=10, sinks=4).held_tokens(12) == 12
    assert Retention(chunk_tokens=8192).held_tokens(8192) == 8192
    assert Retention(chunk_tokens=8192).held_tokens(8193) == 1


@given(st.integers(0, 300), st.integers(1, 9), st.integers(0, 12))
def test_compressed_rows_read(n, every, top):
    assert compressed_reads(n, every, top) == sum(min((p + 1) // every, top or n + 1) for p in range(n))


def test_sparse_layers_read_their_best_rows_only():
    sparse = layer(Latent(512, 64, 128))
    sparse = type(sparse)(
        **{n: getattr(sparse, n) for n in sparse.__slots__ if n != "attention"}, attention=Attention(top_rows=100)
    )
    assert sparse.rows_read(0, 50) == 50 * 51 // 2
    assert sparse.rows_read(1000, 1010) == 10 * 100
    assert layer(Latent(512, 64)).rows_read(1000, 1010) == sum(range(1001, 1011))


@pytest.mark.parametrize("mixer", [Full(), Window(64), Window(64, 4)])
def test_attention_flops_count_multiply_and_add(mixer):
    one = layer(mixer, q=4, kv=2, key=16)
    assert one.attention_flops(1, 50) == 2 * 4 * 32 * 50
    assert one.attention_flops(3, 50) == 2 * 4 * 32 * (48 + 49 + 50)
    assert one.attention_flops(1, 500) == 2 * 4 * 32 * one.retention.held_tokens(500)


def test_absorbed_mla_scores_rank_plus_rope_and_weighs_rank():
    assert layer(Latent(512, 64), q=16, kv=1).attention_flops(1, 10) == 2 * 16 * (2 * 512 + 64) * 10


def test_a_sharing_layer_reads_through_its_own_window():
    assert layer(Shared(0, 32)).rows_read(99, 100) == 32
    assert layer(Shared(0)).rows_read(99, 100) == 100


def test_compressed_layers_read_window_and_rows():
    both = layer(Compressed(window_tokens=8, ratio=4), kv=1, key=512)
    assert both.rows_read(0, 8) == sum(range(1, 9)) + (0 + 0 + 0 + 1 + 1 + 1 + 1 + 2)
    assert layer(Compressed(window_tokens=8), kv=1).rows_read(20, 21) == 8


def test_usable_prefix_of_a_window_needs_only_its_tail():
    window = layer(Window(32))
    assert window.usable_prefix((False, False, True, True), 16) == 64
    assert window.usable_prefix((True, True, False, True), 16) == 32
    assert layer(Full()).usable_prefix((True, False, True), 16) == 16
    assert layer(Window(32, sinks=4)).usable_prefix((False, False, True, True), 16) == 0

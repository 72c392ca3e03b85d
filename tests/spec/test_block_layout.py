"""Where the bytes lie: worked examples by hand, then laws over random models."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_kit import (
    Chunked,
    Compressed,
    Full,
    Latent,
    NoMixer,
    Recurrent,
    Shared,
    Window,
    layer,
    model,
    uniform,
)

from kvist.errors import BadValue, ModelError
from kvist.spec.format import BF16, F16, F32, KVFormat
from kvist.spec.layout import ALIGN_BYTES, CELL_TOKENS, HASH_TOKENS, MAX_GROUPS, plan_layout

BF = KVFormat(BF16, BF16)
HALF = KVFormat(F16, F16)
MIXED = KVFormat(F32, F16)


def test_the_worked_example():
    """40 layers, 8 KV heads, head_dim 128, BF16: 163,840 bytes a token, and a block of 32 is 5 MiB without padding."""
    spec = uniform(40)
    layout = plan_layout(spec, BF)
    assert spec.kv_bytes_per_token(BF) == 163_840
    assert layout.block_bytes == 163_840 * 32
    assert layout.bytes_for(4096) == 163_840 * 4096
    assert layout.padding_bytes_per_block(layout.groups[0]) == 0


def gpt_oss_20b():
    return model(*(layer(Window(128) if i % 2 == 0 else Full(), kv=8, key=64) for i in range(24)))


F099 = {
    "multi-head": (uniform(32, kv=32), HALF, 1, 524_288),
    "grouped": (uniform(32), HALF, 1, 131_072),
    "one head": (uniform(32, kv=1, key=64), HALF, 1, 8192),
    "float32": (uniform(30, q=9, kv=3, key=64), KVFormat(F32, F32), 1, 46_080),
    "K and V in different formats": (uniform(1), MIXED, 1, 8 * (128 * 4 + 128 * 2)),
    "K wider than V": (uniform(1, kv=4, key=192, value=128), HALF, 1, 2560),
    "latent": (model(*(layer(Latent(512, 64)) for _ in range(61))), HALF, 1, 70_272),
    "latent with an index": (model(*(layer(Latent(512, 64, 128)) for _ in range(61))), HALF, 1, 85_888),
    "windows of 128 in every second layer": (gpt_oss_20b(), HALF, 131_072, 12 * 2048 * (131_072 + 128)),
    "a window longer than the sequence": (uniform(2, mixer=Window(4096)), HALF, 1000, 2 * 4096 * 1000),
    "a window and 4 sinks": (uniform(1, mixer=Window(100, 4)), HALF, 5000, 4096 * 104),
    "chunks in 3 of 4 layers": (
        model(*(layer(Chunked(8192)) for _ in range(3)), layer()),
        HALF,
        10_000,
        4096 * (3 * 1808 + 10_000),
    ),
    "layers that read another's cache": (model(layer(), layer(Shared(0)), layer(Shared(0))), HALF, 7, 7 * 4096),
    "states beside attention": (
        model(*(layer(Recurrent("x", 10, 2), q=0, kv=0, key=0) for _ in range(3)), layer(kv=4, key=256)),
        HALF,
        32,
        32 * 4096,
    ),
    "layers with heads of their own, and none": (
        model(layer(kv=8), layer(NoMixer(), q=0, kv=0, key=0), layer(kv=2)),
        HALF,
        1,
        4096 + 1024,
    ),
    "a window, and one row for every 4 tokens": (
        model(layer(Compressed(128, 4, 128), kv=1, key=512)),
        HALF,
        1026,
        128 * 1024 + 256 * 1280,
    ),
}


@pytest.mark.parametrize("case", F099)
def test_f099_hand_computed_bytes(case):
    spec, fmt, tokens, expected = F099[case]
    assert spec.kv_bytes(tokens, fmt) == expected


def test_state_is_counted_apart():
    spec = model(*(layer(Recurrent("gated_delta", 786_432, 30_720), q=0, kv=0, key=0) for _ in range(48)), layer())
    layout = plan_layout(spec, HALF)
    assert (
        spec.state_elements * 4 == layout.state_bytes == 156_893_184
    )  # 149.6 MiB, as llama.cpp prints for Qwen3.5-27B
    assert layout.state_blocks == -(-156_893_184 // layout.block_bytes)


def test_two_geometries_share_one_block_size():
    """Gemma 4: 25 windowed layers of 8 x 256, 5 full ones of 2 x 512: half the bytes, so twice the tokens a block."""
    mixers = [layer(Window(1024), kv=8, key=256) if i % 6 != 5 else layer(kv=2, key=512) for i in range(30)]
    layout = plan_layout(model(*mixers), HALF)
    assert [(len(g.layers), g.tokens_per_block) for g in layout.groups] == [(5, 32)] * 5 + [(5, 64)]
    assert all(layout.padding_bytes_per_block(g) == 0 for g in layout.groups)
    assert layout.span_tokens == 64


def test_places_of_compressed_layers():
    spec = model(*(layer(Compressed(128, ratio, buffer_elements=5), kv=1, key=512) for ratio in (0, 4, 128, 4)))
    layout = plan_layout(spec, HALF)
    assert [len(layout.places_of(i)) for i in range(4)] == [1, 2, 2, 2]
    (window, _), (rows, _) = layout.places_of(2)
    assert layout.place_of(2)[0] == window
    assert window.retention.window_tokens == 128 and not rows.retention.bounded
    assert rows.every_tokens == 128 and rows.tokens_per_block == rows.rows_per_block * 128


def test_refusals():
    with pytest.raises(BadValue, match="block_tokens=48"):
        plan_layout(uniform(1), HALF, block_tokens=48)
    with pytest.raises(ModelError, match="no cache at all"):
        plan_layout(model(layer(NoMixer(), q=0, kv=0, key=0)), HALF)
    with pytest.raises(KeyError):
        plan_layout(model(layer(), layer(Shared(0))), HALF).place_of(1)


def test_a_model_of_states_only_still_has_a_block():
    layout = plan_layout(model(layer(Recurrent("x", 100), q=0, kv=0, key=0)), HALF)
    assert layout.groups == () and layout.block_bytes == 448 and layout.state_blocks == 1


MIXERS = st.one_of(
    st.just(Full()),
    st.just(Full(index_dim=32)),
    st.builds(Window, st.sampled_from([1, 7, 16, 40, 128, 300]), st.sampled_from([0, 0, 1, 20])),
    st.builds(Chunked, st.sampled_from([16, 50, 64, 256])),
    st.builds(Latent, st.sampled_from([24, 64]), st.just(8), st.sampled_from([0, 16])),
    st.builds(Compressed, st.just(40), st.sampled_from([0, 4, 32]), st.sampled_from([0, 16]), st.just(3)),
    st.builds(Recurrent, st.just("mamba2"), st.integers(1, 5000)),
    st.just(NoMixer()),
)


@st.composite
def models(draw):
    kinds = [
        layer(draw(MIXERS), kv=draw(st.sampled_from([1, 2, 3, 8])), key=draw(st.sampled_from([20, 64, 96])),
              value=draw(st.sampled_from([20, 64])))
        for _ in range(draw(st.integers(1, 4)))
    ]  # fmt: skip
    layers = [kinds[i] for i in draw(st.lists(st.integers(0, len(kinds) - 1), min_size=1, max_size=40))]
    return model(*layers, layer())


LAYOUTS = st.builds(
    lambda spec, fmt, tokens: (spec, plan_layout(spec, fmt, block_tokens=tokens)),
    models(),
    st.sampled_from([HALF, BF, MIXED]),
    st.sampled_from([16, 32, 64]),
)


@given(LAYOUTS)
def test_every_cache_part_is_in_exactly_one_group(pair):
    spec, layout = pair
    seen = [(i, g.retention, g.every_tokens, tuple(s.row for s in g.streams)) for g in layout.groups for i in g.layers]
    owed = [(x.index, p.retention, p.every_tokens, p.rows) for x in spec.layers for p in x.cache_parts]
    assert sorted(map(repr, seen)) == sorted(map(repr, owed))


@given(LAYOUTS)
def test_tiles_are_inside_their_block_disjoint_and_aligned(pair):
    _, layout = pair
    for group in layout.groups:
        ends = []
        for place in range(group.places):
            for head in range(group.kv_heads):
                for i, stream in enumerate(group.streams):
                    start = group.offset_bytes(place, head, i)
                    rows = group.rows_per_block
                    assert start % ALIGN_BYTES == 0
                    assert stream.tile_bytes == stream.element.row_bytes(stream.row.dim) * rows
                    ends.append((start, start + stream.tile_bytes))
        ends.sort()
        assert ends[0][0] == 0 and ends[-1][1] <= layout.block_bytes
        assert all(a[1] <= b[0] for a, b in zip(ends, ends[1:], strict=False))


@given(LAYOUTS)
def test_tokens_per_block_and_padding(pair):
    spec, layout = pair
    kinds = {(x.retention, p) for x in spec.layers for p in x.cache_parts}
    assert 0 < len(layout.groups) <= max(MAX_GROUPS, len(kinds))
    for group in layout.groups:
        assert group.rows_per_block % HASH_TOKENS == 0 and CELL_TOKENS % group.rows_per_block == 0
        assert 0 < len(group.layers) <= group.places
        rows = sum(s.element.row_bytes(s.row.dim) for s in group.streams) * group.kv_heads
        used = len(group.layers) * rows * group.rows_per_block
        assert layout.padding_bytes_per_block(group) == layout.block_bytes - used >= 0


def held_blocks(group, n):
    """Blocks with a row that is still needed, and the open one: position by position."""
    t, keep = group.tokens_per_block, set()
    first = group.retention.first_needed(n)
    for p in range(n):
        if p >= first or p < group.retention.sinks:
            keep.add(p // t)
    if n % t:
        keep.add(n // t)
    return keep


@settings(max_examples=60)
@given(LAYOUTS, st.integers(0, 700))
def test_blocks_for_is_what_position_by_position_says(pair, n):
    _, layout = pair
    assert layout.blocks_for(n) == sum(len(held_blocks(g, n)) for g in layout.groups)
    assert layout.bytes_for(n) == layout.blocks_for(n) * layout.block_bytes


@settings(max_examples=60)
@given(LAYOUTS, st.integers(1, 600), st.integers(1, 90))
def test_peak_blocks_bound_every_step_on_the_way(pair, n, step):
    _, layout = pair
    for group in layout.groups:
        worst = 0
        for start in range(0, n, step):
            end = min(start + step, n)
            t = group.tokens_per_block
            worst = max(worst, len(held_blocks(group, start) | {p // t for p in range(start, end)}))
        single = type(layout)((group,), layout.block_bytes, layout.format)
        assert worst <= single.peak_blocks_for(n, step) <= max(worst + 3, -(-n // t))


@given(st.integers(1, 60), st.sampled_from([HALF, BF, MIXED]), st.integers(0, 40))
def test_bytes_are_linear_in_whole_blocks(n_layers, fmt, blocks):
    """A model of equal layers wastes nothing: bytes = tokens x bytes per token."""
    spec = uniform(n_layers, kv=2, key=64)
    layout = plan_layout(spec, fmt)
    tokens = blocks * layout.span_tokens
    assert len(layout.groups) == 1
    assert layout.bytes_for(tokens) == spec.kv_bytes_per_token(fmt) * tokens == spec.kv_bytes(tokens, fmt)


@given(models(), st.sampled_from([HALF, MIXED]))
def test_the_pool_never_gives_less_than_the_rows_take(spec, fmt):
    layout = plan_layout(spec, fmt)
    assert layout.bytes_for(2049) + layout.groups.__len__() * layout.block_bytes >= spec.kv_bytes(2049, fmt)


def test_padding_of_real_mixtures_stays_small():
    """Latents with and without an index (GLM-5.2), 8 and 4 heads (MiMo): under 12 % of a sequence of 8K."""
    glm = model(*(layer(Latent(512, 64, 128 if i % 4 == 0 else 0)) for i in range(78)))
    mimo = model(
        *(
            layer(kv=4, key=192, value=128) if i % 6 == 0 else layer(Window(129), kv=8, key=192, value=128)
            for i in range(48)
        )
    )
    for spec in (glm, mimo):
        layout = plan_layout(spec, HALF)
        assert layout.span_tokens == 32
        assert layout.bytes_for(8192) < 1.12 * (spec.kv_bytes(8192, HALF) + len(layout.groups) * layout.block_bytes)

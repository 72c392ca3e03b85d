"""The decoder on specs that no library has, the batch it is given, and what it refuses."""

from dataclasses import replace

import dense_judge
import numpy as np
import pytest
import torch
from small import spec_of, tokens_of, weights_of

from kvist.errors import BadValue, ModelError, StateError
from kvist.kernels.attention import registry as attention_registry
from kvist.kernels.ops.reference import ReferenceOps
from kvist.model.batch import SequenceRows, build_batch
from kvist.model.decoder import Decoder
from kvist.model.rope import RopeTables
from kvist.model.single import PrivatePool, SingleOptions, SingleSequence
from kvist.spec.format import KVFormat
from kvist.spec.layer import Chunked, Ffn, Full, Latent, NoMixer, Recurrent, Shared, Window
from kvist.spec.layout import plan_layout
from kvist.spec.rope import Rope

VARIANTS = attention_registry.available()
MIXES = {
    "full": (Full(), Full()),
    "sinks": (Window(12, sinks=3), Window(12, sinks=3)),
    "many sinks": (Window(5, sinks=20), Full()),
    "chunked": (Chunked(16), Full(), Chunked(16)),
    "odd chunks": (Chunked(11), Chunked(11)),
    "mixed": (Window(10), Full(), Window(10), Window(7)),
    "shared": (Full(), Window(9), Shared(0), Shared(1, window_tokens=9)),
}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def chunks(sequence, tokens, size):
    starts = range(0, len(tokens), size)
    return torch.cat([sequence.feed(tokens[a : a + size], a) for a in starts])


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("block_tokens", [16, 32])
@pytest.mark.parametrize("mix", MIXES)
def test_every_mixer_against_plain_loops(mix, block_tokens, variant):
    """Blocks behind windows are given back and poisoned on the way, so a read of them would be NaN."""
    spec = spec_of(*MIXES[mix])
    weights, tokens = weights_of(spec), tokens_of(70)
    expected = dense_judge.logits(spec, weights, tokens)
    assert expected.std() > 0.5
    options = SingleOptions(capacity_tokens=96, block_tokens=block_tokens, variant=variant)
    whole = SingleSequence(spec, weights, options).feed(tokens, 0)
    assert (whole - expected).abs().max() < 2e-5
    for size in (1, 13):
        assert torch.equal(chunks(SingleSequence(spec, weights, options), tokens, size), whole)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("mixer", [Full(), Window(600), Window(40, sinks=5), Chunked(512)], ids=str)
def test_several_cells_are_cut_the_same_way(mixer, variant):
    """Over 1,100 positions: prefill in big and odd chunks, then decode, bit by bit the same; near plain products."""
    spec = spec_of(mixer)
    weights, tokens = weights_of(spec), tokens_of(1103)
    options = SingleOptions(capacity_tokens=1200, variant=variant)
    big = chunks(SingleSequence(spec, weights, options), tokens, 1100)
    odd = SingleSequence(spec, weights, options)
    parts = [odd.feed(tokens[a:b], a) for a, b in [(0, 500), (500, 513), (513, 1024), (1024, 1101)]]
    parts += [odd.feed(tokens[i : i + 1], i) for i in (1101, 1102)]
    assert torch.equal(torch.cat(parts), big)
    fast = SingleSequence(spec, weights, replace(options, numerics="fast")).feed(tokens, 0, logits="last")
    assert (fast[0] - big[-1]).abs().max() < 1e-4


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_window_of_the_past_lives_in_a_pool_of_its_size(variant):
    """300 tokens through windows of 20 need five blocks of 16, whoever held them before."""
    spec = spec_of(Window(20), Window(20))
    weights, tokens = weights_of(spec), tokens_of(300)
    roomy = SingleSequence(spec, weights, SingleOptions(capacity_tokens=320, block_tokens=16, variant=variant))
    tight = SingleSequence(spec, weights, SingleOptions(capacity_tokens=48, block_tokens=16, variant=variant))
    assert torch.equal(chunks(tight, tokens, 11), chunks(roomy, tokens, 300))


def test_logits_are_returned_for_the_rows_asked_for():
    spec = spec_of()
    pool = PrivatePool(spec, weights_of(spec))
    tables = tuple(np.array(pool.take(2), dtype=np.int32) for _ in pool.layout.groups)

    def run(tokens, start, rows, write_from=0):
        part = SequenceRows(np.array(tokens), start, tables, np.array(rows, dtype=np.int32), write_from)
        return pool.decoder.forward(build_batch(pool.layout, [part]))

    tokens = tokens_of(40)
    every = run(tokens, 0, range(40))
    assert torch.equal(run(tokens, 0, [39, 3, 3]), every[[39, 3, 3]])
    assert run(tokens, 0, []).shape == (0, spec.vocab)
    before = pool.pool.clone()
    assert torch.equal(run(tokens[39:], 39, [0], write_from=40), every[39:]), "recomputed from sealed blocks"
    run([tokens[39] + 1], 39, [0], write_from=40)
    assert torch.equal(pool.pool, before), "and nothing written"
    run([tokens[39] + 1], 39, [0])
    assert not torch.equal(pool.pool, before), "the check can see a write"


def test_logits_belong_to_the_caller():
    spec = spec_of()
    sequence = SingleSequence(spec, weights_of(spec))
    first = sequence.feed([1, 2, 3], 0)
    kept = first.clone()
    sequence.feed([4, 5, 6], 3)
    assert torch.equal(first, kept)


def test_a_poisoned_row_shows():
    """NaN in a row that is read comes out as NaN: poison would not be noticed otherwise."""
    spec = spec_of()
    sequence = SingleSequence(spec, weights_of(spec))
    sequence.feed([1, 2, 3], 0)
    sequence.pool.pool[sequence._tables[0][0]] = 0xFF
    assert torch.isnan(sequence.feed([4], 3)).all()


def test_a_batch_that_disagrees_with_itself_is_refused():
    spec = spec_of(Full(), Window(9))
    pool = PrivatePool(spec, weights_of(spec))
    tables = tuple(np.array(pool.take(1), dtype=np.int32) for _ in pool.layout.groups)
    part = SequenceRows(np.arange(5), 0, tables, np.array([4], dtype=np.int32))
    good = build_batch(pool.layout, [part])
    later = build_batch(pool.layout, [replace(part, start=2)])
    for bad, words in [
        (replace(good, groups=good.groups[:1]), "batch has 1 groups, the layout 2"),
        (replace(good, positions=good.positions[:4]), "5 tokens with 4 positions"),
        (replace(good, positions=good.positions + 1), "causal limit"),
        (replace(good, groups=later.groups), "causal limit"),
        (replace(good, tokens=good.tokens + spec.vocab), "the vocabulary has 101"),
        (replace(good, tokens=good.tokens - 1), "go from -1"),
        (replace(good, groups=(replace(good.groups[0], block=good.groups[0].block[:2]), good.groups[1])), "5 tokens"),
    ]:
        with pytest.raises(StateError, match=words):
            pool.decoder.forward(bad)
    with pytest.raises(StateError, match="has 1 blocks, its rows need 2"):
        build_batch(pool.layout, [replace(part, start=30)])
    assert torch.isfinite(pool.decoder.forward(good)).all()


def one(spec, **changes):
    return replace(spec, layers=(spec.layers[0], replace(spec.layers[1], **changes)))


BASE = spec_of(Full(), Full())
REFUSED = {
    "shapes only": replace(BASE, shape_only=True),
    "altup is not implemented": replace(BASE, unsupported=("altup",)),
    "layer norm": replace(BASE, final_norm="layer"),
    "no layers": replace(BASE, layers=()),
    "layer 1: mixer Recurrent": one(BASE, mixer=Recurrent("mamba2", 64)),
    "layer 1: mixer NoMixer": one(BASE, mixer=NoMixer()),
    "layer 1: sparse attention": one(BASE, mixer=Latent(16, 8, index_dim=8)),
    "learned logits": one(BASE, attention=replace(BASE.layers[1].attention, sink_logits=True)),
    "kind longrope": one(BASE, attention=replace(BASE.layers[1].attention, rope=Rope(16, 1e4, "unsupported:longrope"))),
    "24 rotated dims do not fit": one(BASE, attention=replace(BASE.layers[1].attention, rope=Rope(24, 1e4))),
    "7 query heads do not divide among 3": one(BASE, q_heads=7),
    "8 experts": one(BASE, ffn=Ffn(64, experts=8, active=2, expert_width=16)),
    "without a gate": one(BASE, ffn=Ffn(64, gated=False)),
    "activation relu2": one(BASE, ffn=Ffn(64, activation="relu2")),
    "without a feed-forward": one(BASE, ffn=None),
    "layer 1: it reads the cache of layer 5": one(BASE, mixer=Shared(5)),
    "its window \\(4\\) differs": one(BASE, mixer=Shared(0, window_tokens=4)),
    "its heads differ": one(BASE, mixer=Shared(0), kv_heads=6),
    "un-rotated": one(BASE, mixer=Latent(16, 8)),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_has_no_code_is_refused_with_layer_and_reason(words):
    spec = REFUSED[words]
    layout = plan_layout(BASE, KVFormat.parse("f32"))
    pool = torch.zeros(1, layout.block_bytes, dtype=torch.uint8)
    with pytest.raises(ModelError, match=words) as caught:
        Decoder(spec, weights_of(BASE), ops=ReferenceOps(), kernels=[], layout=layout, pool=pool)
    assert "kvist model" in caught.value.remedy


def test_the_parts_must_fit():
    layout = plan_layout(BASE, KVFormat.parse("f32"))
    pool = torch.zeros(1, layout.block_bytes, dtype=torch.uint8)

    def make(**changes):
        kernels = [attention_registry.load("reference")]
        parts = {"ops": ReferenceOps(), "kernels": kernels, "layout": layout, "pool": pool} | changes
        return Decoder(BASE, weights_of(BASE), **parts)

    make()
    with pytest.raises(BadValue, match="numerics='exact'"):
        make(numerics="exact")
    with pytest.raises(StateError, match="for blocks of"):
        make(pool=pool[:, :-64])
    with pytest.raises(BadValue, match="a kernel that reads f32/f32"):
        make(kernels=[])


def test_equal_rotations_share_a_table_that_grows():
    tables = RopeTables()
    first, same = tables.table(Rope(8, 1e4)), tables.table(Rope(8, 1e4))
    other = tables.table(Rope(8, 1e4, kind="linear", factor=2.0))
    assert first is same and first is not other and tables.table(None) is None
    tables.cover(5)
    early = first.cos[:5].clone()
    tables.cover(5000)
    assert len(first.cos) == 8192 and torch.equal(first.cos[:5], early)
    assert torch.allclose(other.cos[2 * 700], first.cos[700])
    exact = np.cos(4999 * Rope(8, 1e4).inverse_frequencies())
    assert np.abs(first.cos[4999].numpy() - exact).max() < 1e-7, "angles are made in float64"

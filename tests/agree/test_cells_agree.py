"""Formats of few bits through the whole engine: packed rows far away, exact ones near by, decided by position alone."""

import numpy as np
import pytest
from tiny_engine import ask, engine, flush, parts, run, words

from kvist.kernels import native_module
from kvist.spec.format import NEAR_TOKENS, KVFormat
from kvist.spec.layout import plan_layout
from kvist.tier.disk.store import DiskTier
from kvist.units import MIB

if native_module.absent_reason():
    pytest.skip(native_module.absent_reason(), allow_module_level=True)

FAMILIES = ("llama-wide", "qwen3-wide", "mistral-wide", "gemma2-wide")
FORMATS = ("lm4", "lm3", "lm2", "int8t/lm4", "lm4/f16", "f32/lm2")
PROMPT = words(3 * NEAR_TOKENS + 21, 1)
OUT = 12


def scores(out):
    return np.array([x.logprob for x in out.prompt_logprobs[1:]])


def once(family, format, prompt=PROMPT, **options):
    options.setdefault("budget", 512)
    request = ask("a", prompt, OUT, prompt_logprobs=0, reuse=False)
    return run(engine(family, format=format, **options), [request])["a", 0]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("family", FAMILIES)
def test_chunks_and_hits_change_no_bit(family, format):
    """The same scores to the last bit in chunks of 1, 7, 32 and all at once; a hit of any length gives the answer."""
    want = once(family, format)
    for chunk in (1, 7, 32):
        got = once(family, format, chunk=chunk)
        assert scores(got).tolist() == scores(want).tolist() and got.tokens == want.tokens
    eng = engine(family, format=format, budget=64)
    assert run(eng, [ask("w", PROMPT, OUT)])["w", 0].tokens == want.tokens
    hit = run(eng, [ask("b", PROMPT, OUT)])["b", 0]
    assert hit.tokens == want.tokens and hit.cached_tokens == len(PROMPT) - 1
    for n in (5, 64, 100, 128, 150):
        fork = (*PROMPT[:n], *words(40, n))
        got = run(eng, [ask(f"f{n}", fork, OUT)])[f"f{n}", 0]
        assert got.tokens == once(family, format, fork).tokens, n


@pytest.mark.parametrize("format", ["lm4", "lm3/lm2"])
@pytest.mark.parametrize("family", FAMILIES)
def test_rows_beside_others_give_what_they_give_alone(family, format):
    """F069: eight of very different lengths, thrown out of a small pool again and again, in any order."""
    requests = [ask(f"r{i}", words(n, i), 20 + i) for i, n in enumerate((3, 190, 64, 65, 130, 17, 200, 63))]
    eng = engine(family, format=format, blocks=60, budget=40)
    tokens, preempted, steps = {}, 0, 0
    for r in requests:
        eng.add(r)
    while not eng.idle:
        for event in eng.step():
            tokens.setdefault(event.request, []).append(event.token)
        eng.scheduler.cache.check()
        steps += 1
        running = eng.scheduler.running
        if running and steps % 7 == 0:
            preempted += eng.scheduler.preempt(running[steps % len(running)].id)
    again = run(engine(family, format=format, budget=512), requests[::-1])
    for r in requests:
        alone = run(engine(family, format=format, reuse=False, budget=512), [r])[r.id, 0]
        assert tuple(tokens[r.id]) == alone.tokens == again[r.id, 0].tokens, r.id
    assert preempted > 5


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("family", FAMILIES)
def test_native_kernels_agree_with_the_reference(family, format):
    """Scores of the whole model, which spread over tens: codes at a threshold may fall to either side."""
    want, got = once(family, format, attention="reference"), once(family, format)
    difference = np.abs(scores(want) - scores(got))
    assert np.median(difference) < 0.02 and difference.mean() < 0.2


@pytest.mark.parametrize("format", ["lm4", "lm2"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_first_cell_is_exact(family, format):
    """What a cell of positions reads is float16 in another basis; what lies before it is not."""
    want, got = once(family, "f32"), once(family, format)
    near, far = np.abs(scores(want) - scores(got))[: NEAR_TOKENS - 1], np.abs(scores(want) - scores(got))[NEAR_TOKENS:]
    assert near.mean() < 0.02 and far.mean() > 5 * near.mean()


@pytest.mark.parametrize("family", FAMILIES)
def test_fewer_bits_are_worse_and_smaller(family):
    spec, _ = parts(family)
    formats = [KVFormat.parse(name) for name in ("f16", "int8t", "lm4", "lm3", "lm2")]
    rates = [spec.kv_bytes_per_token(fmt) for fmt in formats]
    assert rates == sorted(rates, reverse=True)
    held = [plan_layout(spec, fmt, block_tokens=16).bytes_for(4096) for fmt in formats[2:]]
    assert held == sorted(held, reverse=True)
    want = scores(once(family, "f32"))[NEAR_TOKENS:]
    errors = [float(np.abs(want - scores(once(family, fmt.name))[NEAR_TOKENS:]).mean()) for fmt in formats]
    assert errors[0] < errors[1] < errors[2] < errors[4]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tier_gives_back_what_was_packed(family, tmp_path):
    """Codes and exact cells go to a disk and come back to an engine that has computed nothing."""
    want = once(family, "lm3").tokens
    for tokens in (0, len(PROMPT) // 16 * 16):
        tier = DiskTier.open(tmp_path, capacity_bytes=64 * MIB, reserve_bytes=0)
        eng = engine(family, format="lm3", budget=64, tiers=(tier,))
        out = run(eng, [ask("a", PROMPT, OUT)])["a", 0]
        assert out.tokens == want and (out.cached_tokens > 0) == (tokens > 0)
        flush(eng)
        tier.close()


def test_several_samples_and_layer_by_layer_give_the_same():
    """Forks share packed blocks; without the step program the same bits come."""
    want = once("llama-wide", "lm4")
    both = run(engine("llama-wide", format="lm4"), [ask("a", PROMPT, OUT, n=3)])
    assert {out.tokens for out in both.values()} == {want.tokens}
    eng = engine("llama-wide", format="lm4", budget=512)
    assert not eng.executor._decoder.layers_reason
    eng.executor._decoder._program = None
    got = run(eng, [ask("a", PROMPT, OUT, prompt_logprobs=0, reuse=False)])["a", 0]
    assert scores(got).tolist() == scores(want).tolist() and got.tokens == want.tokens

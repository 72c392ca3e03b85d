"""Sequences that fork, are cut, found again and preempted with K and V in int8t: the tokens are those of one alone."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from dataclasses import replace  # noqa: E402

from tiny_engine import GREEDY, B, engine, run, words  # noqa: E402
from tiny_engine import ask as asked  # noqa: E402

from kvist.kernels import native_module  # noqa: E402
from kvist.spec.sampling import Sampling  # noqa: E402

pytestmark = pytest.mark.skipif(bool(native_module.absent_reason()), reason="no native kernels")

FAMILIES = ["llama", "gemma3", "mistral-window"]
MIXES = ["int8t", "f16/int8t", "int8t/f32"]
DRAWN = Sampling(temperature=1.0, seed=1, logprobs=0)
SCORED = replace(GREEDY, logprobs=0)


def ask(name, prompt, n_out=24, *, sampling=SCORED, **more):
    return asked(name, prompt, n_out, sampling=sampling, **more)


def alone(family, request, sample=0, fmt="int8t"):
    """The same request with nothing beside it and nothing reused, its prompt in one chunk."""
    sampling = replace(request.sampling, seed=request.sampling.seed + sample)
    one = replace(request, n=1, sampling=sampling, reuse=False)
    return run(engine(family, format=fmt, reuse=False, budget=512, block_tokens=64), [one])[request.id, 0]


def assert_same(family, got, request, sample=0, fmt="int8t"):
    """Tokens and log-probabilities to the bit: the order of a row's sums depends on nothing that happened."""
    want = alone(family, request, sample, fmt)
    assert len(want.tokens) == request.max_tokens
    assert got.tokens == want.tokens
    assert [x.logprob for x in got.logprobs] == [x.logprob for x in want.logprobs]


@pytest.mark.parametrize("fmt", MIXES)
@pytest.mark.parametrize("family", FAMILIES)
def test_forks(family, fmt):
    """Samples of one prompt, forked in the middle of a block: each writes in a copy of its own, scales included."""
    eng = engine(family, format=fmt)
    for n in (B - 3, 3 * B, 3 * B + 5):
        request = ask("r", words(n, seed=n), sampling=DRAWN, n=4)
        outs = run(eng, [request])
        assert len({outs["r", i].tokens for i in range(4)}) > 1
        for i in range(4):
            assert_same(family, outs["r", i], request, i, fmt)


@pytest.mark.parametrize("sampling", [SCORED, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("family", FAMILIES)
def test_cut_and_continued(family, sampling):
    """What a stop string cut off is gone; the rest is found again, also inside a block, and goes on as if computed."""
    eng = engine(family, format="int8t")
    prompt, told, seq = words(2 * B + 7), [], None
    (seq,) = eng.add(ask("first", prompt, 40, sampling=sampling))
    while len(told) < 30:
        told += [e.token for e in eng.step() if e.token is not None]
    eng.finish(seq, "stop", 11)
    while not eng.idle:
        eng.step()
    for kept in (11, 6, 10):
        more = ask("second", (*prompt, *told[:kept], *words(9, seed=kept)), sampling=sampling)
        got = run(eng, [more])["second", 0]
        assert len(prompt) <= got.cached_tokens <= len(prompt) + kept
        assert_same(family, got, more)


@pytest.mark.parametrize("fmt", MIXES)
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_preempted_for_lack_of_room(family, fmt):
    """A pool too small for all: some give their blocks back and come again, with poison where nothing is written."""
    layout = engine(family, format=fmt).scheduler.layout
    eng = engine(family, format=fmt, blocks=int(1.5 * layout.peak_blocks_for(214, 16)), budget=16)
    requests = [ask(f"r{i}", words(64 + 3 * i, seed=i), 150, sampling=DRAWN if i % 2 else SCORED) for i in range(6)]
    outs = run(eng, requests)
    assert sum(out.preemptions for out in outs.values()) > 0
    for request in requests:
        assert_same(family, outs[request.id, 0], request, fmt=fmt)


@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_preempted_at_any_moment(family, reuse):
    """After 3, 10 and 20 tokens everything is taken away: found again in the cache, or computed again in chunks."""
    eng = engine(family, format="int8t", budget=12)
    request = ask("r", words(37), 30, sampling=DRAWN, reuse=reuse)
    (seq,) = eng.add(request)
    tokens, scores, last = [], [], None
    left = [3, 10, 20]
    while not eng.idle:
        for event in eng.step():
            if event.token is not None:
                tokens.append(event.token)
                scores.append(event.logprob.logprob)
            last = event
        if left and len(tokens) == left[0] and eng.scheduler.preempt(seq):
            left.pop(0)
    want = alone(family, request)
    assert last.usage.preemptions == 3
    assert (tuple(tokens), scores) == (want.tokens, [x.logprob for x in want.logprobs])

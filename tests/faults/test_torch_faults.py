"""Named fault scenarios on the whole engine over real tensors. Void memory is NaN throughout (poison)."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny_engine import B, alone, ask, engine, parts, run, words  # noqa: E402

from kvist.config import CacheConfig, EngineConfig  # noqa: E402
from kvist.errors import PoolTooSmall  # noqa: E402
from kvist.runtime.build import BuildOptions, build_engine  # noqa: E402
from kvist.runtime.store import Store  # noqa: E402
from kvist.spec.format import KVFormat  # noqa: E402
from kvist.spec.layer import Shared, Window  # noqa: E402
from kvist.spec.layout import plan_layout  # noqa: E402
from kvist.spec.sampling import Sampling  # noqa: E402

FAMILIES = ["llama", "gemma3", "mistral-window", "deepseek-v3"]


def tokens(family, request):
    return alone(family, request)[request.id, 0].tokens


@pytest.mark.parametrize("family", FAMILIES)
def test_f001_resumed_prefill(family):
    prompt = words(5 * B + 3)
    other = prompt[: 3 * B] + words(7, seed=9)
    eng = engine(family)
    cold, warm, part = (run(eng, [ask("r", p)])["r", 0] for p in (prompt, prompt, other))
    want = tokens(family, ask("r", prompt))
    assert cold.tokens == warm.tokens == want
    assert part.tokens == tokens(family, ask("r", other))
    assert cold.cached_tokens == 0
    assert warm.cached_tokens == 5 * B + 2
    assert part.cached_tokens == 3 * B


def uneven_engine(**cache):
    """Layer 1 has a window of 4B and one KV head instead of three: its blocks hold more tokens."""
    spec, weights = parts("llama")
    layer, w = spec.layers[1], weights.layers[1]
    q, k, v = layer.q_heads * layer.key_dim, layer.key_dim, layer.value_dim
    rows = [*range(q + k), *range(q + layer.kv_heads * k, q + layer.kv_heads * k + v)]
    narrow = replace(layer, mixer=Window(4 * B), kv_heads=1)
    spec = replace(spec, layers=(spec.layers[0], narrow, spec.layers[2]))
    w = replace(w, qkv=w.qkv[rows].contiguous())
    return custom_engine(spec, replace(weights, layers=(weights.layers[0], w, weights.layers[2])), **cache)


def custom_engine(spec, weights, **cache):
    layout = plan_layout(spec, KVFormat.parse("f32"), block_tokens=B)
    config = EngineConfig(CacheConfig(**{"blocks": 200, "block_tokens": B, "format": "f32", **cache}))
    store = Store(layout, blocks=config.cache.pool_blocks(layout.block_bytes), poison=True)
    return build_engine(spec, weights, store, BuildOptions(poison=True, numerics="invariant", engine=config))[0]


def test_f002_groups_with_different_block_sizes():
    eng = uneven_engine()
    assert {g.tokens_per_block for g in eng.scheduler.layout.groups} == {B, 2 * B}
    prompt = words(6 * B + 5, seed=2)
    outs = [run(eng, [ask("r", prompt)])["r", 0] for _ in range(4)]
    want = run(uneven_engine(reuse=False), [ask("r", prompt, reuse=False)])["r", 0].tokens
    assert [o.tokens for o in outs] == [want] * 4
    assert outs[3].cached_tokens == 6 * B + 4
    short = prompt[: 3 * B] + words(5, seed=3)
    got = run(eng, [ask("r", short)])["r", 0]
    assert got.tokens == run(uneven_engine(reuse=False), [ask("r", short, reuse=False)])["r", 0].tokens
    assert got.cached_tokens > 0


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_f003_full_hits_of_every_length(family):
    eng = engine(family)
    for k in range(1, 4):
        for n in (k * B - 1, k * B, k * B + 1):
            prompt = words(n, seed=100 + n)
            first = run(eng, [ask("r", prompt, 8)])["r", 0]
            again = run(eng, [ask("r", prompt, 8)])["r", 0]
            assert first.tokens == again.tokens == tokens(family, ask("r", prompt, 8))
            assert again.cached_tokens == n - 1
    one = [run(eng, [ask("r", (5,), 8)])["r", 0] for _ in range(2)]
    assert one[0].tokens == one[1].tokens == tokens(family, ask("r", (5,), 8))
    assert one[1].cached_tokens == 0


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_f004_every_divergence_point(family):
    prompt = words(2 * B + 5, seed=4)
    eng = engine(family, blocks=400)
    run(eng, [ask("warm", prompt, 2)])
    for j in range(1, len(prompt)):
        fresh = 3 + (prompt[j] + 1 - 3) % 128
        query = (*prompt[:j], fresh)
        got = run(eng, [ask("r", query, 3)])["r", 0]
        assert got.cached_tokens == j
        assert got.tokens == tokens(family, ask("r", query, 3)), j


def test_f005_f007_poison_never_reaches_an_answer():
    """B asks while A, of the same prompt, was admitted and then aborted before it ran."""
    eng = engine("llama")
    prompt = words(3 * B, seed=5)
    eng.add(ask("a", prompt))
    eng.scheduler.plan()
    eng.abort("a")
    eng.scheduler.fail("the step never ran")
    got = run(eng, [ask("b", prompt)])["b", 0]
    assert got.cached_tokens == 0
    assert got.tokens == tokens("llama", ask("b", prompt))


@pytest.mark.parametrize("family", FAMILIES)
def test_f006_duplicates_in_one_step_then_pressure(family):
    prompt = words(4 * B, seed=6)
    layout = engine(family).scheduler.layout
    blocks = 2 * layout.peak_blocks_for(len(prompt) + 64, 64) + layout.peak_blocks_for(6 * B, 64)
    eng = engine(family, blocks=blocks, budget=512)
    pair = [ask("a", prompt, 64), ask("b", prompt, 64)]
    for r in pair:
        eng.add(r)
    out = {}
    for step in range(200):
        for e in eng.step():
            if e.token is not None:
                out.setdefault(e.request, []).append(e.token)
        eng.scheduler.cache.check()
        if step == 3:
            eng.add(ask("c", words(5 * B, seed=7), 8))
        if eng.idle:
            break
    want = list(tokens(family, ask("r", prompt, 64)))
    assert out["a"] == out["b"] == want
    assert out["c"] == list(tokens(family, ask("c", words(5 * B, seed=7), 8)))
    assert eng.scheduler.cache.counters.duplicate_blocks > 0


def test_f009_what_is_stored_is_not_changed_by_its_readers():
    eng = engine("llama")
    stored = words(4 * B, seed=8)
    run(eng, [ask("x", stored, 1)])
    eng.add(ask("look", (*stored, 9), 5))
    eng.step()
    (seq,) = eng.scheduler.cache.sequences()
    held = list(eng.scheduler.cache.table(seq)[0][: len(stored) // B])
    eng.abort("look")
    pool = eng.executor.store.pool
    before = pool[held].clone()
    questions = [words(5, seed=20 + i) for i in range(3)]
    outs = [run(eng, [ask("q", stored + questions[i])])["q", 0] for i in (0, 1, 2, 0)]
    assert outs[0].tokens == outs[3].tokens
    assert outs[1].tokens == tokens("llama", ask("q", stored + questions[1]))
    assert all(o.cached_tokens >= len(stored) for o in outs)
    assert bool((pool[held] == before).all())


def shared_engine(**cache):
    """Layer 2 reads layer 0's cache and writes none (as in models that share KV across layers)."""
    spec, weights = parts("llama")
    first = spec.layers[2]
    layer = replace(first, mixer=Shared(0))
    spec = replace(spec, layers=(*spec.layers[:2], layer))
    w = weights.layers[2]
    q_rows = first.q_heads * first.key_dim
    weights = replace(weights, layers=(*weights.layers[:2], replace(w, qkv=w.qkv[:q_rows].contiguous())))
    return custom_engine(spec, weights, **cache)


def test_f010_shared_layers_never_read_past_the_trimmed_length():
    prefix = words(2 * B + 3, seed=10)
    eng = shared_engine()
    longs = [ask(f"a{i}", prefix + words(3 * B, seed=50 + i), 6) for i in range(8)]
    shorts = [ask(f"b{i}", prefix + words(3, seed=80 + i), 6) for i in range(8)]
    mixed = [r for pair in zip(longs, shorts, strict=True) for r in pair]
    first = run(eng, [ask("warm", prefix + words(3 * B, seed=49), 6)])
    got = run(eng, mixed)
    for r in shorts:
        want = run(shared_engine(reuse=False), [replace(r, reuse=False)])[r.id, 0]
        assert got[r.id, 0].tokens == want.tokens
        assert got[r.id, 0].cached_tokens >= len(prefix)
    assert first


@pytest.mark.parametrize("family", ["gemma3", "mistral-window"])
def test_f024_blocks_let_go_by_a_window_are_reused_by_others(family):
    """A runs far past its window while others take and overwrite what it let go."""
    layout = engine(family).scheduler.layout
    need = layout.peak_blocks_for(120, 64) + 2 * layout.peak_blocks_for(60, 64)
    eng = engine(family, blocks=need)
    a = ask("a", words(20, seed=11), 100)
    others = [ask(f"o{i}", words(20, seed=30 + i), 20) for i in range(8)]
    got = run(eng, [a, *others])
    assert got["a", 0].tokens == tokens(family, a)
    for r in others:
        assert got[r.id, 0].tokens == tokens(family, r)


@pytest.mark.parametrize("family", ["gemma3", "mistral-window"])
@pytest.mark.parametrize("shared", [3, 9, 17, 30, 47, 60])
def test_f025_second_turns_around_the_window(family, shared):
    """A second turn that shares less, about as much, or more than the window with the first."""
    first = words(64, seed=12)
    eng = engine(family)
    run(eng, [ask("one", first, 16)])
    second = first[:shared] + words(11, seed=13)
    got = run(eng, [ask("two", second)])["two", 0]
    assert got.tokens == tokens(family, ask("two", second))


@pytest.mark.parametrize("rest", [0, 1, B - 1])
def test_f037_samples_equal_separate_runs(rest):
    prompt = words(2 * B + rest, seed=14)
    hot = Sampling(temperature=1.0, seed=40)
    eng = engine("llama")
    got = run(eng, [ask("r", prompt, 10, n=4, sampling=hot)])
    for i in range(4):
        one = ask("r", prompt, 10, sampling=replace(hot, seed=40 + i))
        assert got["r", i].tokens == tokens("llama", one)
    assert len({got["r", i].tokens for i in range(4)}) == 4
    assert eng.scheduler.counters.forks == 3


@pytest.mark.parametrize(
    "knobs",
    [
        {},
        {"repetition_penalty": 1.4},
        {"presence_penalty": 1.5, "frequency_penalty": 0.7},
        {"logit_bias": ((7, 4.0), (9, -50.0))},
        {"min_tokens": 15},
        {"temperature": 0.9, "top_k": 20, "seed": 3},
        {"temperature": 1.2, "top_p": 0.8, "seed": 4, "logprobs": 3},
        {"logprobs": 2},
    ],
    ids=lambda k: ",".join(k) or "greedy",
)
def test_f038_f039_f087_nothing_shows_that_a_request_was_preempted_or_cached(knobs):
    sampling = Sampling(**{"temperature": 0.0, **knobs})
    prompt = words(B, seed=15) * 2
    requests = [ask(f"r{i}", prompt + words(3, seed=60 + i), 40, sampling=sampling, stop_ids=(5,)) for i in range(6)]
    layout = engine("llama").scheduler.layout
    tight = layout.peak_blocks_for(len(requests[0].prompt) + 40, 64) * 2
    pressed = engine("llama", blocks=tight)
    got = run(pressed, requests)
    assert pressed.scheduler.counters.preemptions > 0
    assert sum(o.cached_tokens for o in got.values()) > 0
    for r in requests:
        want = alone("llama", r)[r.id, 0]
        mine = got[r.id, 0]
        assert (mine.tokens, mine.finish_reason) == (want.tokens, want.finish_reason)
        for a, b in zip(mine.logprobs, want.logprobs, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                assert a.token == b.token
                assert a.logprob == pytest.approx(b.logprob, abs=1e-4)
                assert [t for t, _ in a.top] == [t for t, _ in b.top]


def test_f075_rows_of_different_lengths_and_hits():
    eng = engine("llama")
    run(eng, [ask("warm", words(64, seed=16), 2)])
    prompts = {n: words(64, seed=16)[:n] for n in (1, 5, 17, 64)}
    want = {n: tokens("llama", ask("r", p, 64)) for n, p in prompts.items()}
    for order in ((1, 5, 17, 64), (64, 17, 5, 1), (17, 64, 1, 5)):
        got = run(eng, [ask(f"r{n}", prompts[n], 64) for n in order])
        assert {n: got[f"r{n}", 0].tokens for n in prompts} == want


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_f086_prompt_logprobs_cold_and_warm(family):
    prompt = words(3 * B + 2, seed=17)
    eng = engine(family, budget=20)
    cold = run(eng, [ask("r", prompt, 2, prompt_logprobs=1)])["r", 0]
    warm = run(eng, [ask("r", prompt, 2, prompt_logprobs=5)])["r", 0]
    assert cold.prompt_logprobs[0] is None
    assert [t.token for t in cold.prompt_logprobs[1:]] == list(prompt[1:])
    a, b = (np.array([t.logprob for t in o.prompt_logprobs[1:]]) for o in (cold, warm))
    assert np.abs(a - b).max() <= 1e-4
    assert all(len(t.top) == 5 for t in warm.prompt_logprobs[1:])
    assert warm.cached_tokens == 0
    assert run(eng, [ask("r", prompt, 2)])["r", 0].cached_tokens == len(prompt) - 1


def test_f088_seeded_samples_repeat():
    eng = engine("llama")
    hot = ask("r", words(20, seed=18), 12, n=4, sampling=Sampling(temperature=1.0, seed=7))
    first, second = run(eng, [hot]), run(eng, [hot])
    assert [first["r", i].tokens for i in range(4)] == [second["r", i].tokens for i in range(4)]
    assert len({first["r", i].tokens for i in range(4)}) == 4


def test_f109_too_large_is_refused_with_numbers_and_the_small_proceed():
    eng = engine("llama", blocks=4)
    small = [ask(f"s{i}", words(10, seed=i), 8) for i in range(20)]
    for r in small:
        eng.add(r)
    with pytest.raises(PoolTooSmall) as e:
        eng.add(ask("big", words(5 * B), 4))
    assert "4" in str(e.value)
    out = {}
    while not eng.idle:
        for event in eng.step():
            if event.finish_reason:
                out[event.request] = event
    assert len(out) == 20
    ends = run(engine("llama", blocks=4), [ask("r", words(3 * B), 100)])["r", 0]
    assert ends.finish_reason == "length"
    assert 3 * B + len(ends.tokens) <= 4 * B + 1

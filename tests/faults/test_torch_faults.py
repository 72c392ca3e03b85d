"""Named fault scenarios on the whole engine over real tensors. Void memory is NaN throughout (poison)."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny_engine import B, alone, engine, parts, run, words  # noqa: E402
from tiny_engine import ask as greedy  # noqa: E402

from kvist.cache.cache import Cache  # noqa: E402
from kvist.config import CacheConfig, EngineConfig  # noqa: E402
from kvist.errors import PoolTooSmall  # noqa: E402
from kvist.ids import NULL_BLOCK  # noqa: E402
from kvist.kernels.matrix import Matrix
from kvist.runtime.build import BuildOptions, build_engine  # noqa: E402
from kvist.runtime.store import Store  # noqa: E402
from kvist.spec.format import KVFormat  # noqa: E402
from kvist.spec.layer import Shared, Window  # noqa: E402
from kvist.spec.layout import plan_layout  # noqa: E402
from kvist.spec.sampling import Sampling  # noqa: E402

FAMILIES = ["llama", "gemma3", "mistral-window", "deepseek-v3"]


DRAWN = Sampling(temperature=1.0, seed=1)


def ask(name, prompt, n_out=12, *, sampling=DRAWN, **more):
    """Drawn, not greedy, unless said otherwise: tiny models repeat themselves, and hide a fault by it."""
    return greedy(name, prompt, n_out, sampling=sampling, **more)


def tokens(family, request):
    return alone(family, request)[request.id, 0].tokens


def watched(eng, look):
    """``look(plan)`` after every step's execution, before its commit: whatever was planned is written."""
    execute = eng.executor.execute

    def both(plan):
        result = execute(plan)
        look(plan)
        return result

    eng.executor.execute = both
    return eng


def until(eng, done, limit=1000):
    """Steps until ``done()``; the events on the way."""
    events = []
    for _ in range(limit):
        if done():
            return events
        events += eng.step()
    raise AssertionError(f"not there after {limit} steps")


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
    w = replace(w, qkv=Matrix.of(w.qkv.data[rows]))
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


SCORED = Sampling(temperature=0.0, logprobs=0)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_f003_full_hits_of_every_length(family):
    eng = engine(family)
    for k in range(1, 5):
        for n in (k * B - 1, k * B, k * B + 1):
            request = ask("r", words(n, seed=100 + n), 8, sampling=SCORED)
            first, again = (run(eng, [request])["r", 0] for _ in range(2))
            want = alone(family, request)["r", 0]
            assert first.tokens == again.tokens == want.tokens
            assert (first.cached_tokens, again.cached_tokens) == (0, n - 1)
            for got in (first, again):
                assert got.logprobs[0].logprob == pytest.approx(want.logprobs[0].logprob, abs=1e-4)
    one = [run(eng, [ask("r", (5,), 8)])["r", 0] for _ in range(2)]
    assert one[0].tokens == one[1].tokens == tokens(family, ask("r", (5,), 8))
    assert one[1].cached_tokens == 0


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_f004_every_divergence_point(family):
    """Divergence at every j, the same again, and an extension: what is cached and what is computed make the query."""
    prompt = words(2 * B + 5, seed=4)
    eng = engine(family, blocks=400)
    first, _ = run(eng, [ask("warm", prompt, 2)])["warm", 0].tokens
    queries = {j: (*prompt[:j], 3 + (prompt[j] + 1 - 3) % 128) for j in range(1, len(prompt))}
    queries[len(prompt)] = (*prompt, 3 + (first + 1 - 3) % 128)
    queries[len(prompt) - 1, "exact"] = prompt
    queries[len(prompt) + 1, "with its answer"] = (*prompt, first, 5)
    for key, query in queries.items():
        before = eng.scheduler.counters.computed_tokens
        got = run(eng, [ask("r", query, 3)])["r", 0]
        assert got.cached_tokens == (key[0] if isinstance(key, tuple) else key)
        assert eng.scheduler.counters.computed_tokens - before == len(query) - got.cached_tokens + 2
        assert got.tokens == tokens(family, ask("r", query, 3)), key


def test_f005_blocks_are_not_matchable_before_they_are_computed():
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
    weights = replace(
        weights, layers=(*weights.layers[:2], replace(w, qkv=Matrix.of(w.qkv.data[:q_rows].contiguous())))
    )
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


def kv_bytes(eng, seq):
    """Per group: the blocks of a sequence, None where its window let go."""
    pool = eng.executor.store.pool
    return [[None if b == NULL_BLOCK else bytes(pool[b].numpy()) for b in t] for t in eng.scheduler.cache.table(seq)]


@pytest.mark.parametrize("family", ["llama", "gemma3", "deepseek-v3"])
@pytest.mark.parametrize("cached_blocks", [0, 1, 2, 3])
def test_f021_every_token_is_written_to_its_slot_whatever_the_chunk(family, cached_blocks):
    """All bytes of the sequence's blocks, void slots (NaN) included, are those of a run in one chunk."""
    prompt = words(3 * B + 3, seed=21)

    def prefilled(chunk, warm):
        eng = engine(family, chunk=chunk, blocks=60)
        if warm:
            run(eng, [ask("warm", prompt[: warm * B], 1)])
        (seq,) = eng.add(ask("r", prompt, 4))
        chunks = eng.scheduler.counters.chunks
        events = until(eng, lambda: eng.scheduler.sequence(seq).output_tokens)
        written = kv_bytes(eng, seq)
        events += until(eng, lambda: eng.idle)
        cached = events[-1].usage.cached_tokens
        steps = eng.scheduler.counters.chunks - chunks - 3
        return written, tuple(e.token for e in events), cached, steps

    want, output, *_ = prefilled(None, 0)
    assert output == tokens(family, ask("r", prompt, 4))
    for chunk in range(1, len(prompt) + 1):
        written, drawn, cached, steps = prefilled(chunk, cached_blocks)
        assert drawn == output, chunk
        assert cached == cached_blocks * B
        assert steps == -(-(len(prompt) - cached) // chunk)
        assert written == want, chunk


T = 64


@pytest.mark.parametrize("chunk", [None, 16])
@pytest.mark.parametrize("budget", [T, 5])
@pytest.mark.parametrize("n", [T - 1, T, T + 1, 3 * T])
def test_f023_a_prompt_beyond_the_budget_is_served_and_delays_the_small_ones_little(n, budget, chunk):
    long = ask("long", words(n, seed=23), 8)
    small = [ask(f"s{i}", words(6, seed=200 + i), 4) for i in range(10)]
    eng = engine("llama", budget=budget, chunk=chunk)
    for r in (long, *small):
        eng.add(r)
    first, out = {}, {}
    for step in range(1, 1000):
        for e in eng.step():
            first.setdefault(e.request, step)
            out.setdefault(e.request, []).append(e.token)
        if eng.idle:
            break
    for r in (long, *small):
        assert tuple(out[r.id]) == tokens("llama", r)
    every_token = n + 8 + 10 * (6 + 4)
    full_steps = -(-every_token // budget)
    assert max(first[r.id] for r in small) <= full_steps + 1
    assert first["long"] <= full_steps + (-(-n // chunk) if chunk else 1)
    if chunk and budget > chunk and n > budget:
        assert max(first[r.id] for r in small) <= 3 < first["long"], "beside the long prompt, not after it"


@pytest.mark.parametrize("lifo", [False, True])
@pytest.mark.parametrize("family", ["gemma3", "mistral-window"])
def test_f024_blocks_let_go_by_a_window_are_reused_by_others(family, lifo, monkeypatch):
    """A runs far past its window while others take and overwrite what it let go."""
    monkeypatch.setattr("kvist.engine.assemble.Cache", partial(Cache, lifo=lifo))
    layout = engine(family).scheduler.layout
    eng = engine(family, blocks=2 * layout.peak_blocks_for(120, 20), budget=20)
    cache = eng.scheduler.cache
    was_a, handed_on = set(), set()

    def look(plan):
        live = {seq: {b for t in cache.table(seq) for b in t if b != NULL_BLOCK} for seq in cache.sequences()}
        assert sum(map(len, live.values())) == len(set().union(*live.values())), "a block in two live tables"
        for seq, blocks in live.items():
            for t in range(len(layout.groups)):
                assert list(eng.executor.tables.row(seq, t)) == list(cache.table(seq)[t])
            if seq:
                handed_on.update(blocks & was_a)
        if 0 in live:
            was_a.update(live[0])

    watched(eng, look)
    a = ask("a", words(20, seed=11), 100)
    others = [ask(f"o{i}", words(20, seed=30 + i), 20) for i in range(8)]
    got = run(eng, [a, *others])
    assert len(handed_on) > 2, "hardly anything of A was ever given to another"
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
    assert got.cached_tokens == shared


@pytest.mark.parametrize("family", ["gemma3", "mistral-window"])
def test_f025_what_a_window_lost_is_computed_again(family):
    """A pool so small that the first turn's window blocks are taken by others before the second turn."""
    first = words(64, seed=12)
    blocks = engine(family).scheduler.layout.peak_blocks_for(80, 64) + 1
    hits = {}
    for shared in (3, 9, 17, 30, 47, 60, 64):
        eng = engine(family, blocks=blocks)
        run(eng, [ask("one", first, 16), ask("other", words(70, seed=14), 8)])
        second = first[:shared] + words(11, seed=13)
        got = run(eng, [ask("two", second)])["two", 0]
        assert got.tokens == tokens(family, ask("two", second)), shared
        hits[shared] = got.cached_tokens
    assert all(hit <= shared for shared, hit in hits.items())
    assert any(hit < shared for shared, hit in hits.items()), "nothing was lost: the pool is too large"


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


@pytest.mark.parametrize("family,preemptions", [("llama", 7), ("gemma3", 3), ("deepseek-v3", 7)])
def test_f038_resumed_sequences_neither_lose_nor_double_a_token(family, preemptions):
    """The pressure prescribed: room for one and a half of eight (outputs as long as these models' context allows)."""
    hot = [Sampling(temperature=float(i % 2), seed=i) for i in range(8)]  # greedy ones may loop, and hide a fault
    requests = [ask(f"r{i}", words(64, seed=400 + i), 180, sampling=hot[i]) for i in range(8)]
    blocks = int(engine(family).scheduler.layout.peak_blocks_for(64 + 180, 16) * 1.5)
    pressed = engine(family, blocks=blocks, budget=16)
    got = run(pressed, requests)
    calm = run(engine(family, blocks=400), requests)
    assert {k: o.tokens for k, o in got.items()} == {k: o.tokens for k, o in calm.items()}
    assert all(len(o.tokens) == 180 for o in got.values())
    assert len({o.tokens for o in got.values()}) == 8
    assert pressed.scheduler.counters.preemptions >= preemptions  # everyone but the first in order, without windows
    assert pressed.scheduler.counters.recomputed_tokens > 0
    assert sum(o.preemptions for o in calm.values()) == 0


PENALTIES = {
    "repetition": {"repetition_penalty": 1.4},
    "presence and frequency": {"presence_penalty": 1.5, "frequency_penalty": 0.7},
    "all, drawn": {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.3, "temperature": 0.8},
}


@pytest.mark.parametrize("state", ["cold", "warm", "partly warm", "resumed", "resumed, nothing left"])
@pytest.mark.parametrize("name", PENALTIES)
def test_f087_penalties_do_not_depend_on_the_state_of_the_cache(name, state):
    prompt = words(5, seed=15) * 8
    request = ask("r", prompt, 24, sampling=Sampling(**{"temperature": 0.0, "seed": 9, **PENALTIES[name]}))
    eng = engine("llama")
    if state == "warm":
        run(eng, [request])
    if state == "partly warm":
        run(eng, [ask("warm", prompt[: B + 3] + words(4, seed=16), 2)])
    if state.startswith("resumed"):
        (seq,) = eng.add(request)
        events = []
        for at in (1, 7, 20):
            events += until(eng, lambda at=at: eng.scheduler.sequence(seq).output_tokens == at)
            assert eng.scheduler.preempt(seq)
            if state != "resumed":
                eng.scheduler.cache.reset()
        events += until(eng, lambda: eng.idle)
        got, usage = tuple(e.token for e in events), events[-1].usage
        assert usage.preemptions == 3
        assert (usage.recomputed_tokens > len(prompt)) == (state != "resumed")
    else:
        out = run(eng, [request])["r", 0]
        got = out.tokens
        assert out.cached_tokens == {"cold": 0, "warm": len(prompt) - 1, "partly warm": B + 3}[state]
    assert got == tokens("llama", request)
    assert got != tokens("llama", replace(request, sampling=Sampling(temperature=0.0))), "the penalties do nothing"


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


@pytest.mark.parametrize("family", ["llama", "gemma3", "mistral-window"])
@pytest.mark.parametrize("blocks", [1, 2, 3, 4, 5, 6, 8])
def test_f110_no_pool_is_so_small_that_the_engine_hangs(family, blocks):
    eng = engine(family, blocks=blocks, budget=48)
    taken, refused = [], []
    for i in range(20):
        request = ask(f"r{i}", words(6 + 4 * i, seed=500 + i), 12)
        try:
            eng.add(request)
            taken.append(request)
        except PoolTooSmall as error:
            assert error.needed_blocks > error.total_blocks == blocks  # noqa: PT017
            refused.append(request)
    events = until(eng, lambda: eng.idle, limit=3000)
    ends = {e.request: e for e in events if e.finish_reason}
    assert len(ends) == len(taken) == 20 - len(refused)
    for r in taken:
        got = tuple(e.token for e in events if e.request == r.id)
        assert ends[r.id].finish_reason == "length"
        assert got == tokens(family, r)[: len(got)] != ()
        assert ends[r.id].usage.preemptions <= 3
    if family == "llama":
        assert len(taken) == sum(6 + 4 * i <= blocks * B for i in range(20))
    eng.scheduler.cache.check()
    assert eng.scheduler.cache.live_blocks == 0

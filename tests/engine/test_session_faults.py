"""F114, and the hit rate of order ``prefix`` against the best that is possible."""

from random import Random

import pytest

from kvist.config import CacheConfig, EngineConfig, SchedConfig
from kvist.sim.run import paper_engine
from paperwork import CONTEXT, LAYOUTS, B, Outcome, ask, drive, paper, words


def bench(blocks, order="prefix", sequences=8, budget=128):
    config = EngineConfig(
        CacheConfig(blocks=blocks, block_tokens=B, evict="lru"),
        SchedConfig(token_budget=budget, max_sequences=sequences, order=order),
    )
    return paper_engine(LAYOUTS["full"], config, context_tokens=CONTEXT, check=False)


def talk(p, sessions, turns, *, together):
    """Run conversations turn by turn; cached tokens of each turn by (session, turn)."""
    out = Outcome()
    history = {s: words(5 * B + 3, 100 + s) for s in range(sessions)}

    def send(s, turn):
        prompt = (*history[s], *words(20 + turn, 1000 * s + turn))
        history[s] = prompt
        p.engine.add(ask(f"{s}.{turn}", prompt, 12))

    def finish(names):
        while any((name, 0) not in out.last for name in names):
            out.note(p.engine.step())
        for name in names:
            s = int(name.split(".")[0])
            history[s] = (*history[s], *out.tokens[name, 0])

    for turn in range(turns):
        if together:
            for s in range(sessions):
                send(s, turn)
            finish([f"{s}.{turn}" for s in range(sessions)])
    if not together:
        for s in range(sessions):
            for turn in range(turns):
                send(s, turn)
                finish([f"{s}.{turn}"])
    return {name: event.usage.cached_tokens for (name, _), event in out.last.items()}


@pytest.mark.parametrize("sessions", [2, 8])
@pytest.mark.parametrize("order", ["fcfs", "prefix"])
def test_f114_parallel_sessions_do_not_evict_each_other(sessions, order):
    turns = 5
    blocks = sessions * (CONTEXT // 8 // B)
    one_by_one, at_once = bench(blocks, order), bench(blocks, order)
    expected = talk(one_by_one, sessions, turns, together=False)
    assert talk(at_once, sessions, turns, together=True) == expected
    assert sum(expected.values()) > 0
    counters = at_once.engine.scheduler.counters
    assert counters.recomputed_tokens == 0 == at_once.engine.metrics()["cache_evicted_blocks"]
    new = counters.prompt_tokens - counters.cached_tokens
    drawn = sessions * turns * (12 - 1)
    assert counters.computed_tokens == new + drawn


def best(prompts):
    """Tokens that were a prefix of an earlier prompt, all but the last: endless memory, in this order."""
    hits = 0
    for i, prompt in enumerate(prompts):
        common = 0
        for other in prompts[:i]:
            n = next((k for k, (a, b) in enumerate(zip(prompt, other, strict=False)) if a != b), None)
            common = max(common, min(len(prompt), len(other)) if n is None else n)
        hits += min(common, len(prompt) - 1)
    return hits


def shared_prefixes(n=60, stems=6):
    """Requests on a few long stems, shuffled: they arrive at once."""
    rng = Random(3)
    bases = [words(20 * B, 50 + s) for s in range(stems)]
    prompts = [(*bases[i % stems], *words(rng.randrange(5, 40), 900 + i)) for i in range(n)]
    rng.shuffle(prompts)
    return prompts


def rate(p, prompts):
    out = drive(p, *[ask(f"r{i}", prompt, 4) for i, prompt in enumerate(prompts)], audit=0)
    total = sum(map(len, prompts))
    return sum(out.usage(f"r{i}").cached_tokens for i in range(len(prompts))) / total, out


def test_ample_memory_every_earlier_token_is_a_hit():
    """Bound: infinite reuse in order of arrival."""
    prompts = shared_prefixes()
    got, _ = rate(bench(1500), prompts)
    assert got >= best(prompts) / sum(map(len, prompts)) - 0.02


def test_multi_turn_every_earlier_token_is_a_hit():
    p = bench(1500)
    cached = talk(p, 8, 6, together=True)
    counters = p.engine.scheduler.counters
    assert sum(cached.values()) == counters.cached_tokens
    # Bound: of each turn all that was computed before: the earlier prompt and its answer but for the last token.
    turns = {(s, t): 5 * B + 3 + sum(20 + k + 12 for k in range(t)) for s in range(8) for t in range(6)}
    possible = sum(n - 1 for (_, t), n in turns.items() if t)
    assert counters.cached_tokens >= possible - 0.02 * counters.prompt_tokens


@pytest.mark.parametrize("blocks", [80, 110])
def test_short_memory_longest_prefix_first_is_as_good_as_the_best_order(blocks):
    """Bound: each stem is computed once, whatever the capacity and the order (it upper-bounds Belady)."""
    prompts = shared_prefixes(n=36)  # the age bound (32 may pass) leaves the order alone
    bound = best(prompts) / sum(map(len, prompts))
    got, _ = rate(bench(blocks, sequences=2), prompts)
    arrival, _ = rate(bench(blocks, "fcfs", sequences=2), prompts)
    assert got >= bound - 0.02
    assert arrival < got - 0.1, "in order of arrival the stems throw each other out"


def test_f097_tokens_emitted_are_tokens_billed():
    """Drafts that are right past an end: what is discarded is in no counter of what was emitted."""
    p = paper(blocks=100)
    plain = drive(p, ask("plain", words(20, 1), 40)).tokens["plain", 0]
    stop = plain[25]
    p = paper(blocks=100)

    def guess(q):
        for seq in q.engine.scheduler.running:
            at = seq.output_tokens
            if seq.lacking == 1:
                q.engine.scheduler.propose(seq.id, tuple(plain[at : at + 6]))

    out = drive(p, ask("a", words(20, 1), 40, stop_ids=(stop,)), ask("b", words(20, 1), 17), each_step=guess)
    assert out.reason("a") == "stop" and out.reason("b") == "length"
    counters = p.engine.scheduler.counters
    emitted = sum(e.token is not None for e in out.events)
    assert emitted == sum(e.usage.output_tokens for e in out.last.values()) == counters.sampled_tokens
    assert 0 < counters.accepted_drafts < emitted
    assert counters.accepted_drafts < counters.drafted_tokens

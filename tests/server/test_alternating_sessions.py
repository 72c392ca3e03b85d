"""F093: two long sessions that share a system prompt take turns; each finds what is its own, to the token.

Blocks have at least 16 tokens. What matches inside one is copied, so that hits are cut to single tokens all the same.
"""

import random
from dataclasses import replace
from itertools import takewhile

import httpx
import pytest

pytest.importorskip("torch")

from served_kit import running, served  # noqa: E402
from tiny_engine import VOCAB  # noqa: E402
from tiny_engine import parts as tiny  # noqa: E402

from kvist.config import CacheConfig, EngineConfig, SchedConfig  # noqa: E402
from kvist.runtime.build import BuildOptions, build_engine  # noqa: E402
from kvist.runtime.store import Store  # noqa: E402
from kvist.spec.format import KVFormat  # noqa: E402
from kvist.spec.layout import plan_layout  # noqa: E402

ROUNDS, NEW, SAID = 10, 8, 21


def system(block_tokens):
    """More than two blocks, which end inside a block."""
    return words(2 * block_tokens + block_tokens // 2 + 1, "system")


def words(n, seed):
    draw = random.Random(seed)
    return [draw.randrange(3, VOCAB) for _ in range(n)]


def model(block_tokens, *, reuse=True):
    """A small model with random weights behind the server: tokens that are the same are so for a reason."""
    spec, weights = tiny("llama")
    spec, blocks = replace(spec, context_tokens=2048), -(-4096 // block_tokens)
    layout = plan_layout(spec, KVFormat.parse("f32"), block_tokens=block_tokens)
    cache = CacheConfig(blocks=blocks, block_tokens=block_tokens, format="f32", reuse=reuse)
    how = BuildOptions(numerics="invariant", poison=True, engine=EngineConfig(cache, SchedConfig(token_budget=512)))
    engine, _ = build_engine(spec, weights, Store(layout, blocks=blocks, poison=True), how)
    return replace(served(), engine=engine, spec=spec, layout=layout)


def answer(client, url, prompt):
    body = {"prompt": prompt, "max_tokens": NEW, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    reply = client.post(f"{url}/v1/completions", json=body)
    assert reply.status_code == 200, reply.text
    got = reply.json()
    return got["choices"][0]["token_ids"], got["usage"]["prompt_tokens_details"]["cached_tokens"]


def play(what, block_tokens):
    """A1, B1, A2, B2, ...: (prompt, answer, cached tokens, computed tokens) of each turn."""
    sessions, turns = {who: system(block_tokens) for who in "AB"}, []
    with running(what) as server, httpx.Client(timeout=60) as client:
        scheduler = what.engine.scheduler
        for round_ in range(ROUNDS):
            for who in sessions:
                prompt = sessions[who] + words(SAID, f"{who}{round_}")
                before = scheduler.counters.computed_tokens
                ids, cached = answer(client, server.url, prompt)
                turns.append((prompt, ids, cached, scheduler.counters.computed_tokens - before))
                sessions[who] = prompt + ids
        server.books()
    return turns


def common(a, b):
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


@pytest.mark.parametrize("block_tokens", [16, 256])
def test_f093_two_sessions_in_turn_are_answered_as_if_each_were_alone(block_tokens):
    reference = play(model(block_tokens, reuse=False), block_tokens)
    assert len({tuple(ids) for _, ids, _, _ in reference}) > ROUNDS, "answers tell one turn from another"
    written = []
    for n, turn in enumerate(play(model(block_tokens), block_tokens)):
        prompt, ids, cached, computed = turn
        what = f"turn {n} of {'AB'[n % 2]}, blocks of {block_tokens}"
        assert ids == reference[n][1] and len(ids) == NEW, f"{what}: another answer than without a cache"
        longest = max((common(prompt, other) for other in written), default=0)
        assert reference[n][2] == 0 and cached == longest, f"{what}: what is said to be cached"
        assert computed == len(prompt) - cached + NEW - 1, f"{what}: the rest is computed, and no more"
        assert n == 0 or cached >= len(system(block_tokens))
        written.append(prompt + ids[:-1])

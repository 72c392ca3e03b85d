"""Prompts that begin alike in some order, and how much of them a cache serves, one after another."""

from __future__ import annotations

import random

from belady import Request
from cache_paper import FULL, layout_of

from kvist.cache.cache import Cache
from kvist.cache.evict import registry
from kvist.ids import SeqId

PREFIX = 512
"""Tokens of a shared prefix."""


def words(rng: random.Random, n: int) -> list[int]:
    return [rng.randrange(1 << 20) for _ in range(n)]


def groups(order: str, seed: int = 0, prefixes: int = 8, each: int = 8) -> list[Request]:
    """8 prompts behind each of 8 prefixes of 512 tokens: 64 tokens of their own, answers of 16. ``order``: loop
    (prefixes take turns), grouped, shuffled, or drawn (each prompt's prefix at random, however often).
    """
    rng = random.Random(seed)
    starts = [words(rng, PREFIX) for _ in range(prefixes)]
    picks = [g for _ in range(each) for g in range(prefixes)]
    if order == "drawn":
        picks = [rng.randrange(prefixes) for _ in picks]
    elif order == "grouped":
        picks.sort()
    elif order == "shuffled":
        rng.shuffle(picks)
    return [(starts[g] + words(rng, 64), words(rng, 16)) for g in picks]


def turns(order: str, seed: int = 0, conversations: int = 8, rounds: int = 5) -> list[Request]:
    """8 conversations of 5 turns behind a shared prefix of 256 tokens: 128 more each turn, answers of 64."""
    rng = random.Random(seed)
    system, made = words(rng, 256), []
    for _ in range(conversations):
        tokens, conversation = list(system), []
        for _ in range(rounds):
            tokens = tokens + words(rng, 128)
            conversation.append((tokens, words(rng, 64)))
            tokens = tokens + conversation[-1][1]
        made.append(conversation)
    order_of = [c for _ in range(rounds) for c in range(conversations)]
    if order == "grouped":
        order_of.sort()
    if order == "shuffled":
        rng.shuffle(order_of)
    left = [iter(conversation) for conversation in made]
    return [next(left[c]) for c in order_of]


def scan(seed: int = 0) -> list[Request]:
    """4 prefixes that come back, and between 8 of their prompts 12 that nobody sends again."""
    rng = random.Random(seed)
    hot = [words(rng, 512) for _ in range(4)]
    return [((rng.choice(hot) if i % 20 < 8 else words(rng, 512)) + words(rng, 64), words(rng, 16)) for i in range(200)]


def endings(seed: int = 0) -> list[Request]:
    """12 conversations in turn, 64 tokens more each time, of which each is replaced by a new one after 6 turns."""
    rng = random.Random(seed)
    asked: list[Request] = []
    open_ones = [words(rng, 64 * (n % 6)) for n in range(12)]
    for i in range(360):
        tokens = open_ones[i % 12] + words(rng, 64)
        asked.append((tokens, words(rng, 16)))
        open_ones[i % 12] = tokens + asked[-1][1] if len(tokens) < 6 * 64 else []
    return asked


def popular(seed: int = 0) -> list[Request]:
    """400 prompts behind 40 prefixes, the n-th of them 1/n as often as the first."""
    rng = random.Random(seed)
    starts = [words(rng, PREFIX) for _ in range(40)]
    picks = rng.choices(range(40), [1 / (n + 1) for n in range(40)], k=400)
    return [(starts[g] + words(rng, 64), words(rng, 16)) for g in picks]


def drift(seed: int = 0) -> list[Request]:
    """600 prompts behind 6 of 60 prefixes at a time: every 12 prompts the oldest makes place for the next."""
    rng = random.Random(seed)
    starts = [words(rng, PREFIX) for _ in range(60)]
    return [(starts[i // 12 + rng.randrange(6)] + words(rng, 64), words(rng, 16)) for i in range(600)]


def served(requests: list[Request], size: int, blocks: int, policy: str) -> int:
    """Cached prompt tokens, one request at a time."""
    cache, found = Cache(layout_of((size, FULL)), blocks=blocks, policy=registry.load(policy)), 0
    for i, (prompt, answer) in enumerate(requests):
        seq, tokens = SeqId(i), prompt + answer
        found += cache.admit(seq, prompt).cached_tokens
        for end in (len(prompt), len(tokens)):
            cache.extend(seq, end)
            cache.drain()
            cache.commit(seq, tokens, end)
        cache.release(seq, tokens, len(tokens))
    cache.check()
    return found

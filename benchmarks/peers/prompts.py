"""Prompts of random token ids, the same for every engine. Standard library only: it runs in each peer's own python."""

import random

FIRST, BEYOND = 100, 49_000
"""Plain tokens of the model's 49,152: no control tokens among them."""


def ids(n, seed):
    """``n`` token ids decided by ``seed``; another seed shares no beginning."""
    draw = random.Random(seed)
    return [draw.randrange(FIRST, BEYOND) for _ in range(n)]


def burst(shared, own, n, seed):
    """``n`` prompts: ``shared`` tokens that all begin with, then ``own`` of each one's."""
    prefix = ids(shared, f"prefix {seed}")
    return [prefix + ids(own, f"own {seed} {i}") for i in range(n)]

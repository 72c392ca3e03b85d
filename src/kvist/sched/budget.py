"""One arithmetic: how many tokens each running sequence may compute in the next step."""

from __future__ import annotations

from collections.abc import Iterable

from kvist.sched.sequence import Sequence


def share(running: Iterable[Sequence], budget: int, chunk_tokens: int) -> list[int]:
    """Tokens for each running sequence, in order; their sum is at most ``budget``.

    First one token for each that merely continues, and for the first in order whatever it lacks: both then advance in
    every step the budget allows. What is left goes to chunks (and drafts), in order, ``chunk_tokens`` each at most.
    """
    running = list(running)
    grants = [0] * len(running)
    for i, seq in enumerate(running):
        if budget and (i == 0 or seq.lacking == 1):
            grants[i] = 1
            budget -= 1
    for i, seq in enumerate(running):
        wanted = seq.lacking + len(seq.drafts)
        if budget and wanted > grants[i]:
            more = min(budget, min(wanted, chunk_tokens) - grants[i])
            grants[i] += more
            budget -= more
    return grants

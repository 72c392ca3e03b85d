"""One arithmetic: how many tokens each running sequence and each newcomer may compute in the next step."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Final

from kvist.sched.sequence import Sequence

FIRST_PERCENT: Final = 80
"""Share of the prompt tokens of a step that the first in order takes at most while others want some too."""

NEXT_PERCENT: Final = 20
"""Share of what is left that the first newcomer takes at least."""


@dataclass(slots=True)
class _Want:
    """``lacking`` decides the turn, ``most`` more tokens can be used; ``got`` so far."""

    lacking: int
    most: int
    prompt: bool
    got: int = 0

    def take(self, n_tokens: int) -> int:
        n_tokens = max(0, min(n_tokens, self.most - self.got))
        self.got += n_tokens
        return n_tokens


def share(
    running: Iterable[Sequence],
    budget: int,
    chunk_tokens: int,
    newcomers: Many[int] = (),
    prompt_tokens: int | None = None,
) -> tuple[list[int], list[int]]:
    """Tokens for each running sequence in order, and for each newcomer (given by what it lacks, in order).

    Their sum is at most ``budget``. First one token for each that merely continues, and for the first in order whatever
    it lacks (unless ``prompt_tokens`` is 0): both then advance whenever the budget allows. Of what is left (at most
    ``prompt_tokens``) the first prompt gets ``FIRST_PERCENT`` at most, and the first newcomer ``NEXT_PERCENT`` of the
    rest at least: it is the one whose turn it is, and starts however many shorter ones come. Then those that lack least
    go first; what nobody wants returns to the first. Nobody gets more than ``chunk_tokens``.
    """
    running = list(running)
    if not newcomers and budget >= len(running) and all(seq.lacking == 1 and not seq.drafts for seq in running):
        return [1] * len(running), []
    grants: list[int] = []
    wants: list[_Want] = []
    for i, seq in enumerate(running):
        grants.append(1 if budget and ((i == 0 and prompt_tokens != 0) or seq.lacking == 1) else 0)
        budget -= grants[-1]
        more = min(seq.lacking + len(seq.drafts), chunk_tokens) - grants[-1]
        wants.append(_Want(seq.lacking, more, seq.lacking > 1))
    at_once = len(wants)
    wants += [_Want(n, min(n, chunk_tokens), True) for n in newcomers]
    rest = budget if prompt_tokens is None else min(budget, prompt_tokens)
    _deal([w for w in wants if w.most > 0], rest, next(iter(wants[at_once:]), None))
    return [g + w.got for g, w in zip(grants, wants, strict=False)], [w.got for w in wants[at_once:]]


def _deal(wants: list[_Want], rest: int, newcomer: _Want | None) -> None:
    first = next((w for w in wants if w.prompt), None) if rest > 0 else None
    if first is not None:
        rest -= first.take(max(1, rest * FIRST_PERCENT // 100) if len(wants) > 1 else rest)
    if newcomer is not None and newcomer is not first and rest > 0:
        rest -= newcomer.take(max(1, rest * NEXT_PERCENT // 100))
    for want in sorted(wants, key=lambda w: w.lacking):
        if want is not first:
            rest -= want.take(rest)
    if first is not None:
        first.take(rest)

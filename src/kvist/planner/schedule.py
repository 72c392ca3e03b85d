"""When first tokens come if ``users`` equal prompts arrive together: the scheduler's arithmetic, without running it.

First come, first served under a token budget: sequences that answer take one token of a step each, the oldest prompt
takes what is left, and what it leaves goes to the next. Short bursts are stepped through one by one; long ones are
integrated over a few sampled steps, because a step's time changes slowly along a prompt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from kvist.cost.work import Chunk

EXACT_STEPS: Final = 64
SAMPLES: Final = 5

StepSeconds = Callable[[Counter[Chunk]], float]
"""Seconds of a step made of these chunks, each as often as it is counted."""


@dataclass(frozen=True, slots=True)
class Burst:
    """Seconds from the arrival of all prompts to the first token of the first, of the average and of the last one."""

    first_s: float
    mean_s: float
    last_s: float
    steps: int


def burst(seconds: StepSeconds, users: int, prompt_tokens: int, cached_tokens: int, budget_tokens: int) -> Burst:
    """First tokens of ``users`` prompts of ``prompt_tokens``, of which ``cached_tokens`` are in the cache already."""
    fresh = max(1, prompt_tokens - cached_tokens)
    n_steps = -(-users * fresh // budget_tokens)
    if n_steps <= EXACT_STEPS and users <= budget_tokens:  # answers of more users leave no room for a prompt, ever
        return _stepped(seconds, users, prompt_tokens, fresh, budget_tokens)
    return _integrated(seconds, users, prompt_tokens, fresh, budget_tokens)


def _stepped(seconds: StepSeconds, users: int, prompt_tokens: int, fresh: int, budget: int) -> Burst:
    left, answered = [fresh] * users, [0] * users
    clock, steps = 0.0, 0
    times: list[float] = []
    while len(times) < users:
        chunks: Counter[Chunk] = Counter()
        room = budget
        for i in range(users):
            take = min(room, left[i] or 1)
            if not take:
                break
            at = prompt_tokens - left[i] + answered[i]
            chunks[Chunk(take, at, rows=int(take >= left[i]))] += 1
            room -= take
            left[i], answered[i] = (left[i] - take, answered[i]) if left[i] else (0, answered[i] + 1)
        clock += seconds(chunks)
        steps += 1
        times += [clock] * (sum(1 for n in left if not n) - len(times))
    return Burst(times[0], sum(times) / users, clock, steps)


def _integrated(seconds: StepSeconds, users: int, prompt_tokens: int, fresh: int, budget: int) -> Burst:
    """Trapezoids over which prompt is being computed and how far it is; each prompt's own time, then their sums."""
    picked = sorted({round(i * (users - 1) / (SAMPLES - 1)) for i in range(SAMPLES)})
    own = [_one_prompt(seconds, i, prompt_tokens, fresh, budget) for i in picked]
    who = np.arange(users)
    firsts = np.cumsum(np.interp(who, picked, own))
    room = np.maximum(1, budget - who)
    steps = int(np.sum(-(-fresh // room)))
    return Burst(float(firsts[0]), float(firsts.mean()), float(firsts[-1]), steps)


def _one_prompt(seconds: StepSeconds, answering: int, prompt_tokens: int, fresh: int, budget: int) -> float:
    """Seconds to compute one prompt while ``answering`` others take a token of every step."""
    answering = min(answering, budget - 1)
    room = min(budget - answering, fresh)
    start = prompt_tokens - fresh
    points = [start + round(k * (fresh - room) / (SAMPLES - 1)) for k in range(SAMPLES)]
    beside = Counter({Chunk(1, prompt_tokens): answering} if answering else {})
    times = [seconds(beside + Counter([Chunk(room, at)])) for at in points]
    return fresh / room * (sum(times) - (times[0] + times[-1]) / 2) / (SAMPLES - 1)

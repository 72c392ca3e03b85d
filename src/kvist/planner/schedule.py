"""When first tokens come if ``users`` equal prompts arrive together: the scheduler's arithmetic, without running it.

First come, first served under a token budget: sequences that answer take one token of a step each, the oldest prompt
takes four fifths of what is left, and the rest goes to the next. Short bursts are stepped through one by one; long ones
are integrated over a few sampled steps, because a step's time changes slowly along a prompt.
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
FIRST_PERCENT: Final = 80
NEXT_PERCENT: Final = 20
NEWCOMERS: Final = 16
"""As the scheduler shares a step: at most so much for the oldest prompt while others wait, at least so much of the rest
for the first that has not begun, at most so many new ones."""

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
        for i, take in enumerate(_shares(left, fresh, budget)):
            if not take:
                continue
            at = prompt_tokens - left[i] + answered[i]
            chunks[Chunk(take, at, rows=int(take >= left[i]))] += 1
            left[i], answered[i] = (left[i] - take, answered[i]) if left[i] else (0, answered[i] + 1)
        clock += seconds(chunks)
        steps += 1
        times += [clock] * (sum(1 for n in left if not n) - len(times))
    return Burst(times[0], sum(times) / users, clock, steps)


def _shares(left: list[int], fresh: int, budget: int) -> list[int]:
    """Tokens of one step for each user, by what its prompt still lacks; 0 lacking: it answers."""
    began = sum(1 for n in left if n < fresh)
    shares = [0] * len(left)
    for i in range(began):
        if budget and (i == 0 or left[i] <= 1):
            shares[i], budget = 1, budget - 1
    wants = [i for i in range(min(len(left), began + NEWCOMERS)) if left[i] > shares[i]]
    if not wants:
        return shares
    first, *others = wants
    percents = [(first, FIRST_PERCENT if others else 100)]
    percents += [(began, NEXT_PERCENT)] if began in others else []
    percents += [(i, 100) for i in (*sorted(others, key=lambda i: left[i]), first)]
    for i, percent in percents:
        take = max(0, min(max(1, budget * percent // 100), budget, left[i] - shares[i]))
        shares[i], budget = shares[i] + take, budget - take
    return shares


def _integrated(seconds: StepSeconds, users: int, prompt_tokens: int, fresh: int, budget: int) -> Burst:
    """Trapezoids over which prompt is being computed and how far it is; each prompt's own time, then their sums.

    When a prompt is done, part of the next is done too.
    """
    picked = sorted({round(i * (users - 1) / (SAMPLES - 1)) for i in range(SAMPLES)})
    curves = [_one_prompt(seconds, i, prompt_tokens, fresh, budget) for i in picked]
    who = np.arange(users)
    ahead = _ahead(users)
    parts = np.array([np.interp(ahead, np.linspace(0, 1, SAMPLES), curve) for curve in curves])
    nearest = np.abs(np.array(picked)[:, None] - who - 1).argmin(axis=0)
    firsts = np.cumsum(np.interp(who, picked, [curve[-1] for curve in curves])) + parts[nearest, who]
    room = np.maximum(1, budget - who)
    steps = int(np.sum(-(-fresh // room)))
    return Burst(float(firsts[0]), float(firsts.mean()), float(firsts[-1]), steps)


def _ahead(users: int) -> np.ndarray:
    """How much of the next prompt, in prompts, is done when each prompt is: what the oldest left over meanwhile."""
    ahead, done = np.zeros(users), 0.0
    for i in range(users - 1):
        done = (1 - done) * (100 - FIRST_PERCENT) / FIRST_PERCENT
        ahead[i] = done
    return ahead


def _one_prompt(seconds: StepSeconds, answering: int, prompt_tokens: int, fresh: int, budget: int) -> np.ndarray:
    """Seconds [SAMPLES] to compute growing parts of a prompt while ``answering`` others take a token of every step."""
    answering = min(answering, budget - 1)
    room = min(budget - answering, fresh)
    start = prompt_tokens - fresh
    points = [start + round(k * (fresh - room) / (SAMPLES - 1)) for k in range(SAMPLES)]
    beside = Counter({Chunk(1, prompt_tokens): answering} if answering else {})
    times = np.array([seconds(beside + Counter([Chunk(room, at)])) for at in points])
    between = (times[1:] + times[:-1]) / 2
    return np.concatenate([[0.0], np.cumsum(between)]) * fresh / room / (SAMPLES - 1)

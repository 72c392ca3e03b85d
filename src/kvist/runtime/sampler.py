"""From logits to tokens: numpy, one row at a time except for the greedy case.

The order is: logit bias, repetition / presence / frequency penalties, barred stop ids (min_tokens), temperature, top-k,
top-p, min-p, draw. Log-probabilities are those of the model's own logits, before any of it. A draw uses one uniform
number that depends on (seed, output index) alone: the same request gives the same tokens whatever runs beside it,
preempted or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kvist.errors import StateError
from kvist.spec.sampling import Sampling
from kvist.step import NewSequence, TokenLogprob

_FIRST_LOOK = 1024
"""Candidates sorted before falling back to the whole vocabulary for top-p."""


@dataclass(slots=True)
class SamplerState:
    """What sampling one sequence remembers. Owner: the executor. Counts exist only when a penalty reads them."""

    sampling: Sampling
    stop_ids: tuple[int, ...]
    prompt: tuple[int, ...]
    output_counts: dict[int, int] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)

    @staticmethod
    def start(new: NewSequence) -> SamplerState:
        """State before the first output token."""
        state = SamplerState(new.sampling, new.stop_ids, new.prompt)
        if new.sampling.repetition_penalty != 1.0:
            state.seen = set(new.prompt)
        return state

    def record(self, token: int) -> None:
        """Note an output token."""
        s = self.sampling
        if s.repetition_penalty != 1.0:
            self.seen.add(token)
        if s.presence_penalty or s.frequency_penalty:
            self.output_counts[token] = self.output_counts.get(token, 0) + 1

    @property
    def plain_greedy(self) -> bool:
        """True when the answer is the argmax of the untouched logits (once min_tokens is behind)."""
        s = self.sampling
        return (
            s.temperature == 0
            and not s.logit_bias
            and s.repetition_penalty == 1.0
            and not s.presence_penalty
            and not s.frequency_penalty
        )


def uniform(seed: int, index: int) -> float:
    """The number in [0, 1) that decides output token ``index`` of a request seeded with ``seed`` (Philox)."""
    counter = np.array([index & (2**64 - 1), 0, 0, 0], dtype=np.uint64)
    key = np.array([seed & (2**64 - 1), (seed >> 64) & (2**64 - 1)], dtype=np.uint64)
    return float(np.random.Generator(np.random.Philox(counter=counter, key=key)).random())


def adjusted(logits: np.ndarray, state: SamplerState, index: int) -> np.ndarray:
    """float32 [vocab]: a copy with bias, penalties and barred ids applied."""
    s = state.sampling
    out = logits.copy()
    for token, bias in s.logit_bias:
        if token < len(out):
            out[token] += bias
    if s.repetition_penalty != 1.0 and state.seen:
        ids = np.fromiter(state.seen, dtype=np.int64)
        hit = out[ids]
        out[ids] = np.where(hit > 0, hit / s.repetition_penalty, hit * s.repetition_penalty)
    if state.output_counts:
        ids = np.fromiter(state.output_counts.keys(), dtype=np.int64)
        counts = np.fromiter(state.output_counts.values(), dtype=np.float32)
        out[ids] -= s.presence_penalty + s.frequency_penalty * counts
    if index < s.min_tokens and state.stop_ids:
        out[list(state.stop_ids)] = -np.inf
    return out


def draw(logits: np.ndarray, s: Sampling, u: float) -> int:
    """One token from adjusted logits float32 [vocab], by inverting the cumulative distribution at ``u``."""
    if s.temperature == 0:
        return int(logits.argmax())
    top = logits.max()
    if top == np.inf or not np.isfinite(top):
        return int(logits.argmax())
    weights = np.exp((logits - top).astype(np.float64) / s.temperature)
    order = _candidates(weights, s)
    kept = weights[order]
    cumulative = np.cumsum(kept)
    return int(order[min(int(np.searchsorted(cumulative, u * cumulative[-1], side="right")), len(order) - 1)])


def _candidates(weights: np.ndarray, s: Sampling) -> np.ndarray:
    """Ids that may be drawn, most likely first (ties by id): top-k, then top-p over what is left, then min-p."""
    vocab = len(weights)
    total = weights.sum()
    size = min(s.top_k or vocab, vocab)
    if s.top_p < 1.0 and size > _FIRST_LOOK and s.top_k == 0:
        order = _largest(weights, _FIRST_LOOK)
        if weights[order].sum() < s.top_p * total:
            order = _largest(weights, vocab)
    elif size < vocab or s.top_p < 1.0:
        order = _largest(weights, size)
        total = weights[order].sum() if s.top_k else total
    else:
        order = np.arange(vocab)
    if s.top_p < 1.0:
        cumulative = np.cumsum(weights[order])
        order = order[: int(np.searchsorted(cumulative, s.top_p * total, side="left")) + 1]
    if s.min_p > 0.0:
        order = order[weights[order] >= s.min_p * weights.max()]
    return order


def _largest(weights: np.ndarray, count: int) -> np.ndarray:
    """Ids of the ``count`` largest weights, largest first, ties by id."""
    if count < len(weights):
        edge = np.partition(weights, len(weights) - count)[len(weights) - count]
        above = np.flatnonzero(weights > edge)
        ids = np.concatenate([above, np.flatnonzero(weights == edge)[: count - len(above)]])
    else:
        ids = np.arange(len(weights))
    return ids[np.lexsort((ids, -weights[ids]))]


def logprob_of(logits: np.ndarray, token: int, alternatives: int) -> TokenLogprob:
    """Log-probability of ``token`` and of the best ``alternatives`` under the untouched logits float32 [vocab]."""
    wide = logits.astype(np.float64)
    top = wide.max()
    log_total = top + np.log(np.exp(wide - top).sum())
    best = _largest(wide, alternatives) if alternatives else np.empty(0, dtype=np.int64)
    return TokenLogprob(
        token=token,
        logprob=float(wide[token] - log_total),
        top=tuple((int(i), float(wide[i] - log_total)) for i in best),
    )


def sample_rows(
    logits: np.ndarray, states: Sequence[SamplerState], indices: Sequence[int]
) -> list[tuple[int, TokenLogprob | None]]:
    """Draw one token per row of ``logits`` float32 [rows, vocab]; ``indices`` are output token numbers.

    States are not updated: the executor records a token once it belongs to the sequence.
    """
    greedy = logits.argmax(axis=1)
    for row, best in enumerate(greedy):  # argmax finds a NaN before any number
        if np.isnan(logits[row, best]):
            raise StateError(
                "the model's logits are not numbers (NaN)",
                remedy="the weights or the config are wrong; with --poison, a read of memory that was never written",
            )
    out: list[tuple[int, TokenLogprob | None]] = []
    for row, (state, index) in enumerate(zip(states, indices, strict=True)):
        s = state.sampling
        if state.plain_greedy and index >= s.min_tokens:
            token = int(greedy[row])
        else:
            u = 0.0 if s.temperature == 0 else uniform(s.seed, index)
            token = draw(adjusted(logits[row], state, index), s, u)
        out.append((token, None if s.logprobs is None else logprob_of(logits[row], token, s.logprobs)))
    return out

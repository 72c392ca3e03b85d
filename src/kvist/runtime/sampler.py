"""From logits to tokens: numpy, one row at a time except for the greedy case.

The order is: logit bias, repetition / presence / frequency penalties, the grammar, barred stop ids (min_tokens),
temperature, top-k, top-p, min-p, draw. Log-probabilities are those of the model's own logits, before any of it. A draw
uses one uniform number that depends on (seed, output index) alone: the same request gives the same tokens whatever runs
beside it, preempted or not. A row that cannot be drawn fails alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kvist.errors import KvistError, StateError, UsageError
from kvist.runtime.grammar import Grammars
from kvist.runtime.grammar_follow import Matcher
from kvist.spec.sampling import Sampling
from kvist.step import NewSequence, TokenLogprob

Draw = tuple[int, TokenLogprob | None]
"""A token and, where asked for, its log-probability."""

_FIRST_LOOK = 1024
"""Candidates sorted before falling back to the whole vocabulary for top-p."""
_RUN = 512
"""Ids whose weights are summed up together."""
_VANISHING = -700.0
"""Logarithms below have no normal float64: weights are equal (zero) where logits are not."""


@dataclass(slots=True)
class SamplerState:
    """What sampling one sequence remembers. Owner: the executor. Counts exist only when a penalty reads them.

    ``trouble`` is why its grammar cannot be followed: every draw of the sequence fails with it.
    """

    sampling: Sampling
    stop_ids: tuple[int, ...]
    prompt: tuple[int, ...]
    output_counts: dict[int, int] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    matcher: Matcher | None = None
    trouble: KvistError | None = None

    @staticmethod
    def start(new: NewSequence, grammars: Grammars | None = None) -> SamplerState:
        """State before the first output token."""
        state = SamplerState(new.sampling, new.stop_ids, new.prompt)
        if new.sampling.repetition_penalty != 1.0:
            state.seen = set(new.prompt)
        if new.sampling.grammar is not None:
            state._follow(new.sampling.grammar, grammars)
        return state

    def _follow(self, grammar: str, grammars: Grammars | None) -> None:
        if grammars is None:
            self.trouble = StateError(
                "this sequence has a grammar, and nothing here can follow one (llguidance is not installed)",
                remedy="pip install 'kvist[server]', or ask without a grammar",
            )
            return
        try:
            self.matcher = grammars.matcher(grammar)
        except Exception as error:
            self.trouble = alone(error)

    def record(self, token: int) -> None:
        """Note an output token."""
        s = self.sampling
        if self.matcher is not None:
            self.matcher.advance(token)
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
            and s.grammar is None
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
        out[_within(state.stop_ids, len(out))] = -np.inf
    return out


def _within(ids: Sequence[int], width: int) -> list[int]:
    """The ids that there are logits for: one past the vocabulary is never drawn, so barring it changes nothing."""
    return [i for i in ids if i < width]


def draw(logits: np.ndarray, s: Sampling, u: float) -> int:
    """One token from adjusted logits float32 [vocab], by inverting the cumulative distribution at ``u``."""
    if s.temperature == 0:
        return int(logits.argmax())
    top = logits.max()
    if top == np.inf or not np.isfinite(top):
        return int(logits.argmax())
    distance = logits - top
    top_k = s.top_k if s.top_k < len(logits) else 0
    if not top_k and s.top_p >= 1.0 and s.min_p == 0.0:
        return _drawn_from_all(_weights(distance, s.temperature), u)
    ids = _nearest(distance, top_k, s.temperature) if top_k else None
    weights = _weights(distance if ids is None else distance[ids], s.temperature)
    order = _candidates(weights, s, top_k)
    cumulative = np.cumsum(weights[order])
    chosen = int(order[min(int(np.searchsorted(cumulative, u * cumulative[-1], side="right")), len(order) - 1)])
    return chosen if ids is None else int(ids[chosen])


def _weights(distance: np.ndarray, temperature: float) -> np.ndarray:
    """Probabilities up to a factor, float64, from distances to the largest logit."""
    out = distance.astype(np.float64)
    out /= temperature
    return np.exp(out, out=out)


def _drawn_from_all(weights: np.ndarray, u: float) -> int:
    """The id at ``u``, without summing up one by one: first the run of ids, then the id within it."""
    whole = len(weights) // _RUN * _RUN
    sums = weights[:whole].reshape(-1, _RUN).sum(axis=1)
    ends = np.cumsum(np.append(sums, weights[whole:].sum()))
    target = u * ends[-1]
    run = min(int(np.searchsorted(ends, target, side="right")), len(ends) - 1)
    inside = weights[run * _RUN : (run + 1) * _RUN]
    cumulative = np.cumsum(inside)
    at = int(np.searchsorted(cumulative, target - (ends[run - 1] if run else 0.0), side="right"))
    if at < len(inside):
        return run * _RUN + at
    return int(np.flatnonzero(weights[: (run + 1) * _RUN])[-1])  # sums of runs and of ids are rounded differently


def _nearest(distance: np.ndarray, top_k: int, temperature: float) -> np.ndarray | None:
    """Ids, ascending, among which the ``top_k`` largest weights are, ties included; None: they may be anywhere."""
    edge = float(np.partition(distance, len(distance) - top_k)[len(distance) - top_k])
    if edge / temperature < _VANISHING:
        return None
    apart = edge - 1e-14 * temperature  # below, a weight is smaller even after rounding
    return np.flatnonzero(distance >= np.nextafter(np.float32(apart), np.float32(-np.inf)))


def _candidates(weights: np.ndarray, s: Sampling, top_k: int) -> np.ndarray:
    """Indices that may be drawn, most likely first (ties by index): top-k, then top-p over what is left, then min-p.

    With min-p alone they come in ascending order.
    """
    if top_k:
        order = _largest(weights, top_k)
        total = weights[order].sum()
    elif s.top_p < 1.0:
        total = weights.sum()
        order = _largest(weights, min(_FIRST_LOOK, len(weights)))
        if weights[order].sum() < s.top_p * total:
            order = _largest(weights, len(weights))
    else:
        return np.flatnonzero(weights >= s.min_p * weights.max())
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
    top = float(logits.max())
    distance = logits.astype(np.float64)
    distance -= top
    log_total = top + np.log(np.exp(distance, out=distance).sum())
    best = _largest(logits, alternatives) if alternatives else np.empty(0, dtype=np.int64)
    return TokenLogprob(
        token=token,
        logprob=float(float(logits[token]) - log_total),
        top=tuple((int(i), float(float(logits[i]) - log_total)) for i in best),
    )


def sample_rows(logits: np.ndarray, states: Sequence[SamplerState], indices: Sequence[int]) -> list[Draw | KvistError]:
    """Draw one token per row of ``logits`` float32 [rows, vocab]; ``indices`` are output token numbers.

    A row that cannot be drawn gives its error in the token's place, and changes nothing for the others, whatever went
    wrong (see ``alone``). States are not updated: the executor records a token once it belongs to the sequence.
    """
    greedy = logits.argmax(axis=1)
    out: list[Draw | KvistError] = []
    for row, (state, index) in enumerate(zip(states, indices, strict=True)):
        s = state.sampling
        try:
            token = _sample_row(logits[row], int(greedy[row]), state, index)
            out.append((token, None if s.logprobs is None else logprob_of(logits[row], token, s.logprobs)))
        except Exception as error:
            out.append(alone(error))
    return out


def _sample_row(logits: np.ndarray, best: int, state: SamplerState, index: int) -> int:
    """One token of one row float32 [vocab], whose argmax is ``best``. Raises ``KvistError``."""
    if np.isnan(logits[best]):  # argmax finds a NaN before any number
        raise not_numbers()
    if state.trouble is not None:
        raise state.trouble
    s = state.sampling
    if state.plain_greedy and index >= s.min_tokens:
        return best
    u = 0.0 if s.temperature == 0 else uniform(s.seed, index)
    row = adjusted(logits, state, index)
    if state.matcher is None:
        return draw(row, s, u)
    ids = _allowed(state, state.matcher, index)
    return int(ids[draw(row[ids], s, u)])


def _allowed(state: SamplerState, matcher: Matcher, index: int) -> np.ndarray:
    """Ids that grammar and ``min_tokens`` leave, ascending. Raises ``UsageError`` when there are none."""
    mask = matcher.allowed()
    if index < state.sampling.min_tokens:
        mask[_within(state.stop_ids, len(mask))] = False
    ids = np.flatnonzero(mask)
    if not len(ids):
        raise UsageError(
            f"the grammar can only end after {index} tokens, min_tokens={state.sampling.min_tokens} forbids it",
            remedy="ask for fewer min_tokens, or for a grammar that can go on",
        )
    return ids


def not_numbers() -> StateError:
    """The error of a sequence whose logits have a NaN."""
    return StateError(
        "the model's logits are not numbers (NaN)",
        remedy="the weights or the config are wrong; with --poison, a read of memory that was never written",
    )


def alone(error: Exception) -> KvistError:
    """The error with which one sequence fails while the others go on: the same, or a bug of ours under its name.

    A failed ``assert`` is raised again: what it says of this sequence may be wrong for all of them.
    """
    if isinstance(error, AssertionError):
        raise error
    if isinstance(error, KvistError):
        return error
    return StateError(f"{type(error).__name__}: {str(error)[:500]}", remedy="report this: it is a bug")

"""The sampler against plain definitions."""

import math
from collections import Counter

import numpy as np
import pytest

from kvist.errors import BadValue
from kvist.runtime.sampler import SamplerState, adjusted, draw, logprob_of, sample_rows, uniform
from kvist.spec.sampling import Sampling
from kvist.step import NewSequence


def state(prompt=(1, 2), stop_ids=(), **knobs):
    return SamplerState.start(NewSequence(0, tuple(prompt), Sampling(**knobs), tuple(stop_ids)))


def frequencies(logits, sampling, n=20_000):
    seen = Counter(draw(np.asarray(logits, np.float32), sampling, uniform(7, i)) for i in range(n))
    return np.array([seen[i] / n for i in range(len(logits))])


def softmax(x):
    e = np.exp(np.asarray(x, float) - max(x))
    return e / e.sum()


LOGITS = [2.0, 1.0, 0.5, 0.5, -1.0, -3.0]


def test_plain_sampling_follows_the_softmax():
    assert frequencies(LOGITS, Sampling()) == pytest.approx(softmax(LOGITS), abs=0.015)


def test_temperature_sharpens():
    half = softmax(np.array(LOGITS) / 0.5)
    assert frequencies(LOGITS, Sampling(temperature=0.5)) == pytest.approx(half, abs=0.015)


@pytest.mark.parametrize("k", [1, 2, 3, 6, 50])
def test_top_k_keeps_k(k):
    want = softmax(LOGITS)
    want[np.argsort(-want, kind="stable")[k:]] = 0
    assert frequencies(LOGITS, Sampling(top_k=k)) == pytest.approx(want / want.sum(), abs=0.015)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.7, 0.95, 1.0])
def test_top_p_keeps_the_smallest_set_that_reaches_p(p):
    probs = softmax(LOGITS)
    order = np.argsort(-probs, kind="stable")
    n = next(i + 1 for i in range(len(order)) if probs[order[: i + 1]].sum() >= p - 1e-12)
    want = np.zeros_like(probs)
    want[order[:n]] = probs[order[:n]]
    assert frequencies(LOGITS, Sampling(top_p=p)) == pytest.approx(want / want.sum(), abs=0.015)


def test_top_p_over_a_flat_large_vocabulary_looks_past_the_first_candidates():
    logits = np.zeros(50_000, np.float32)
    s = Sampling(top_p=0.9)
    drawn = {draw(logits, s, uniform(1, i)) for i in range(300)}
    assert max(drawn) > 20_000
    assert max(drawn) < 45_001


def test_min_p():
    probs = softmax(LOGITS)
    want = np.where(probs >= 0.3 * probs.max(), probs, 0)
    assert frequencies(LOGITS, Sampling(min_p=0.3)) == pytest.approx(want / want.sum(), abs=0.015)


def drawn_plainly(logits, s, u):
    """The law in the order of its definition, over the whole vocabulary."""
    weights = np.exp((logits - logits.max()).astype(np.float64) / s.temperature)
    top_k = s.top_k if s.top_k < len(logits) else 0
    order = np.arange(len(logits))
    if top_k or s.top_p < 1:
        order = np.lexsort((order, -weights))[: top_k or len(logits)]
    order = order[: int(np.searchsorted(np.cumsum(weights[order]), s.top_p * weights[order].sum())) + 1]
    order = order[weights[order] >= s.min_p * weights.max()]
    cumulative = np.cumsum(weights[order])
    return int(order[np.searchsorted(cumulative, u * cumulative[-1], side="right")])


KNOBS = [
    {}, {"top_k": 1}, {"top_k": 5}, {"top_k": 39}, {"top_k": 700}, {"top_p": 0.9}, {"top_p": 0.3, "top_k": 20},
    {"min_p": 0.05}, {"min_p": 0.2, "top_k": 9, "top_p": 0.95},
]  # fmt: skip


@pytest.mark.parametrize("knobs", KNOBS, ids=str)
@pytest.mark.parametrize("vocab", [3, 40, 511, 512, 513, 5000])
def test_draws_are_those_of_the_plain_definition(vocab, knobs):
    """Ties, barred ids, logits that differ in the last bit or vanish: the same token for the same number."""
    rng = np.random.default_rng(vocab)
    for spread, temperature in [(1e-9, 1.0), (1.0, 0.7), (5.0, 100.0), (30.0, 0.05), (8.0, 0.001)]:
        logits = (spread * rng.standard_normal(vocab)).astype(np.float32)
        for row in (logits, np.round(logits * 2) / 2, np.where(rng.random(vocab) < 0.6, logits.max(), -np.inf)):
            s = Sampling(temperature=temperature, **knobs)
            for u in (0.0, 1 - 1e-9, *rng.random(12)):
                assert draw(row.astype(np.float32), s, u) == drawn_plainly(row.astype(np.float32), s, u)


def test_the_largest_number_draws_the_last_id_that_can_be_drawn():
    """Sums of runs round differently from sums of ids: never an id whose weight is zero."""
    rng = np.random.default_rng(0)
    for vocab in (700, 1024, 4000):
        logits = rng.standard_normal(vocab).astype(np.float32)
        logits[-90:] = -np.inf
        assert draw(logits, Sampling(), 1 - 2**-53) == vocab - 91


def test_greedy_ties_go_to_the_lowest_id_and_nan_free():
    assert draw(np.array([0, 3, 3], np.float32), Sampling(temperature=0), 0.9) == 1


def test_penalties_by_hand():
    s = state(prompt=(0,), repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25)
    for token in (1, 1, 3):
        s.record(token)
    out = adjusted(np.array([4.0, 4.0, 4.0, -4.0], np.float32), s, 3)
    # 0: in the prompt, repetition only. 1: repetition, then 0.5 + 2 * 0.25. 3: negative logits multiply.
    assert out.tolist() == [2.0, 2.0 - 1.0, 4.0, -8.0 - 0.75]


def test_logit_bias_and_barred_stop_ids():
    s = state(stop_ids=(2,), logit_bias=((0, 5.0),), min_tokens=2, temperature=0)
    logits = np.array([0.0, 1.0, 9.0], np.float32)
    assert adjusted(logits, s, 0).tolist() == [5.0, 1.0, -math.inf]
    assert [sample_rows(logits[None], [s], [i])[0][0] for i in (0, 1, 2)] == [0, 0, 2]


def test_greedy_without_penalties_still_bars_stop_ids_while_min_tokens():
    s = state(stop_ids=(2,), min_tokens=1, temperature=0)
    logits = np.array([[0.0, 1.0, 9.0]], np.float32)
    assert [sample_rows(logits, [s], [i])[0][0] for i in (0, 1)] == [1, 2]


def test_a_draw_depends_on_seed_and_index_only():
    rows = np.random.default_rng(0).normal(size=(3, 100)).astype(np.float32)
    states = [state(seed=i) for i in range(3)]
    together = sample_rows(rows, states, [5, 6, 7])
    alone = [sample_rows(rows[i : i + 1], [states[i]], [5 + i])[0] for i in range(3)]
    assert together == alone
    assert len({uniform(s, i) for s in range(30) for i in range(30)}) == 900
    assert uniform(2**70 + 1, 0) != uniform(1, 0)


def test_logprobs_are_the_models_own():
    logits = np.array(LOGITS, np.float32)
    got = logprob_of(logits, 4, 3)
    want = np.log(softmax(LOGITS))
    assert got.logprob == pytest.approx(want[4], abs=1e-6)
    assert [t for t, _ in got.top] == [0, 1, 2]
    assert [x for _, x in got.top] == pytest.approx(want[:3], abs=1e-6)
    biased = state(logit_bias=((5, 100.0),), logprobs=1, temperature=0)
    token, lp = sample_rows(logits[None], [biased], [0])[0]
    assert token == 5 and lp.logprob == pytest.approx(want[5], abs=1e-6)


@pytest.mark.parametrize(
    "knobs",
    [
        {"temperature": math.nan},
        {"temperature": -1},
        {"temperature": math.inf},
        {"top_p": 0},
        {"top_p": 1.5},
        {"top_k": -1},
        {"min_p": -0.1},
        {"repetition_penalty": 0},
        {"logprobs": 21},
        {"logit_bias": ((1, math.nan),)},
        {"min_tokens": -1},
    ],
)
def test_bad_parameters_are_refused_with_their_name_and_value(knobs):
    with pytest.raises(BadValue) as e:
        Sampling(**knobs)
    assert next(iter(knobs)) in str(e.value)

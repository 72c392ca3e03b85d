"""A sequence whose numbers make no sense ends alone: all others' tokens and log-probabilities stay bit for bit."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny_engine import ask, engine, run, words  # noqa: E402

from kvist.errors import StateError  # noqa: E402
from kvist.runtime import sampler  # noqa: E402
from kvist.runtime.sampler import SamplerState, sample_rows  # noqa: E402
from kvist.spec.sampling import Sampling  # noqa: E402
from kvist.step import NewSequence, StepResult, from_plain, to_plain  # noqa: E402

KNOBS = [
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 3},
    {"temperature": 0.7, "top_p": 0.9, "repetition_penalty": 1.3},
    {"temperature": 0.0, "logit_bias": ((5, 2.0),)},
    {"temperature": 0.0, "logprobs": 3},
    {"temperature": 1.0, "min_tokens": 9},
]


def states(knobs=KNOBS, stop_ids=(1,)):
    return [SamplerState.start(NewSequence(i, (4, 5), Sampling(**k), stop_ids)) for i, k in enumerate(knobs)]


@pytest.mark.parametrize("bad", range(len(KNOBS)))
@pytest.mark.parametrize("whole_row", [True, False])
def test_a_row_that_is_no_numbers_changes_no_other(bad, whole_row):
    rows = np.random.default_rng(1).normal(size=(len(KNOBS), 300)).astype(np.float32)
    want = sample_rows(rows, states(), [2] * len(KNOBS))
    rows[bad, slice(None) if whole_row else 77] = np.nan
    got = sample_rows(rows, states(), [2] * len(KNOBS))
    assert isinstance(got[bad], StateError) and "NaN" in str(got[bad])
    assert [g for i, g in enumerate(got) if i != bad] == [w for i, w in enumerate(want) if i != bad]


def test_all_rows_may_fail():
    got = sample_rows(np.full((2, 9), np.nan, np.float32), states(KNOBS[:2]), [0, 0])
    assert [type(g) for g in got] == [StateError, StateError]


def test_a_grammar_without_a_library_fails_its_row():
    rows = np.zeros((2, 50), np.float32)
    got = sample_rows(rows, states([{"temperature": 0.0, "grammar": 'start: "a"'}, {"temperature": 0.0}]), [0, 0])
    assert "kvist[server]" in str(got[0]) and got[1] == (0, None)


BEYOND = (300, 301, 2_000_000_000)
"""Ids past logits 300 wide."""


@pytest.mark.parametrize("stop_ids", [BEYOND, (7, *BEYOND)])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_stop_ids_past_the_vocabulary_bar_nothing(stop_ids, temperature):
    rows = np.random.default_rng(2).normal(size=(1, 300)).astype(np.float32)
    rows[0, 7] = 20.0
    knobs = [{"temperature": temperature, "min_tokens": 3, "seed": 5}]
    got = sample_rows(rows, states(knobs, stop_ids), [1])
    assert got == sample_rows(rows, states(knobs, tuple(t for t in stop_ids if t < 300)), [1])
    assert (got[0][0] == 7) == (7 not in stop_ids)


def test_biases_past_the_vocabulary_move_nothing():
    rows = np.random.default_rng(3).normal(size=(1, 300)).astype(np.float32)
    biased = [{"temperature": 0.0, "logit_bias": tuple((t, 100.0) for t in BEYOND)}]
    assert sample_rows(rows, states(biased), [1]) == sample_rows(rows, states([{"temperature": 0.0}]), [1])


class Broken:
    """A grammar whose library raises at the call it is told to."""

    def __init__(self, where, error):
        self.where, self.error = where, error

    def allowed(self):
        if self.where == "mask":
            raise self.error
        return np.ones(300, dtype=bool)

    def advance(self, token):
        if self.where == "record":
            raise self.error


FAULTS = {
    "adjust": {"seen": {4_000}, "knobs": {"repetition_penalty": 1.3}},
    "count": {"output_counts": {5_000: 1}, "knobs": {"presence_penalty": 0.5}},
    "mask": {"matcher": Broken("mask", RuntimeError("no more")), "knobs": {"grammar": 'start: "a"'}},
    "draw": {"sampling": None, "knobs": {}},
    "score": {"knobs": {"temperature": 0.0}},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_goes_wrong_in_a_row_stays_there(fault, monkeypatch):
    rows = np.random.default_rng(1).normal(size=(len(KNOBS) + 1, 300)).astype(np.float32)
    want = sample_rows(rows[:-1], states(), [2] * len(KNOBS))
    how = FAULTS[fault]
    [bad] = states([how["knobs"]])
    bad.trouble = None
    for name, value in how.items():
        if name != "knobs":
            setattr(bad, name, value)
    if fault == "score":
        real = sampler.logprob_of
        bad.sampling = Sampling(temperature=0.0, logprobs=7)
        monkeypatch.setattr(sampler, "logprob_of", lambda row, t, n: 1 / 0 if n == 7 else real(row, t, n))
    got = sample_rows(rows, [*states(), bad], [2] * (len(KNOBS) + 1))
    assert got[:-1] == want
    names = {"mask": "RuntimeError: no more;", "draw": "AttributeError: ", "score": "ZeroDivisionError: "}
    assert isinstance(got[-1], StateError)
    assert str(got[-1]).startswith(names.get(fault, "IndexError: ")) and str(got[-1]).endswith(
        "report this: it is a bug"
    )


def test_failed_asserts_are_for_all_to_see():
    [bad] = states([{"grammar": 'start: "a"'}])
    bad.trouble, bad.matcher = None, Broken("mask", AssertionError("ours"))
    with pytest.raises(AssertionError, match="ours"):
        sample_rows(np.zeros((1, 300), np.float32), [bad], [0])


def test_a_library_that_breaks_when_the_sequence_starts():
    def matcher(grammar):
        raise OSError("too many open files")

    new = NewSequence(0, (4, 5), Sampling(grammar='start: "a"'), (1,))
    got = sample_rows(np.zeros((1, 300), np.float32), [SamplerState.start(new, SimpleNamespace(matcher=matcher))], [0])
    assert str(got[0]) == "OSError: too many open files; report this: it is a bug"


def recorded(requests):
    """The plans of an undisturbed run, its results, and how many blocks it may use."""
    eng = engine("llama", budget=64)
    plans, results = [], []
    execute = eng.executor.execute

    def spy(plan):
        plans.append(plan)
        results.append(execute(plan))
        return results[-1]

    eng.executor.execute = spy
    run(eng, requests)
    return plans, results


def replayed(plans, poison, at_step):
    """The same plans carried out again, with the blocks of ``poison`` NaN before plan number ``at_step``."""
    executor = engine("llama", budget=64).executor
    results = []
    for n, plan in enumerate(plans):
        if n == at_step:
            executor.store.pool[executor.tables.row(poison, 0).tolist()] = 0xFF
        results.append(executor.execute(plan))
    return results


def told(result, seq):
    """What a result says of everybody else."""
    return [s for s in result.sampled if s.seq != seq], [p for p in result.prompt_logprobs if p.seq != seq]


@pytest.mark.parametrize("poison", [0, 2])
@pytest.mark.parametrize("at_step", [1, 4])
def test_one_poisoned_sequence_of_four(poison, at_step):
    """Its keys and values become NaN between two steps; no step fails, and the rest is the same bit for bit."""
    how = [Sampling(temperature=0.0, logprobs=2), Sampling(seed=4, logprobs=0)]
    requests = [ask(f"r{i}", words(9 + 20 * i, seed=i), 8, sampling=how[i % 2]) for i in range(4)]
    plans, want = recorded(requests)
    got = replayed(plans, poison, at_step)
    assert [told(g, poison) for g in got] == [told(w, poison) for w in want]
    for n, (result, plan) in enumerate(zip(got, plans, strict=True)):
        asked = any(s.seq == poison for s in plan.samples)
        if n < at_step or not asked:
            assert result.failed == ()
        else:
            assert [f.seq for f in result.failed] == [poison] and "NaN" in result.failed[0].error
            assert poison not in {s.seq for s in result.sampled}
        assert from_plain(StepResult, to_plain(result)) == result
    assert any(r.failed for r in got)


def test_prompt_logprobs_that_are_no_numbers():
    """In a chunk that draws nothing yet: listed as failed, without log-probabilities, the other prompt's unchanged."""
    requests = [ask(f"r{i}", words(150 - 70 * i, seed=i), 2, prompt_logprobs=1) for i in range(2)]
    plans, want = recorded(requests)
    got = replayed(plans, 0, 1)
    first = next(n for n, r in enumerate(got) if r.failed)
    assert not any(s.seq == 0 for s in plans[first].samples)
    assert [f.seq for f in got[first].failed] == [0] and not any(p.seq == 0 for p in got[first].prompt_logprobs)
    assert [told(g, 0) for g in got] == [told(w, 0) for w in want]
    assert any(p.seq == 1 for r in got for p in r.prompt_logprobs)


def test_a_failed_sequence_draws_nothing_even_where_it_could():
    """One row of a prompt's log-probabilities is NaN, the row to draw from is fine: no token of it is told."""
    eng = engine("llama")
    real = eng.executor._decoder

    def forward(batch):
        logits = real.forward(batch)
        logits[0] = float("nan")
        return logits

    eng.executor._decoder = SimpleNamespace(forward=forward)
    results = []
    execute = eng.executor.execute
    eng.executor.execute = lambda plan: results.append(execute(plan)) or results[-1]
    run(eng, [ask("r", words(20), 2, prompt_logprobs=0), ask("s", words(9), 1)])
    assert [f.seq for f in results[0].failed] == [0] and [s.seq for s in results[0].sampled] == [1]


def spied(eng):
    """The results of its steps, as they come."""
    results = []
    execute = eng.executor.execute
    eng.executor.execute = lambda plan: results.append(execute(plan)) or results[-1]
    return results


def test_a_stop_id_past_the_vocabulary_ends_nobodys_answer():
    """It arrives beside a long answer, whose tokens stay the same, and is itself answered."""
    long = ask("long", words(9), 12)
    alone = run(engine("llama"), [long])
    strange = replace(ask("strange", words(5), 4, sampling=Sampling(min_tokens=2)), stop_ids=(1, 2_000_000_000))
    eng = engine("llama")
    results = spied(eng)
    together = run(eng, [long, strange])
    assert not any(r.failed for r in results)
    assert {k: together[k] for k in alone} == alone
    assert len(together["strange", 0].tokens) > 0


def only_failure(results):
    """The one sequence that failed, and why."""
    failed = {f.seq: f.error for r in results for f in r.failed}
    assert len(failed) == 1
    return next(iter(failed.items()))


@pytest.mark.parametrize("prompt_logprobs", [None, 1])
def test_one_sequence_fails_alone_inside_the_engine(prompt_logprobs, monkeypatch):
    """Noting a drawn token, or scoring a prompt, goes wrong for the second of three sequences."""
    requests = [ask(f"r{i}", words(9 + i, seed=i), 6, prompt_logprobs=prompt_logprobs) for i in range(3)]
    want = run(engine("llama"), requests)
    eng = engine("llama")
    results = spied(eng)
    if prompt_logprobs is None:
        real = SamplerState.record

        def record(state, token):
            if len(state.prompt) == 10:
                raise KeyError("lost")
            real(state, token)

        monkeypatch.setattr(SamplerState, "record", record)
    else:
        score = eng.executor._score_prompt

        def scored(index, chunk, *rest):
            if chunk.seq == 1:
                raise KeyError("lost")
            return score(index, chunk, *rest)

        eng.executor._score_prompt = scored
    got = run(eng, requests)
    assert only_failure(results) == (1, "KeyError: 'lost'; report this: it is a bug")
    assert not any(s.seq == 1 for r in results for s in r.sampled if r.failed)
    assert {k: v for k, v in got.items() if k[0] != "r1"} == {k: v for k, v in want.items() if k[0] != "r1"}

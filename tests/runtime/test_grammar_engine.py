"""Grammars inside the engine, on tiny models: order of the adjustments, batches, samples, preemption."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("llguidance")

from tiny_engine import VOCAB, B, Options, ask, parts, run, words  # noqa: E402
from tiny_words import EOS, FIRST, text_of  # noqa: E402

from kvist.config import CacheConfig, EngineConfig, SchedConfig  # noqa: E402
from kvist.errors import BadValue, UsageError  # noqa: E402
from kvist.runtime.build import BuildOptions, build_engine  # noqa: E402
from kvist.runtime.sampler import SamplerState, adjusted, draw, sample_rows, uniform  # noqa: E402
from kvist.runtime.store import Store  # noqa: E402
from kvist.spec.format import KVFormat  # noqa: E402
from kvist.spec.layout import plan_layout  # noqa: E402
from kvist.spec.sampling import Sampling  # noqa: E402
from kvist.step import NewSequence  # noqa: E402

NUMBER = '{"grammars":[{"lark_grammar":"start: /[1-9][0-9]{5,30}x/"}]}'


def engine(grammars, **changes):
    o = replace(Options(), **changes)
    spec, weights = parts("llama")
    layout = plan_layout(spec, KVFormat.parse("f32"), block_tokens=B)
    config = EngineConfig(
        CacheConfig(blocks=o.blocks, block_tokens=B, format="f32", reuse=o.reuse),
        SchedConfig(token_budget=o.budget, chunk_tokens=o.chunk, max_sequences=o.sequences),
    )
    how = BuildOptions(numerics="invariant", poison=True, engine=config)
    return build_engine(spec, weights, Store(layout, blocks=o.blocks, poison=True), how, grammars=grammars)[0]


def limited(name, length, seed=0, grammar=NUMBER, n_out=40, **more):
    sampling = Sampling(grammar=grammar, **{"temperature": 0.0, **more.pop("sampling", {})})
    return ask(name, words(length, seed=seed), n_out, sampling=sampling, stop_ids=(EOS,), **more)


def start(grammars, grammar, stop_ids=(EOS,), **knobs):
    return SamplerState.start(NewSequence(0, (1, 2), Sampling(grammar=grammar, **knobs), stop_ids), grammars)


# --- one row ------------------------------------------------------------------------------------------------------

LOGITS = np.random.default_rng(3).normal(scale=3, size=(40, VOCAB)).astype(np.float32)
DIGITS = range(FIRST + ord("0"), FIRST + ord("9") + 1)


def test_greedy_takes_the_best_allowed(grammars):
    for row in LOGITS:
        got = sample_rows(row[None], [start(grammars, "start: /[0-9]/", temperature=0.0)], [0])[0][0]
        assert got == max(DIGITS, key=lambda t: row[t])


@pytest.mark.parametrize(
    "knobs", [{}, {"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.6}, {"min_p": 0.2}, {"top_k": 4, "top_p": 0.5}]
)
def test_draws_are_those_of_logits_with_all_else_barred(grammars, knobs):
    """Against the plain definition: minus infinity for what the grammar forbids, then as ever."""
    for i, row in enumerate(LOGITS):
        state = start(grammars, "start: /[0-9]/", seed=5, logit_bias=((FIRST + 50, 1.0),), **knobs)
        barred = np.full_like(row, -np.inf)
        barred[DIGITS] = adjusted(row, state, i)[DIGITS]
        want = draw(barred, state.sampling, uniform(5, i))
        assert sample_rows(row[None], [state], [i])[0][0] == want


def test_bias_and_penalties_count_among_the_allowed(grammars):
    row = LOGITS[0]
    best, second = sorted(DIGITS, key=lambda t: -row[t])[:2]
    for knobs in ({"logit_bias": ((best, -50.0),)}, {"presence_penalty": 60.0}):
        state = start(grammars, "start: /[0-9]{9}/", temperature=0.0, **knobs)
        if "presence_penalty" in knobs:
            state.record(best)
        assert sample_rows(row[None], [state], [1])[0][0] == second


def test_a_bias_cannot_break_the_grammar(grammars):
    state = start(grammars, "start: /[0-9]/", temperature=0.0, logit_bias=((FIRST + ord("x"), 100.0),))
    assert sample_rows(LOGITS[:1], [state], [0])[0][0] in DIGITS


def test_logprobs_are_those_of_the_untouched_logits(grammars):
    row = LOGITS[0]
    token, got = sample_rows(row[None], [start(grammars, "start: /[0-9]/", temperature=0.0, logprobs=2)], [0])[0]
    logprobs = row - row.max() - np.log(np.exp(row - row.max()).sum())
    assert got.logprob == pytest.approx(logprobs[token], abs=1e-5)
    assert [t for t, _ in got.top] == np.argsort(-row)[:2].tolist()


def test_min_tokens_keep_an_open_grammar_going_and_fail_a_closed_one(grammars):
    row = LOGITS[:1].copy()
    row[0, EOS] = 99.0
    going = start(grammars, "start: /[0-9]*/", temperature=0.0, min_tokens=3)
    assert sample_rows(row, [going], [2])[0][0] in DIGITS
    assert sample_rows(row, [going], [3])[0][0] == EOS
    closed = start(grammars, "start: /[0-9]/", temperature=0.0, min_tokens=3)
    closed.record(DIGITS[0])
    got = sample_rows(np.concatenate([row, row]), [closed, going], [1, 3])
    assert isinstance(got[0], UsageError) and "min_tokens=3" in str(got[0]) and got[1][0] == EOS


def test_a_bad_grammar_fails_its_row_only(grammars):
    got = sample_rows(LOGITS[:2], [start(grammars, "nonsense"), start(grammars, "start: /[0-9]/")], [0, 0])
    assert isinstance(got[0], BadValue) and "llguidance" in str(got[0]) and got[1][0] in DIGITS


def test_allowed_tokens_that_the_model_gives_no_weight(grammars):
    """Minus infinity everywhere it may go: still never outside the grammar."""
    row = LOGITS[:1].copy()
    row[0, DIGITS] = -np.inf
    for knobs in ({"temperature": 0.0}, {"temperature": 1.0}, {"top_p": 0.3}):
        assert sample_rows(row, [start(grammars, "start: /[0-9]/", **knobs)], [0])[0][0] in DIGITS


# --- sequences ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 8}, {"temperature": 3.0, "top_p": 0.9}])
def test_outputs_obey_and_end(grammars, sampling):
    outs = run(engine(grammars), [limited(f"r{i}", 5 + 9 * i, i, sampling=sampling) for i in range(5)])
    for out in outs.values():
        assert re.fullmatch("[1-9][0-9]{5,30}x", text_of(out.tokens)) and out.tokens[-1] == EOS
        assert out.finish_reason == "stop"


def test_neighbours_change_nothing(grammars):
    many = [limited("g", 9), ask("plain", words(20, 1)), limited("h", 30, 2, sampling={"temperature": 1.0})]
    together = run(engine(grammars), many)
    assert together == {k: v for r in many for k, v in run(engine(grammars), [r]).items()}
    assert together["plain", 0] == run(engine(None), [many[1]])["plain", 0]


def test_each_sample_has_its_own_place_in_the_grammar(grammars):
    outs = run(engine(grammars), [limited("r", 12, n=6, sampling={"temperature": 1.5, "seed": 2})])
    texts = [text_of(o.tokens) for o in outs.values()]
    assert len(outs) == 6 and len(set(texts)) == 6
    assert all(re.fullmatch("[1-9][0-9]{5,30}x", t) for t in texts)


def test_preemption_keeps_the_place_in_the_grammar(grammars):
    requests = [limited(f"r{i}", 40, i, sampling={"temperature": 1.0, "seed": i}) for i in range(4)]
    calm = run(engine(grammars), requests)
    tight = run(engine(grammars, blocks=12), requests)
    assert sum(o.preemptions for o in tight.values()) > 0
    assert {k: o.tokens for k, o in tight.items()} == {k: o.tokens for k, o in calm.items()}


def test_cut_by_max_tokens_and_by_a_stop_id(grammars):
    out = run(engine(grammars), [limited("r", 9, n_out=4)])["r", 0]
    assert out.finish_reason == "length" and re.fullmatch("[1-9][0-9]{3}", text_of(out.tokens))


def test_an_end_that_is_ignored_is_drawn_again(grammars):
    out = run(engine(grammars), [limited("r", 9, grammar='start: "ab"', n_out=5, ignore_eos=True)])["r", 0]
    assert out.tokens == (FIRST + ord("a"), FIRST + ord("b"), EOS, EOS, EOS) and out.finish_reason == "length"


@pytest.mark.parametrize("without", [True, False])
def test_a_sequence_whose_grammar_fails_ends_alone(grammars, without):
    """No library here, or no grammar: its own end is an error that teaches, its neighbour's answer is as ever."""
    eng = engine(None if without else grammars)
    bad = limited("bad", 9, grammar='start: "a"' if without else "nonsense")
    outs = run(eng, [bad, ask("plain", words(20, 1))])
    assert outs["plain", 0] == run(engine(None), [ask("plain", words(20, 1))])["plain", 0]
    assert outs["bad", 0].finish_reason == "error" and outs["bad", 0].tokens == ()
    assert run(eng, [ask("next", words(5))])["next", 0].finish_reason == "length"


def test_json_in_a_vocabulary_of_bytes(grammars):
    schema = {
        "type": "object",
        "properties": {"a": {"enum": ["x", "yy"]}, "b": {"type": "boolean"}},
        "required": ["a", "b"],
    }
    text = grammars.json_schema({**schema, "additionalProperties": False})
    for seed in range(4):
        out = run(engine(grammars), [limited("r", 9, seed, text, 60, sampling={"temperature": 2.0, "seed": seed})])[
            "r", 0
        ]
        assert set(json.loads(text_of(out.tokens))) == {"a", "b"}

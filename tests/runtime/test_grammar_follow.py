"""What following a grammar may cost: ordinary schemas come nowhere near it, a slow sequence ends alone."""

import json
import random

import numpy as np
import pytest

pytest.importorskip("llguidance")
pytest.importorskip("tokenizers")

from tiny_words import EOS  # noqa: E402

from kvist.errors import BadValue, UsageError  # noqa: E402
from kvist.runtime import grammar_follow, grammar_words  # noqa: E402
from kvist.runtime.grammar_follow import MEAN_MASK_S, MOST_MASK_S, OPENING_MASKS, OPENING_S, Matcher  # noqa: E402


class Slow:
    """A library whose n-th mask takes ``masks_s[n]`` (the last one for ever), and each token ``token_s``."""

    def __init__(self, monkeypatch, masks_s, token_s=0.0):
        self.now_s, self.masks_s, self.token_s = 0.0, list(masks_s), token_s
        monkeypatch.setattr(grammar_follow.time, "thread_time", lambda: self.now_s)

    def compute_bitmask(self):
        self.now_s += self.masks_s.pop(0) if len(self.masks_s) > 1 else self.masks_s[0]
        return b"\xff"

    def consume_token(self, token):
        self.now_s += self.token_s

    def is_error(self):
        return False


def masks_before_the_end(core, most=2000):
    matcher = Matcher(core, 8)
    for n in range(most):
        try:
            assert matcher.allowed().all()
        except UsageError as error:
            assert "ms of processor time" in str(error) and "simplify" in str(error)
            return n
        matcher.advance(1)
    return most


QUICK = [0.0005]


@pytest.mark.parametrize(
    "masks_s,token_s,want",
    [
        (QUICK, 0.0, 2000),
        ([0.15, *QUICK], 0.0, 2000),  # the library builds its tables when it is first asked
        ([*QUICK * 100, 0.045, *QUICK], 0.0, 2000),
        ([0.0095], 0.0, 2000),
        (([*QUICK * 15, 0.04]) * 100, 0.0, 1600),  # a slow one now and then, until the last one repeats
        ([0.25, *QUICK], 0.0, 0),
        ([*QUICK * 100, 0.055, *QUICK], 0.0, 100),
        ([*QUICK * OPENING_MASKS, 0.15, *QUICK], 0.0, OPENING_MASKS),  # what was not spent at first is not saved
        ([*QUICK * 100, 0.045, 0.045], 0.0, 101),
        ([0.0005], 0.06, 4),  # taking a token in counts as well
    ],
)
def test_the_bucket(monkeypatch, masks_s, token_s, want):
    got = masks_before_the_end(Slow(monkeypatch, masks_s, token_s))
    assert got == want if want < 1600 else got >= want


@pytest.mark.parametrize("mask_s", [0.012, 0.02, 0.04, 0.2, 0.9])
def test_nobody_is_held_up_for_long(monkeypatch, mask_s):
    """All that a sequence may take before it ends: the opening, and the mean for each of its tokens."""
    core = Slow(monkeypatch, [mask_s])
    n = masks_before_the_end(core)
    assert n < 50 and core.now_s <= OPENING_S + MEAN_MASK_S * (n + 1) + mask_s
    assert MOST_MASK_S < OPENING_S


BIG = {
    "tools": {
        "anyOf": [
            {"type": "object", "properties": {"name": {"const": f"t{i}"}, "args": {"type": "object"}}}
            for i in range(50)
        ]
    },
    "enums": {"type": "object", "properties": {f"k{i}": {"enum": [f"v{i}_{n}" for n in range(40)]} for i in range(20)}},
    "strings": {"type": "object", "properties": {f"k{i}": {"type": "string", "maxLength": 50} for i in range(100)}},
    "formats": {"type": "array", "items": {"type": "string", "format": "date-time"}},
    "any": {"type": "object"},
}


@pytest.mark.parametrize("name", BIG)
def test_ordinary_schemas_leave_the_bucket_full(grammars, name):
    """Random walks through large schemas: never less than half of it."""
    text = grammars.json_schema(BIG[name])
    for seed in range(3):
        matcher, r = grammars.matcher(text), random.Random(seed)
        for _ in range(80):
            options = np.flatnonzero(matcher.allowed())
            assert matcher._left_s > MOST_MASK_S / 2
            token = int(r.choice(options))
            if token == EOS:
                break
            matcher.advance(token)


def test_a_first_mask_that_takes_too_long_is_refused_before_anybody_waits(grammars, monkeypatch):
    """Text that is forced from the first token on is spelled whole in the first mask."""
    long = json.dumps("xyz" * 6000)
    grammars.check(f"start: {long}")
    monkeypatch.setattr(grammar_words, "MOST_FIRST_MASK_S", 0.001)
    with pytest.raises(BadValue, match="first token takes"):
        grammars.check(f'start: "!" {long}')

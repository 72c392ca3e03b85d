"""What may be asked: refused at once with the name of what is wrong, or taken."""

import numpy as np
import pytest

pytest.importorskip("torch")

from kvist.errors import BadValue  # noqa: E402
from kvist.runtime.ask import Ask, ask_with  # noqa: E402
from kvist.spec.sampling import Sampling  # noqa: E402
from real_model import llm  # noqa: E402


@pytest.mark.parametrize("bias", [((1,),), ((1, "x"),), (5,), ((1, True),), ((-1, 0.0),), ((1.0, 0.0),), [(1, 0.0)]])
def test_malformed_biases(bias):
    with pytest.raises(BadValue, match="logit_bias"):
        Sampling(logit_bias=bias)


@pytest.mark.parametrize("given", [{"reuse": "no"}, {"ignore_eos": 1}, {"salt": "x"}, {"stop": 5}, {"n": 257}])
def test_values_of_the_wrong_kind(given):
    with pytest.raises(BadValue, match=next(iter(given))):
        ask_with(None, given)


def test_an_ask_that_is_none():
    with pytest.raises(BadValue, match="ask"):
        ask_with({"max_tokens": 1}, {})
    assert ask_with(None, {"stop": "x", "seed": 3}) == Ask(stop=("x",), sampling=Sampling(temperature=0.0, seed=3))


@pytest.mark.parametrize("prompt", [{1, 2}, {1: 2}, bytearray(b"hi"), b"hi", [True], [1.5], ["a"], None, 7, [], ""])
def test_prompts_that_are_none(prompt):
    with pytest.raises(BadValue, match="prompt"):
        llm().generate(prompt, max_tokens=1)


def test_one_string_is_not_a_list_of_prompts():
    with pytest.raises(BadValue, match="list of prompts"):
        llm().generate_all("Once", max_tokens=1)


def test_ids_from_other_libraries():
    want = llm().generate([100, 200, 300], max_tokens=3).token_ids
    assert llm().generate(np.array([100, 200, 300]), max_tokens=3).token_ids == want

"""What may be asked, and how long it may become."""

import pytest

from kvist.errors import BadValue, PoolTooSmall, PromptTooLong
from kvist.sched.limits import Limits
from paperwork import LAYOUTS, B, ask, words


@pytest.mark.parametrize(
    "change,name",
    [
        ({"prompt": ()}, "prompt"),
        ({"prompt": (3, -1)}, "prompt"),
        ({"prompt": (3, 2**31)}, "prompt"),
        ({"extras": (b"too short",)}, "extras"),
        ({"n_out": 0}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"stop_ids": (4, -2)}, "stop_ids"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
    ],
)
def test_bad_values_are_named(change, name):
    given = {"name": "r", "prompt": (1, 2)} | change
    with pytest.raises(BadValue) as caught:
        ask(**given)
    assert caught.value.name == name


def test_ignore_eos_leaves_no_ending_ids():
    assert ask("r", (1,), stop_ids=(2,)).ending_ids == (2,)
    assert ask("r", (1,), stop_ids=(2,), ignore_eos=True).ending_ids == ()


def limits(blocks, context=4096, layout="full"):
    return Limits(LAYOUTS[layout], total_blocks=blocks, context_tokens=context)


def test_a_sequence_may_have_what_it_asked_for():
    assert limits(64).limit_tokens(ask("r", words(10), 20)) == 30


def test_the_context_bounds_the_answer_and_refuses_prompts_that_fill_it():
    assert limits(64, context=16).limit_tokens(ask("r", words(15), 20)) == 16
    with pytest.raises(PromptTooLong) as caught:
        limits(64, context=16).limit_tokens(ask("r", words(16), 20))
    assert (caught.value.needed_tokens, caught.value.limit_tokens) == (17, 16)
    assert "15 tokens or fewer" in str(caught.value)


def test_the_pool_bounds_the_answer_and_refuses_prompts_it_cannot_hold():
    pool = limits(3)
    assert pool.pool_tokens == 3 * B
    assert pool.limit_tokens(ask("r", words(3 * B), 20)) == 3 * B + 1
    with pytest.raises(PoolTooSmall) as caught:
        pool.limit_tokens(ask("r", words(3 * B + 1), 20))
    assert (caught.value.needed_blocks, caught.value.total_blocks) == (4, 3)
    assert "--kv-memory" in str(caught.value) and "48 tokens or fewer" in str(caught.value)


def test_windows_do_not_bound_the_length():
    assert limits(16, layout="window").pool_tokens == 4096

"""SmolLM2-135M through the managed cache against transformers in fp32, both on the same dequantised file."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from kvist.runtime.llm import Ask  # noqa: E402
from real_model import judge, llm, prompts  # noqa: E402

NEW_TOKENS = 128
LENGTHS = [5, 33, 64, 100, 150, 31, 257, 1, 96, 400]


@pytest.fixture(scope="module")
def cases():
    return prompts(20, LENGTHS)


@pytest.fixture(scope="module")
def alone(cases):
    """Each prompt on its own, nothing reused."""
    ask = Ask(max_tokens=NEW_TOKENS, ignore_eos=True, reuse=False)
    return [llm().generate(p, ask).token_ids for p in cases]


def judge_logits(ids):
    with torch.inference_mode():
        return judge()(torch.tensor([ids])).logits[0]


def test_greedy_is_token_identical_to_transformers(cases, alone):
    """The judge's argmax after every prefix is the token kvist drew: by induction, its greedy run is the same."""
    for prompt, output in zip(cases, alone, strict=True):
        assert len(output) == NEW_TOKENS
        logits = judge_logits([*prompt, *output[:-1]])[len(prompt) - 1 :]
        wrong = [i for i, token in enumerate(output) if int(logits[i].argmax()) != token]
        for i in wrong:
            top = logits[i].topk(2).values
            raise AssertionError(
                f"token {i} of a {len(prompt)}-token prompt differs; the judge's margin is {top[0] - top[1]:.2e}"
            )


def test_the_outputs_are_not_all_alike(alone):
    assert len(set(alone)) >= 19


def test_sixteen_at_once_equal_one_at_a_time(cases, alone):
    together = llm().generate_all(cases[:16], Ask(max_tokens=NEW_TOKENS, ignore_eos=True, reuse=False))
    assert [a.token_ids for a in together] == alone[:16]


def test_hits_change_nothing(cases, alone):
    ask = Ask(max_tokens=NEW_TOKENS, ignore_eos=True)
    first = [llm().generate(p, ask) for p in cases[:6]]
    again = [llm().generate(p, ask) for p in cases[:6]]
    assert [a.token_ids for a in first] == [a.token_ids for a in again] == alone[:6]
    assert [a.cached_tokens for a in again] == [len(p) - 1 for p in cases[:6]]


def test_logits_within_a_ten_thousandth(cases):
    """Teacher-forced log-probabilities of the prompt at every position."""
    prompt = cases[4]
    answer = llm().generate(prompt, max_tokens=1, prompt_logprobs=0)
    want = judge_logits(list(prompt)).log_softmax(-1)
    assert answer.prompt_logprobs[0] is None
    for i, got in enumerate(answer.prompt_logprobs[1:]):
        assert got.token == prompt[i + 1]
        assert got.logprob == pytest.approx(float(want[i, prompt[i + 1]]), abs=1e-4)


def test_books_balance_after_all_of_this(alone):
    cache = llm().engine.scheduler.cache
    cache.check()
    assert cache.live_blocks == 0
    assert llm().engine.idle

"""The packaged model behind the endpoints: scores and penalties do not depend on what the cache holds."""

import json
import re

import pytest
from openai_kit import posted, serving, streamed

from kvist.server.served import Served
from real_model import llm, texts_or_skip

PLAIN = "/v1/completions"
REPEATS = "the cat sat on the mat, the dog sat on the log, " * 5


@pytest.fixture(scope="module")
def server():
    built = llm().built
    sides = built.engine, built.tokenizer, built.template, built.spec, built.layout
    real = Served(*sides, str(built.path), 0, built.grammars)
    with serving(real) as running:
        yield running
        running.books()


def ask(server, prompt, **more):
    answer = posted(server, PLAIN, {"prompt": prompt, "max_tokens": 1, "temperature": 0, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def close(a, b):
    return a is b is None or abs(a - b) <= 1e-4


def test_f086_prompt_scores_are_whole_and_equal_cold_and_warm(server):
    """F086: the full list, first null, aligned; recomputed when warm and said so; later requests still hit."""
    text = (texts_or_skip() / sorted(p.name for p in texts_or_skip().glob("*.txt"))[0]).read_text("utf-8")[3000:5000]
    scored = {"echo": True, "logprobs": 2, "cache_salt": "f086"}
    cold = ask(server, text, **scored)
    total = cold["usage"]["prompt_tokens"]
    first = cold["choices"][0]["logprobs"]
    assert cached(cold) == 0 and len(first["tokens"]) == total + 1
    assert first["token_logprobs"][0] is None and first["top_logprobs"][0] is None
    assert None not in first["token_logprobs"][1:] and "".join(first["tokens"][:total]) == text
    warm = ask(server, text, **scored)
    assert cached(warm) == 0
    assert all(map(close, warm["choices"][0]["logprobs"]["token_logprobs"], first["token_logprobs"]))
    assert cached(ask(server, text, cache_salt="f086")) == total - 1
    more = ask(server, text, **{**scored, "logprobs": 7})["choices"][0]["logprobs"]
    assert all(map(close, more["token_logprobs"], first["token_logprobs"]))
    assert all(len(top) >= 7 for top in more["top_logprobs"][1:])
    for few, many in zip(first["top_logprobs"][1:], more["top_logprobs"][1:], strict=True):
        assert all(close(value, many[token]) for token, value in few.items())


def test_f086_both_ways_to_ask_agree(server):
    """F086: vLLM's prompt_logprobs are the numbers of echo with logprobs, for text and ids, streamed or not."""
    echoed = ask(server, REPEATS, echo=True, logprobs=1)
    scores = echoed["choices"][0]["logprobs"]
    told = ask(server, REPEATS, prompt_logprobs=1, return_token_ids=True)["choices"][0]
    assert told["text"] == echoed["choices"][0]["text"].removeprefix(REPEATS) and told["logprobs"] is None
    assert told["prompt_logprobs"][0] is None
    pairs = list(zip(told["prompt_token_ids"], told["prompt_logprobs"], scores["token_logprobs"], strict=False))
    assert len(pairs) == len(told["prompt_logprobs"]) == echoed["usage"]["prompt_tokens"]
    for token, entry, value in pairs[1:]:
        assert close(entry[str(token)]["logprob"], value)
        assert min(e["rank"] for e in entry.values() if e["rank"] is not None) == 1


def test_f086_scores_of_a_known_pair(server):
    """The right word scores better: what an evaluation harness asks for."""

    def score(text):
        lead = len(ask(server, "The capital of France is", return_token_ids=True)["choices"][0]["prompt_token_ids"])
        return sum(
            ask(server, text, echo=True, logprobs=0, max_tokens=0)["choices"][0]["logprobs"]["token_logprobs"][lead:]
        )

    assert score("The capital of France is Paris") > score("The capital of France is Berlin") + 1


PENALTIES = {
    "repetition": {"repetition_penalty": 1.3},
    "presence": {"presence_penalty": 1.0},
    "frequency": {"frequency_penalty": 0.7},
    "all": {"repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": 0.3},
}


@pytest.mark.parametrize("name", PENALTIES)
def test_f087_penalties_do_not_depend_on_the_cache(server, name):
    """F087: cold, warm, partly warm and uncached runs give the same greedy answer and the same scores."""
    body = {**PENALTIES[name], "max_tokens": 16, "logprobs": 0, "return_token_ids": True}
    runs = [
        ask(server, REPEATS, cache_salt=f"{name}-cold", **body),
        ask(server, REPEATS, cache_salt=f"{name}-cold", **body),
    ]
    ask(server, REPEATS[:100], cache_salt=f"{name}-part")
    runs.append(ask(server, REPEATS, cache_salt=f"{name}-part", **body))
    runs.append(ask(server, REPEATS, cache_prompt=False, **body))
    hits = [cached(run) for run in runs]
    assert hits[0] == hits[3] == 0 < hits[2] < hits[1]
    choices = [run["choices"][0] for run in runs]
    assert [c["token_ids"] for c in choices] == [choices[0]["token_ids"]] * 4
    for other in choices[1:]:
        assert all(map(close, other["logprobs"]["token_logprobs"], choices[0]["logprobs"]["token_logprobs"]))
    plain = ask(server, REPEATS, max_tokens=16, return_token_ids=True)["choices"][0]["token_ids"]
    assert name != "repetition" or plain != choices[0]["token_ids"], "the penalty did nothing"


def test_f087_same_scope_on_both_endpoints(server):
    """F087: a chat and the same ids by /v1/completions are penalised alike."""
    chat = {
        "messages": [{"role": "user", "content": "Say cat cat cat."}], "max_tokens": 12, "temperature": 0,
        "repetition_penalty": 1.3, "frequency_penalty": 0.5, "return_token_ids": True,
    }  # fmt: skip
    first = posted(server, "/v1/chat/completions", chat).json()
    again = ask(server, first["prompt_token_ids"], **{k: v for k, v in chat.items() if k != "messages"})
    assert again["choices"][0]["token_ids"] == first["choices"][0]["token_ids"]


def test_a_real_conversation_keeps_its_cache(server):
    talk = [{"role": "user", "content": "Name two colours."}]
    body = {"max_tokens": 12, "temperature": 0, "cache_salt": "talk"}
    first = posted(server, "/v1/chat/completions", {"messages": talk, **body}).json()
    talk += [first["choices"][0]["message"], {"role": "user", "content": "One more."}]
    second = posted(server, "/v1/chat/completions", {"messages": talk, **body}).json()
    hit = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert hit >= first["usage"]["total_tokens"] - 1


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
FITS = [
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": SCHEMA, "strict": True}}},
        "json",
    ),
    ({"structured_outputs": {"json": SCHEMA}}, "json"),
    ({"guided_regex": "[0-9]{3}-[a-f]{2}"}, "[0-9]{3}-[a-f]{2}"),
    ({"guided_choice": ['say "é"', "no\\n", "漢"]}, 'say "é"|no\\\\n|漢'),
    ({"guided_grammar": "start: /x+y/"}, "x+y"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("body, shape", FITS)
def test_constrained_answers_fit(server, body, shape, stream):
    pytest.importorskip("llguidance")
    asked = {"max_tokens": 60, "temperature": 1, "seed": 5, "n": 2, **body}
    texts = ["", ""]
    if stream:
        chunks, done = streamed(server, PLAIN, {"prompt": "Answer:", **asked})
        for choice in (c["choices"][0] for c in chunks):
            texts[choice["index"]] += choice["text"]
        assert done
    else:
        talk = {"messages": [{"role": "user", "content": "Describe Ann."}]}
        answer = posted(server, "/v1/chat/completions", {**talk, **asked})
        assert answer.status_code == 200, answer.text
        texts = [c["message"]["content"] for c in answer.json()["choices"]]
    for text in texts:
        if shape == "json":
            value = json.loads(text)
            assert set(value) == {"name", "age"} and 0 <= value["age"] <= 9 and len(value["name"]) <= 8
        else:
            assert re.fullmatch(shape, text), text


def test_a_forced_call_is_a_call(server):
    pytest.importorskip("llguidance")
    tool = {"type": "function", "function": {"name": "save", "parameters": SCHEMA}}
    talk = {"messages": [{"role": "user", "content": "Save Ann, who is 7."}], "tools": [tool], "max_tokens": 80}
    choice = posted(server, "/v1/chat/completions", {**talk, "tool_choice": "required", "seed": 1}).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    call = choice["message"]["tool_calls"][0]["function"]
    assert call["name"] == "save" and set(json.loads(call["arguments"])) == {"name", "age"}


@pytest.mark.parametrize(
    "body", [{"guided_regex": "["}, {"guided_grammar": "start: nowhere"}, {"guided_regex": "(" * 999}]
)
def test_unsound_constraints_are_refused(server, body):
    pytest.importorskip("llguidance")
    for path, base in (
        (PLAIN, {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    ):
        assert posted(server, path, {**base, **body}).status_code == 400

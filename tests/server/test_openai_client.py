"""The official client against the running server: what it sends is taken, what it gets it can read."""

import asyncio

import openai
import pytest
from openai import AsyncOpenAI
from openai_kit import client_of, served, serving

TEXT = "Hello there, wörld 🙂!"
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def server():
    with serving(served(TEXT)) as running:
        yield running
        running.books()


@pytest.fixture(scope="module")
def client(server):
    return client_of(server)


def test_chat(client):
    answer = client.chat.completions.create(model="tiny", messages=HI)
    choice = answer.choices[0]
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", TEXT, "stop")
    assert choice.message.tool_calls is None and choice.message.refusal is None
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-") and answer.model == "tiny"
    assert answer.system_fingerprint.startswith("kvist-")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens is not None
    assert answer.model_extra["kvist"]["request_id"].startswith("req-")


def test_chat_stream(client):
    options = {"include_usage": True}
    chunks = list(client.chat.completions.create(model="tiny", messages=HI, stream=True, stream_options=options))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == TEXT
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 2) + ["stop"]
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 9
    assert all(c.usage is None for c in chunks[:-1])
    assert len({c.id for c in chunks}) == 1 and {c.object for c in chunks} == {"chat.completion.chunk"}


def test_chat_stream_helper(client):
    """The client's own accumulator reads our chunks."""
    with client.chat.completions.stream(model="tiny", messages=HI) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == TEXT and final.choices[0].finish_reason == "stop"


def test_text_parts_and_every_role(client):
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "short"}]},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": "yes?"},
        {"role": "user", "content": "more", "name": "ann"},
    ]
    plain = [{**m, "content": "".join(p["text"] for p in m["content"])} for m in messages[:2]] + messages[2:]
    counts = [client.chat.completions.create(model="tiny", messages=m).usage.prompt_tokens for m in (messages, plain)]
    assert counts[0] == counts[1]


def test_completion(client):
    answer = client.completions.create(model="tiny", prompt="Once upon a time", max_tokens=4)
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-")
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("Hello there, w", "length")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (4, 4)


def test_completion_stream(client):
    chunks = list(client.completions.create(model="tiny", prompt="Once", max_tokens=30, stream=True))
    assert "".join(c.choices[0].text for c in chunks) == TEXT
    assert chunks[-1].choices[0].finish_reason == "stop" and chunks[-1].usage is None


def test_default_max_tokens_of_completions_is_16(client):
    with serving(served(list(range(100, 200)))) as long:
        answer = client_of(long).completions.create(model="tiny", prompt="a")
        assert answer.usage.completion_tokens == 16


def test_batches_of_prompts(client):
    ids = [[5, 6, 7], [8, 9]]
    for prompt, tokens in ((["Once upon", "a time"], 4), (ids, 5), ([5, 6, 7], 3), ([7.0], 1)):
        answer = client.completions.create(model="tiny", prompt=prompt, max_tokens=2, n=2)
        several = len(prompt) if isinstance(prompt[0], str | list) else 1
        assert [c.index for c in answer.choices] == list(range(2 * several))
        assert answer.usage.prompt_tokens == tokens and answer.usage.completion_tokens == 4 * several


def test_batched_stream_has_every_index_and_the_same_text(client):
    def text(chunks):
        texts = [""] * 6
        for chunk in chunks:
            texts[chunk.choices[0].index] += chunk.choices[0].text
        return texts

    chunks = list(client.completions.create(model="tiny", prompt=["a", "b", "c"], n=2, max_tokens=30, stream=True))
    assert text(chunks) == [TEXT] * 6
    assert sorted(c.choices[0].index for c in chunks if c.choices[0].finish_reason) == list(range(6))


def test_many_at_once_from_the_async_client(server):
    async def run():
        async with AsyncOpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0) as client:

            async def one(i):
                messages = [{"role": "user", "content": f"number {i}"}]
                stream = await client.chat.completions.create(model="tiny", messages=messages, stream=True)
                return "".join([c.choices[0].delta.content or "" async for c in stream])

            return await asyncio.gather(*[one(i) for i in range(32)])

    assert asyncio.run(run()) == [TEXT] * 32


@pytest.mark.parametrize(
    "body, kind, code",
    [
        ({"model": "gpt-4"}, openai.NotFoundError, "model_not_found"),
        ({"temperature": -1}, openai.BadRequestError, "invalid_request"),
        ({"n": 129}, openai.BadRequestError, "invalid_request"),
    ],
)
def test_errors_are_the_clients_own(client, body, kind, code):
    with pytest.raises(kind) as caught:
        client.chat.completions.create(**{"model": "tiny", "messages": HI, **body})
    assert caught.value.code == code and caught.value.param


def test_logprobs(client):
    answer = client.chat.completions.create(model="tiny", messages=HI, logprobs=True, top_logprobs=3)
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    assert [len(each.top_logprobs) for each in content] == [3] * len(content)
    assert b"".join(bytes(each.bytes) for each in content[:-1]).decode() == TEXT
    assert content[-1].token == "<|im_end|>"


def test_models_and_completions_agree_about_the_name(client):
    assert [m.id for m in client.models.list()] == ["tiny"]
    assert client.chat.completions.create(model="tiny", messages=HI).model == "tiny"

"""``/v1/responses`` as the official ``openai`` package speaks it."""

import asyncio
import json

import httpx
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from served_kit import parts, running, served

TEXT = "Hello there, my friend. How are you?"
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}


@pytest.fixture(scope="module")
def server():
    with running(served(TEXT)) as it:
        yield it


@pytest.fixture(scope="module")
def caller():
    with running(served("Let me look.\n" + CALL)) as it:
        yield it


def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0)


def ask(server, given="hi", **changes):
    return client(server).responses.create(model="tiny", input=given, **changes)


def raw_events(server, **body):
    answer = httpx.post(f"{server.url}/v1/responses", json={"model": "tiny", "input": "hi", "stream": True, **body})
    assert answer.status_code == 200, answer.text
    blocks = [b.split("\n") for b in answer.text.strip().split("\n\n")]
    events = [json.loads(b[1].removeprefix("data: ")) for b in blocks]
    assert [b[0].removeprefix("event: ") for b in blocks] == [e["type"] for e in events]
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    return events


def test_a_response(server):
    response = ask(server, instructions="Be kind.", metadata={"a": "b"}, temperature=0.5, max_output_tokens=100)
    assert response.id.startswith("resp_") and (response.object, response.status) == ("response", "completed")
    assert response.output_text == TEXT and [o.type for o in response.output] == ["message"]
    assert (response.model, response.instructions, response.metadata) == ("tiny", "Be kind.", {"a": "b"})
    assert (response.temperature, response.max_output_tokens, response.truncation) == (0.5, 100, "disabled")
    usage = response.usage
    assert usage.output_tokens == len(parts()[2].encode(TEXT, add_bos=False)) + 1
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert (
        usage.input_tokens_details.cached_tokens + usage.input_tokens_details.cache_write_tokens == usage.input_tokens
    )
    again = ask(server, instructions="Be kind.").usage
    assert again.input_tokens_details.cached_tokens > 0.8 * again.input_tokens
    server.books()


def test_everything_parses_with_the_official_types(server, caller):
    body = {"tools": [WEATHER], "tool_choice": "auto"}
    body |= {"text": {"format": {"type": "text"}}, "reasoning": {"effort": "none"}, "prompt_cache_key": "k"}
    body |= {"prompt_cache_options": {"mode": "explicit", "ttl": "12h"}, "metadata": {"k": "v"}}
    for where in (server, caller):
        for event in raw_events(where, **body):
            parsed = TypeAdapter(ResponseStreamEvent).validate_python(event)
            assert parsed.type == event["type"]
        response = Response.model_validate(event["response"])
        assert response.prompt_cache_options.ttl == "12h" and response.prompt_cache_key == "k"
        assert response.tools[0].name == "get_weather"


def test_text_events_come_in_the_documented_order(server):
    kinds = [e["type"].removeprefix("response.") for e in raw_events(server)]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert set(kinds[4:-4]) == {"output_text.delta"}
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]


def test_the_streamed_response_is_the_whole_one(server):
    with client(server).responses.stream(model="tiny", input="hi") as stream:
        deltas = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        final = stream.get_final_response()
    whole = ask(server)
    assert deltas == final.output_text == whole.output_text == TEXT
    assert final.usage == whole.usage and final.status == "completed"
    assert client(server).responses.retrieve(final.id).output_text == TEXT


def test_a_cut_response_is_incomplete(server):
    response = ask(server, max_output_tokens=3)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert response.output[0].status == "incomplete" and response.usage.output_tokens == 3
    last = raw_events(server, max_output_tokens=3)[-1]
    assert (last["type"], last["response"]["status"]) == ("response.incomplete", "incomplete")


def test_async_answers_do_not_mix(server):
    async def everyone():
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0) as c:
            jobs = (c.responses.create(model="tiny", input="hi", max_output_tokens=n) for n in range(1, 9))
            return await asyncio.gather(*jobs)

    for n, response in enumerate(asyncio.run(everyone()), 1):
        assert response.usage.output_tokens == n
    server.books()


def test_function_calls_end_to_end(caller):
    first = ask(caller, tools=[WEATHER])
    message, call = first.output
    assert (message.type, call.type, call.name, call.arguments) == (
        "message", "function_call", "get_weather", '{"city": "Oslo"}',
    )  # fmt: skip
    assert call.call_id.startswith("call_") and first.status == "completed"
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    by_id = ask(caller, [result], tools=[WEATHER], previous_response_id=first.id)
    items = [{"role": "user", "content": "hi"}, *(o.model_dump(exclude_none=True) for o in first.output), result]
    by_hand = ask(caller, items, tools=[WEATHER])
    assert by_id.usage.input_tokens == by_hand.usage.input_tokens > first.usage.total_tokens
    for second in (by_id, by_hand):
        assert second.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens
    caller.books()


def test_call_events_come_in_the_documented_order(caller):
    events = raw_events(caller, tools=[WEATHER])
    kinds = [e["type"].removeprefix("response.") for e in events]
    assert kinds[-5:] == [
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    assert events[-5]["item"]["arguments"] == "" and events[-2]["item"]["arguments"] == '{"city": "Oslo"}'
    assert events[-1]["response"]["output"][1] == events[-2]["item"]
    with client(caller).responses.stream(model="tiny", input="hi", tools=[WEATHER]) as stream:
        stream.until_done()
        assert stream.get_final_response().output[1].arguments == '{"city": "Oslo"}'


def test_without_parallel_calls_one_is_the_most():
    with running(served(CALL + CALL)) as server:
        assert len(ask(server, tools=[WEATHER]).output) == 2
        response = ask(server, tools=[WEATHER], parallel_tool_calls=False)
        assert len(response.output) == 1 and response.parallel_tool_calls is False


def test_counting_input_tokens(server):
    counted = client(server).responses.input_tokens.count(model="tiny", input="hi", instructions="Be kind.")
    assert counted.input_tokens == ask(server, instructions="Be kind.").usage.input_tokens


def test_what_is_not_acted_upon_is_named(server):
    raw = client(server).responses.with_raw_response.create(
        model="tiny",
        input=[{"type": "reasoning", "id": "rs_1", "summary": []}, {"role": "user", "content": "hi"}],
        text={"verbosity": "low"},
        include=["reasoning.encrypted_content"],
        service_tier="auto",
        truncation="disabled",
        extra_body={"novelty": 1},
    )
    assert set(raw.headers["x-kvist-ignored"].split(", ")) == {
        "novelty",
        "text.verbosity",
        "include",
        "input.reasoning",
    }


class Grammars:
    """Remembers what it was asked for; the paper model obeys nothing."""

    def __init__(self):
        self.asked = []

    def check(self, grammar):
        self.asked.append(grammar)

    def json_schema(self, schema):
        return json.dumps(schema)

    def json_object(self):
        return "any object"

    def lark(self, text):
        return text


@pytest.mark.parametrize(
    "format,grammar",
    [
        ({"type": "json_object"}, "any object"),
        ({"type": "json_schema", "name": "n", "schema": {"type": "array"}, "strict": True}, '{"type": "array"}'),
    ],
)
def test_formats_become_grammars(format, grammar):
    grammars = Grammars()
    with running(served("[]", grammars=grammars)) as server:
        response = ask(server, text={"format": format})
        assert grammars.asked == [grammar]
        assert response.text.format.type == format["type"] and response.output_text == "[]"
        ask(server, tools=[WEATHER], tool_choice={"type": "function", "name": "get_weather"})
        assert "get_weather" in grammars.asked[1]

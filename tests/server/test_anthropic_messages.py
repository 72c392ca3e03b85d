"""``/v1/messages`` as the official ``anthropic`` package speaks it."""

import asyncio
import json

import anthropic
import httpx
import pytest
from served_kit import parts, running, served

TEXT = "Hello there, my friend. How are you?"
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def server():
    with running(served(TEXT)) as it:
        yield it


@pytest.fixture(scope="module")
def caller():
    with running(served("Let me look.\n" + CALL + "\n" + CALL.replace("Oslo", "Rome"))) as it:
        yield it


def client(server, **more):
    return anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0, **more)


def ask(server, **changes):
    return client(server).messages.create(**{"model": "tiny", "max_tokens": 100, "messages": HI, **changes})


def prompt_tokens(usage):
    return usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens


def test_a_message(server):
    message = ask(server)
    assert (message.type, message.role, message.model) == ("message", "assistant", "tiny")
    assert message.id.startswith("msg_") and message.id != ask(server).id
    assert [b.type for b in message.content] == ["text"] and message.content[0].text == TEXT
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert message.usage.output_tokens == len(parts()[2].encode(TEXT, add_bos=False)) + 1
    assert message._request_id
    server.books()


def test_the_streamed_message_is_the_whole_one(server):
    ask(server)
    whole = ask(server, stop_sequences=["How"])
    with client(server).messages.stream(model="tiny", max_tokens=100, messages=HI, stop_sequences=["How"]) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == whole.content[0].text == TEXT.split("How")[0]
    assert (final.stop_reason, final.stop_sequence) == ("stop_sequence", "How")
    assert final.usage == whole.usage


def test_events_come_in_the_documented_order(server):
    events = list(client(server).messages.create(model="tiny", max_tokens=100, messages=HI, stream=True))
    kinds = [e.type for e in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert events[0].message.stop_reason is None and events[0].message.content == []
    assert events[-2].delta.stop_reason == "end_turn"


def test_the_raw_stream_names_every_event_and_pings(server):
    body = {"model": "tiny", "max_tokens": 100, "messages": HI, "stream": True}
    answer = httpx.post(f"{server.url}/v1/messages", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    blocks = [b.split("\n") for b in answer.text.strip().split("\n\n")]
    names = [b[0].removeprefix("event: ") for b in blocks]
    assert names == [json.loads(b[1].removeprefix("data: "))["type"] for b in blocks]
    assert names[:4] == ["message_start", "content_block_start", "ping", "content_block_delta"]


def test_async_answers_do_not_mix(server):
    async def one(n):
        async with anthropic.AsyncAnthropic(base_url=server.url, api_key="any", max_retries=0) as c:
            if n % 2:
                async with c.messages.stream(model="tiny", max_tokens=n, messages=HI) as stream:
                    return await stream.get_final_message()
            return await c.messages.create(model="tiny", max_tokens=n, messages=HI)

    async def everyone():
        return await asyncio.gather(*(one(n) for n in range(1, 9)))

    for n, message in enumerate(asyncio.run(everyone()), 1):
        assert (message.usage.output_tokens, message.stop_reason) == (n, "max_tokens")
    server.books()


def test_running_out_of_context_is_not_max_tokens():
    with running(served(None, blocks=10)) as server:
        message = ask(server, max_tokens=5_000)
        assert message.stop_reason == "model_context_window_exceeded"
        assert message.usage.output_tokens < 160


@pytest.mark.parametrize("marked", [False, True])
def test_the_three_input_counts_add_up_to_the_prompt(marked):
    text = "Once upon a time there was a cache. " * 20
    block = {"type": "text", "text": text}
    if marked:
        block["cache_control"] = {"type": "ephemeral", "ttl": "1h"}
    messages = [{"role": "user", "content": [block]}]
    with running(served(TEXT)) as server:
        total = client(server).messages.count_tokens(model="tiny", messages=messages).input_tokens
        first, second = (ask(server, messages=messages).usage for _ in range(2))
        assert prompt_tokens(first) == prompt_tokens(second) == total
        assert first.cache_read_input_tokens == 0 and second.cache_read_input_tokens > 100
        if marked:
            assert first.input_tokens == 0 and first.cache_creation_input_tokens == total
            assert first.cache_creation.ephemeral_1h_input_tokens == total
            assert first.cache_creation.ephemeral_5m_input_tokens == 0
        else:
            assert first.input_tokens == total and first.cache_creation_input_tokens == 0


def test_message_start_already_knows_what_was_cached(server):
    ask(server)
    events = list(client(server).messages.create(model="tiny", max_tokens=100, messages=HI, stream=True))
    start, end = events[0].message.usage, events[-2].usage
    assert start.cache_read_input_tokens == end.cache_read_input_tokens > 0
    assert start.input_tokens == end.input_tokens and start.output_tokens == 0 < end.output_tokens


def test_count_tokens_counts_what_a_message_uses(server):
    many = {
        "system": [{"type": "text", "text": "Be brief."}, {"type": "text", "text": " Very."}],
        "messages": [*HI, {"role": "assistant", "content": "yes?"}, {"role": "user", "content": "go on"}],
        "tools": [WEATHER],
    }
    counted = client(server).messages.count_tokens(model="tiny", **many).input_tokens
    assert counted == prompt_tokens(ask(server, **many).usage)
    without = client(server).messages.count_tokens(model="tiny", **many, tool_choice={"type": "none"}).input_tokens
    assert without < counted


def test_tool_use_end_to_end(caller):
    message = ask(caller, tools=[WEATHER])
    assert "".join(b.text for b in message.content if b.type == "text").strip() == "Let me look."
    call, other = (b for b in message.content if b.type == "tool_use")
    assert (call.name, call.input, other.input) == ("get_weather", {"city": "Oslo"}, {"city": "Rome"})
    assert call.id.startswith("toolu_") and call.id != other.id
    assert message.stop_reason == "tool_use"
    results = [{"type": "tool_result", "tool_use_id": c.id, "content": "rain"} for c in (call, other)]
    turn = [*HI, {"role": "assistant", "content": message.content}, {"role": "user", "content": results}]
    second = ask(caller, tools=[WEATHER], messages=turn)
    assert second.usage.cache_read_input_tokens >= prompt_tokens(message.usage)
    caller.books()


def test_streamed_tool_use_is_the_whole_one(caller):
    with client(caller).messages.stream(model="tiny", max_tokens=100, messages=HI, tools=[WEATHER]) as stream:
        events = list(stream)
        final = stream.get_final_message()
    inputs = [b.input for b in final.content if b.type == "tool_use"]
    assert inputs == [{"city": "Oslo"}, {"city": "Rome"}]
    assert final.stop_reason == "tool_use"
    assert any(e.type == "content_block_delta" and e.delta.type == "input_json_delta" for e in events)
    starts = [e.index for e in events if e.type == "content_block_start"]
    assert starts == [e.index for e in events if e.type == "content_block_stop"] == list(range(len(final.content)))


def test_without_parallel_use_one_call_is_the_most(caller):
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    message = ask(caller, tools=[WEATHER], tool_choice=choice)
    assert [b.input for b in message.content if b.type == "tool_use"] == [{"city": "Oslo"}]
    assert message.content[-1].type == "tool_use" and message.stop_reason == "tool_use"


def test_tools_that_may_not_be_used_are_not_read(caller):
    message = ask(caller, tools=[WEATHER], tool_choice={"type": "none"})
    assert message.stop_reason == "end_turn" and "<tool_call>" in message.content[0].text


def test_what_is_not_acted_upon_is_named(server):
    raw = client(server).messages.with_raw_response.create(
        model="tiny",
        max_tokens=5,
        messages=HI,
        metadata={"user_id": "u1"},
        service_tier="auto",
        thinking={"type": "adaptive"},
        extra_headers={"anthropic-beta": "some-beta"},
        extra_body={"diagnostics": {"previous_message_id": None}, "novelty": 1, "bad\nname": 2},
    )
    assert set(raw.headers["x-kvist-ignored"].split(", ")) == {"novelty", "diagnostics", "thinking", "(other)"}
    assert raw.parse().usage.service_tier == "standard"


def test_a_seed_decides_the_draws():
    with running(served(None)) as server:
        same, again, other = (ask(server, max_tokens=8, extra_body={"seed": s}).content for s in (1, 1, 2))
        assert same == again != other
        assert ask(server, max_tokens=8).content != ask(server, max_tokens=8).content


class Grammars:
    """Remembers what it was asked for; the paper model obeys nothing."""

    def __init__(self):
        self.asked = []

    def check(self, grammar):
        self.asked.append(grammar)

    def json_schema(self, schema):
        return json.dumps(schema)

    def lark(self, text):
        return text


def test_a_format_becomes_a_grammar_and_so_does_a_forced_call():
    grammars = Grammars()
    schema = {"type": "object"}
    with running(served("{}", grammars=grammars)) as server:
        message = ask(server, output_config={"format": {"type": "json_schema", "schema": schema}, "effort": "low"})
        assert message.content[0].text == "{}"
        assert grammars.asked == [json.dumps(schema)]
        for n, choice in enumerate(({"type": "any"}, {"type": "tool", "name": "get_weather"}), 1):
            ask(server, tools=[WEATHER], tool_choice=choice)
            assert "get_weather" in grammars.asked[n]


def test_thinking_is_a_switch_of_the_template():
    from dataclasses import replace

    from kvist.text.chat import ChatTemplate

    source = parts()[3].source + "{% if enable_thinking %}<think>{% endif %}"
    what = replace(served(TEXT), template=ChatTemplate(source))
    with running(what) as server:
        count = [
            client(server).messages.count_tokens(model="tiny", messages=HI, thinking=thinking).input_tokens
            for thinking in ({"type": "disabled"}, {"type": "enabled", "budget_tokens": 1024}, {"type": "adaptive"})
        ]
        assert count[0] < count[1] == count[2]
        with pytest.raises(anthropic.BadRequestError, match="budget_tokens"):
            ask(server, thinking={"type": "enabled", "budget_tokens": 2000})

"""The same conversation gives the same prompt, whatever protocol it came by: so that all share one cache."""

import asyncio
from dataclasses import replace

import httpx
import pytest
from served_kit import parts, running, served

from kvist.server.chat import ChatAsk, Chats
from kvist.server.job import Job
from kvist.text.chat import ChatTemplate

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
AWARE = """{%- if tools %}<|im_start|>tools
{% for t in tools %}{{ t | tojson }}
{% endfor %}<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.id }} {{ c.function | tojson }}</tool_call>{% endfor %}
{%- if m.tool_call_id %} for {{ m.tool_call_id }}{% endif %}{{ m.reasoning_content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def call(name, city):
    return {"id": name, "type": "function", "function": {"name": "weather", "arguments": f'{{"city": "{city}"}}'}}


OF_A_CITY = {"name": "weather", "description": "Of a city"}
CHAT = {
    "tools": [{"type": "function", "function": {**OF_A_CITY, "parameters": SCHEMA}}],
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather in Oslo & Tromsø?"},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [call("call_0", "Oslo"), call("call_1", "Tromsø")],
        },
        {"role": "tool", "tool_call_id": "call_0", "content": "rain"},
        {"role": "tool", "tool_call_id": "call_1", "content": "<|im_end|> snow"},
        {"role": "assistant", "content": "Rain and snow."},
        {"role": "user", "content": "Thanks."},
    ],
}
MESSAGES = {
    "system": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}],
    "tools": [{**OF_A_CITY, "input_schema": SCHEMA}],
    "messages": [
        {"role": "user", "content": "Weather in Oslo & Tromsø?"},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "toolu_0", "name": "weather", "input": {"city": "Oslo"}},
                {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Tromsø"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_0", "content": "rain"},
                {
                    "type": "tool_result",
                    "tool_use_id": "call_1",
                    "content": [{"type": "text", "text": "<|im_end|>"}, {"type": "text", "text": " snow"}],
                },
            ],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "Rain and snow."}]},
        {"role": "user", "content": [{"type": "text", "text": "Thanks."}]},
    ],
    "max_tokens": 3,
}
RESPONSES = {
    "instructions": "Be brief.",
    "tools": [{"type": "function", **OF_A_CITY, "parameters": SCHEMA, "strict": True}],
    "input": [
        {"role": "user", "content": "Weather in Oslo & Tromsø?"},
        {"type": "reasoning", "id": "rs", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "call_0", "name": "weather", "arguments": '{"city": "Oslo"}'},
        {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"city": "Tromsø"}'},
        {"type": "function_call_output", "call_id": "call_0", "output": "rain"},
        {
            "type": "function_call_output",
            "call_id": "call_1",
            "output": [{"type": "input_text", "text": "<|im_end|> snow"}],
        },
        {"role": "assistant", "content": "Rain and snow."},
        {"role": "user", "content": [{"type": "input_text", "text": "Thanks."}]},
    ],
    "max_output_tokens": 3,
}


def template(name):
    return parts()[3] if name == "own" else ChatTemplate(AWARE)


@pytest.mark.parametrize("name", ["own", "aware"])
@pytest.mark.parametrize("calls_only", [False, True])
def test_all_protocols_give_the_same_ids(name, calls_only):
    prompts = []
    what = replace(served(lambda prompt: prompts.append(tuple(prompt)) or [5]), template=template(name))
    chat, messages, responses = CHAT, MESSAGES, RESPONSES
    if calls_only:
        chat = without(chat, "messages", 2, content=None)
        blocks = MESSAGES["messages"][1]["content"][1:]
        messages = without(messages, "messages", 1, content=blocks)
        responses = {**RESPONSES, "input": [*RESPONSES["input"][:2], *RESPONSES["input"][3:]]}
    with running(what, keep_answers=False) as server:
        ask = ChatAsk(chat["messages"], Job(()), tools=chat["tools"])
        expected = tuple(asyncio.run(Chats(server.service).encode(ask)).ids)
        for path, body in (("messages", messages), ("responses", responses)):
            prompts.clear()
            answer = httpx.post(f"{server.url}/v1/{path}", json={"model": "tiny", **body})
            assert answer.status_code == 200, answer.text
            assert set(prompts) == {expected}


def without(body, field, index, **changes):
    items = list(body[field])
    items[index] = {**items[index], **changes}
    return {**body, field: items}


def test_thoughts_in_the_history_reach_the_template():
    prompts = []
    what = replace(served(lambda prompt: prompts.append(tuple(prompt)) or [5]), template=template("aware"))
    blocks = [
        {"type": "thinking", "thinking": "hmm", "signature": "s"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "yes"},
    ]
    turns = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": blocks},
        {"role": "user", "content": "b"},
    ]
    with running(what) as server:
        answer = httpx.post(f"{server.url}/v1/messages", json={"model": "tiny", "max_tokens": 2, "messages": turns})
        assert answer.headers["x-kvist-ignored"] == "redacted_thinking"
    assert "yeshmm<|im_end|>" in parts()[2].decode(prompts[0], skip_special=False)

"""What ``/v1/responses`` does not take: a 400 in the protocol's own shape that names the field, never a 500."""

import httpx
import openai
import pytest
from served_kit import running, served

HI = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}


@pytest.fixture(scope="module")
def server():
    with running(served("Hello."), max_body_bytes=1_000_000) as it:
        yield it


def post(server, **changes):
    body = {"model": "tiny", "input": "hi", "max_output_tokens": 5, **changes}
    given = {k: v for k, v in body.items() if v is not ...}
    # Nothing is encrypted here, and to read all certificates takes 20 ms a call.
    return httpx.post(server.url + "/v1/responses", json=given, timeout=20, verify=False)


def call(**changes):
    return {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", **changes}


def deep(levels=400):
    value = {}
    for _ in range(levels):
        value = {"a": value}
    return value


BAD = {
    "no input": ({"input": ...}, "input"),
    "empty input": ({"input": []}, "input"),
    "input a number": ({"input": 5}, "input"),
    "item no object": ({"input": ["hi"]}, "input[0]"),
    "unknown item": ({"input": [{"type": "computer_call"}]}, "input[0].type='computer_call'"),
    "item reference": ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type='item_reference'"),
    "type no text": ({"input": [{"type": ["message"]}]}, "input[0].type"),
    "unknown role": ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
    "role no text": ({"input": [{"role": {}, "content": "x"}]}, "input[0].role"),
    "no content": ({"input": [{"role": "user"}]}, "input[0].content"),
    "image": ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
    "file": ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "'input_file'"),
    "text no text": ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
    "call without name": ({"input": [HI, call(name=None), HI]}, "input[1].name"),
    "arguments an object": ({"input": [HI, call(arguments={}), HI]}, "input[1].arguments"),
    "output without id": ({"input": [HI, {"type": "function_call_output", "output": "x"}]}, "input[1].call_id"),
    "output without output": ({"input": [HI, {"type": "function_call_output", "call_id": "x"}]}, "input[1].output"),
    "assistant last": ({"input": [HI, {"role": "assistant", "content": "x"}]}, "input"),
    "only reasoning": ({"input": [{"type": "reasoning", "id": "x", "summary": []}]}, "input"),
    "zero tokens": ({"max_output_tokens": 0}, "max_output_tokens"),
    "hot": ({"temperature": 3}, "temperature"),
    "top_p": ({"top_p": 0}, "top_p"),
    "stream as text": ({"stream": "yes"}, "stream"),
    "truncation": ({"truncation": "auto"}, "truncation"),
    "background": ({"background": True}, "background"),
    "conversation": ({"conversation": "conv_1"}, "conversation"),
    "prompt": ({"prompt": {"id": "p"}}, "prompt"),
    "top_logprobs": ({"top_logprobs": 3}, "top_logprobs"),
    "logprobs": ({"include": ["message.output_text.logprobs"]}, "include"),
    "hosted tool": ({"tools": [{"type": "web_search"}]}, "tools[0].type='web_search'"),
    "tool no object": ({"tools": ["f"]}, "tools[0]"),
    "tool name": ({"tools": [{**TOOL, "name": ""}]}, "tools[0].name"),
    "tool twice": ({"tools": [TOOL, TOOL]}, "tools[1].name"),
    "tool parameters": ({"tools": [{**TOOL, "parameters": []}]}, "tools[0].parameters"),
    "deep parameters": ({"tools": [{**TOOL, "parameters": deep()}]}, "nested"),
    "choice": ({"tools": [TOOL], "tool_choice": "maybe"}, "tool_choice"),
    "choice unknown": ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
    "choice hosted": ({"tools": [TOOL], "tool_choice": {"type": "file_search"}}, "tool_choice.type"),
    "choice of nothing": ({"tool_choice": "required"}, "tool_choice"),
    "format": ({"text": {"format": {"type": "yaml"}}}, "text.format.type"),
    "format no object": ({"text": {"format": "json"}}, "text.format"),
    "format name": ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
    "format schema": ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
    "format without grammars": ({"text": {"format": {"type": "json_object"}}}, "llguidance"),
    "effort": ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
    "effort what": ({"reasoning": {"effort": 5}}, "reasoning.effort"),
    "metadata many": ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
    "metadata key": ({"metadata": {"k" * 65: ""}}, "metadata"),
    "metadata value": ({"metadata": {"k": "v" * 513}}, "metadata.k"),
    "metadata number": ({"metadata": {"k": 5}}, "metadata.k"),
    "cache mode": ({"prompt_cache_options": {"mode": "none"}}, "prompt_cache_options.mode"),
    "cache ttl": ({"prompt_cache_options": {"ttl": ["30m"]}}, "prompt_cache_options.ttl"),
    "cache prewarm": ({"prompt_cache_options": {"prewarm": True}}, "prompt_cache_options.prewarm"),
    "cache key": ({"prompt_cache_key": "k" * 1025}, "prompt_cache_key"),
    "retention": ({"prompt_cache_retention": "1y"}, "prompt_cache_retention"),
    "seed": ({"seed": 1 << 63}, "seed"),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("changes,named", BAD.values(), ids=BAD)
def test_bad_input_is_named(server, changes, named, stream):
    answer = post(server, **{"stream": stream, **changes})
    body = answer.json()
    assert (answer.status_code, body["error"]["type"]) == (400, "invalid_request_error"), body
    assert named in body["error"]["message"]
    assert len(body["error"]["message"]) < 1000


def test_a_model_that_is_not_served_and_a_response_that_is_not_there(server):
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0)
    with pytest.raises(openai.NotFoundError, match="served: tiny"):
        client.responses.create(model="gpt", input="hi")
    with pytest.raises(openai.NotFoundError, match="resp_x"):
        client.responses.create(model="tiny", input="hi", previous_response_id="resp_x")
    assert httpx.get(f"{server.url}/v1/responses/" + "x" * 5000).status_code == 404
    assert httpx.get(f"{server.url}/v1/responses/x?stream=true").status_code == 400


def test_deep_objects_in_unread_places_break_nothing(server):
    for changes in ({"novelty": deep()}, {"stream_options": deep()}, {"include": [deep()]}):
        assert post(server, **changes).status_code == 200
    answer = post(server, tools=[TOOL], tool_choice={"type": "function", "name": "f", "x": deep()})
    assert answer.status_code == 400


def test_a_prompt_beyond_the_context_is_a_400_before_the_stream_begins(server):
    answer = post(server, input="word " * 10_000, stream=True)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")

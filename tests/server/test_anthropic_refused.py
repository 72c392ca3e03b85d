"""What ``/v1/messages`` does not take: a 400 in the protocol's own shape that names the field, never a 500."""

import anthropic
import httpx
import pytest
from served_kit import running, served

from kvist.server.tenants import Tenants

HI = [{"role": "user", "content": "hi"}]
TOOL = {"name": "f", "input_schema": {"type": "object"}}


@pytest.fixture(scope="module")
def server():
    with running(served("Hello."), max_body_bytes=1_000_000) as it:
        yield it


def post(server, path="/v1/messages", **changes):
    body = {"model": "tiny", "max_tokens": 5, "messages": HI, **changes}
    given = {k: v for k, v in body.items() if v is not ...}
    # Nothing is encrypted here, and to read all certificates takes 20 ms a call.
    return httpx.post(server.url + path, json=given, timeout=20, verify=False)


def user(*blocks):
    return [{"role": "user", "content": list(blocks)}]


def assistant(*blocks):
    return [*HI, {"role": "assistant", "content": list(blocks)}, *HI]


def text(**more):
    return {"type": "text", "text": "x", **more}


EPHEMERAL = {"cache_control": {"type": "ephemeral"}}
MARKED = text(**EPHEMERAL)
AUTO = {**TOOL, "name": "auto"}

BAD = {
    "no max_tokens": ({"max_tokens": ...}, "max_tokens"),
    "zero max_tokens": ({"max_tokens": 0}, "max_tokens"),
    "max_tokens as text": ({"max_tokens": "5"}, "max_tokens"),
    "no model": ({"model": ...}, "model"),
    "no messages": ({"messages": ...}, "messages"),
    "empty messages": ({"messages": []}, "messages"),
    "messages no list": ({"messages": {"role": "user"}}, "messages"),
    "message no object": ({"messages": ["hi"]}, "messages[0]"),
    "unknown role": ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    "role no text": ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0].role"),
    "no content": ({"messages": [{"role": "user"}]}, "messages[0].content"),
    "empty content": ({"messages": user()}, "messages[0].content"),
    "image": ({"messages": user(text(), {"type": "image", "source": {}})}, "messages[0].content[1].type='image'"),
    "document": ({"messages": user({"type": "document", "source": {}})}, "messages[0].content[0].type='document'"),
    "block no object": ({"messages": user("hi")}, "messages[0].content[0]"),
    "text no text": ({"messages": user({"type": "text", "text": 7})}, "messages[0].content[0].text"),
    "tool_use by a user": ({"messages": user({"type": "tool_use", "id": "1", "name": "f", "input": {}})}, "tool_use"),
    "input no object": (
        {"messages": assistant({"type": "tool_use", "id": "1", "name": "f", "input": "{}"})},
        "messages[1].content[0].input",
    ),
    "result of nothing": ({"messages": user({"type": "tool_result", "content": "x"})}, "tool_use_id"),
    "image as a result": (
        {"messages": user({"type": "tool_result", "tool_use_id": "1", "content": [{"type": "image"}]})},
        "messages[0].content[0].content[0].type='image'",
    ),
    "prefill": ({"messages": [*HI, {"role": "assistant", "content": "The"}]}, "messages[1].role"),
    "system no text": ({"system": [{"type": "image"}]}, "system[0].type"),
    "system a number": ({"system": 5}, "system"),
    "hot": ({"temperature": 2.5}, "temperature"),
    "top_p": ({"top_p": 0}, "top_p"),
    "top_k": ({"top_k": -1}, "top_k"),
    "empty stop": ({"stop_sequences": [""]}, "stop_sequences[0]"),
    "long stop": ({"stop_sequences": ["x" * 1025]}, "stop_sequences[0]"),
    "many stops": ({"stop_sequences": ["x"] * 17}, "stop_sequences"),
    "stop no list": ({"stop_sequences": "x"}, "stop_sequences"),
    "server tool": ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search_20250305"),
    "tool without schema": ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
    "tool name": ({"tools": [{**TOOL, "name": "a b"}]}, "tools[0].name"),
    "tool twice": ({"tools": [TOOL, TOOL]}, "tools[1].name"),
    "tool description": ({"tools": [{**TOOL, "description": 5}]}, "tools[0].description"),
    "many tools": ({"tools": [TOOL] * 1025}, "tools"),
    "choice": ({"tools": [TOOL], "tool_choice": {"type": "maybe"}}, "tool_choice.type"),
    "choice of nothing": ({"tool_choice": {"type": "any"}}, "tool_choice"),
    "choice unknown": ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice"),
    "choice ambiguous": ({"tools": [AUTO], "tool_choice": {"type": "tool", "name": "auto"}}, "auto"),
    "parallel no flag": ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": 1}}, "disable_parallel"),
    "thinking": ({"max_tokens": 3000, "thinking": {"type": "enabled", "budget_tokens": 2000}}, "thinking"),
    "thinking what": ({"thinking": {"type": "sometimes"}}, "thinking.type"),
    "cache what": ({"cache_control": {"type": "eternal"}}, "cache_control.type"),
    "cache ttl": ({"system": [text(cache_control={"type": "ephemeral", "ttl": "2h"})]}, "system[0].cache_control.ttl"),
    "cache five times": ({"messages": user(*[MARKED] * 5)}, "at most 4"),
    "cache five places": (
        {**EPHEMERAL, "system": [MARKED] * 2, "tools": [{**TOOL, **EPHEMERAL}], "messages": user(MARKED)},
        "at most 4",
    ),
    "tier": ({"service_tier": "priority"}, "service_tier"),
    "container": ({"container": "c"}, "container"),
    "mcp": ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
    "speed": ({"speed": "fast"}, "speed"),
    "format": ({"output_config": {"format": {"type": "yaml"}}}, "output_config.format.type"),
    "format without grammars": ({"output_config": {"format": {"type": "json_schema", "schema": {}}}}, "llguidance"),
    "seed": ({"seed": -1}, "seed"),
}  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("changes,named", BAD.values(), ids=BAD)
def test_bad_input_is_named(server, changes, named, stream):
    answer = post(server, **changes, stream=stream)
    body = answer.json()
    assert (answer.status_code, body["type"], body["error"]["type"]) == (400, "error", "invalid_request_error"), body
    assert named in body["error"]["message"]
    assert len(body["error"]["message"]) < 1000


@pytest.mark.parametrize(
    "name", [n for n in BAD if n not in ("no max_tokens", "zero max_tokens", "max_tokens as text")]
)
def test_counting_refuses_the_same_conversations(server, name):
    changes, _ = BAD[name]
    conversation = {"messages", "system", "tools", "cache_control", "model"} & set(changes)
    if conversation and "choice" not in name:
        assert post(server, "/v1/messages/count_tokens", **changes, max_tokens=...).status_code == 400


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b"[" * 100_000, b'{"model": "tiny", "max_tokens": 1e400}',
     b'{"model": "tiny", "max_tokens": 5, "temperature": NaN, "messages": [{"role": "user", "content": "x"}]}',
     b'{"model": "tiny", "max_tokens": ' + b"9" * 5000 + b"}"],
    ids=range(10),
)  # fmt: skip
def test_broken_json_is_a_400(server, body):
    answer = httpx.post(server.url + "/v1/messages", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")


def test_deep_objects_are_refused_or_taken_but_never_break(server):
    deep = {}
    for _ in range(400):
        deep = {"a": deep}
    call = {"type": "tool_use", "id": "1", "name": "f", "input": deep}
    for changes in ({"tools": [{**TOOL, "input_schema": deep}]}, {"messages": assistant(call)}):
        assert post(server, **changes).status_code == 400
    for changes in ({"metadata": deep}, {"diagnostics": deep}, {"novelty": deep}):
        assert post(server, **changes).status_code == 200


def test_half_characters_do_not_break_it(server):
    raw = b'{"model": "tiny", "max_tokens": 3, "messages": [{"role": "user", "content": "\\ud800 \\u0000"}]}'
    answer = httpx.post(server.url + "/v1/messages", content=raw, headers={"content-type": "application/json"})
    assert answer.status_code in (200, 400)
    raw = raw.replace(b'"tiny"', b'"\\ud800"')
    answer = httpx.post(server.url + "/v1/messages", content=raw, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "not_found_error")


def test_a_prompt_beyond_the_context_is_a_400_and_a_body_beyond_the_limit_a_413(server):
    answer = post(server, messages=[{"role": "user", "content": "word " * 10_000}], stream=True)
    assert answer.status_code == 400 and "context" in answer.json()["error"]["message"]
    answer = post(server, messages=[{"role": "user", "content": "word " * 300_000}])
    assert (answer.status_code, answer.json()["error"]["type"]) == (413, "request_too_large")


def test_the_client_sees_its_own_error_classes(server):
    client = anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0)
    with pytest.raises(anthropic.NotFoundError, match="served: tiny"):
        client.messages.create(model="claude", max_tokens=5, messages=HI)
    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(model="tiny", max_tokens=5, messages=[])


def test_keys_by_either_header():
    with running(served("Hello."), tenants=Tenants.parse(["ann:secret"])) as server:
        for headers, status in (
            ({"x-api-key": "secret"}, 200),
            ({"authorization": "Bearer secret"}, 200),
            ({"x-api-key": "other"}, 401),
            ({}, 401),
        ):
            body = {"model": "tiny", "max_tokens": 5, "messages": HI}
            answer = httpx.post(server.url + "/v1/messages", json=body, headers=headers)
            assert answer.status_code == status
        assert answer.json()["error"]["type"] == "authentication_error"

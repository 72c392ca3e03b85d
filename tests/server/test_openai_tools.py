"""Tools and constrained answers: what the official client sends, and what it can read of the answer."""

import pytest
from openai import BadRequestError
from openai_kit import client_of, posted, served, serving, streamed

pytest.importorskip("llguidance")

TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "description": "d", "parameters": {"type": "object", "properties": {}}},
    }
    for name in ("get_weather", "get_time")
]
HI = [{"role": "user", "content": "weather?"}]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Åre"}}\n</tool_call>'
TWO = CALL + "\n" + CALL.replace("get_weather", "get_time")


@pytest.fixture(scope="module")
def server():
    with serving(served("Let me look. " + TWO)) as running:
        yield running
        running.books()


def test_calls_as_the_client_reads_them(server):
    answer = client_of(server).chat.completions.create(model="tiny", messages=HI, tools=TOOLS)
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content.strip() == "Let me look."
    calls = choice.message.tool_calls
    assert [c.function.name for c in calls] == ["get_weather", "get_time"]
    assert calls[0].function.arguments == '{"city": "Åre"}' and calls[0].id != calls[1].id


def test_streamed_calls_are_the_same(server):
    with client_of(server).chat.completions.stream(model="tiny", messages=HI, tools=TOOLS) as stream:
        message = stream.get_final_completion().choices[0]
    assert [c.function.name for c in message.message.tool_calls] == ["get_weather", "get_time"]
    assert message.finish_reason == "tool_calls"
    chunks, _ = streamed(server, "/v1/chat/completions", {"messages": HI, "tools": TOOLS})
    assert "<tool_call>" not in "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks)


def test_without_tools_it_is_text(server):
    for more in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        choice = posted(server, "/v1/chat/completions", {"messages": HI, **more}).json()["choices"][0]
        assert choice["message"]["content"].startswith("Let me look. <tool_call>")
        assert "tool_calls" not in choice["message"] and choice["finish_reason"] == "stop"


def test_one_call_at_a_time(server):
    body = {"messages": HI, "tools": TOOLS, "parallel_tool_calls": False}
    message = posted(server, "/v1/chat/completions", body).json()["choices"][0]["message"]
    assert [c["function"]["name"] for c in message["tool_calls"]] == ["get_weather"]
    chunks, _ = streamed(server, "/v1/chat/completions", body)
    found = [c for chunk in chunks for c in chunk["choices"][0]["delta"].get("tool_calls", [])]
    assert [c["index"] for c in found] == [0]


def test_a_whole_round_with_results(server):
    """The answer goes back as the client wrote it down, with the tools' results."""
    client = client_of(server)
    first = client.chat.completions.create(model="tiny", messages=HI, tools=TOOLS).choices[0].message
    talk = [*HI, first]
    talk += [{"role": "tool", "tool_call_id": c.id, "content": "rain"} for c in first.tool_calls]
    second = client.chat.completions.create(model="tiny", messages=talk, tools=TOOLS)
    assert second.choices[0].finish_reason == "tool_calls"
    assert second.usage.prompt_tokens_details.cached_tokens > 0


class Grammars:
    """Notes what it is asked for; a text with "bad" in it is no grammar."""

    def __init__(self):
        self.asked = []

    def _note(self, kind, value):
        self.asked.append((kind, value))
        return f"{kind}: {value}"

    def json_schema(self, schema):
        return self._note("json", schema)

    def json_object(self):
        return self._note("object", None)

    def lark(self, text):
        return self._note("lark", text)

    def regex(self, pattern):
        return self._note("regex", pattern)

    def check(self, grammar):
        from kvist.errors import BadValue

        if "bad" in grammar:
            raise BadValue("grammar", grammar, "a sound one")


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
FORMATS = [
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}, ("json", SCHEMA)),
    ({"response_format": {"type": "json_object"}}, ("object", None)),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, ("json", SCHEMA)),
    ({"guided_json": SCHEMA}, ("json", SCHEMA)),
    ({"guided_json": '{"type": "string"}'}, ("json", {"type": "string"})),
    ({"guided_regex": "[0-9]+"}, ("regex", "[0-9]+")),
    ({"guided_choice": ["yes", 'n"o']}, ("lark", 'start: "yes" | "n\\"o"')),
    ({"guided_grammar": "start: /x/"}, ("lark", "start: /x/")),
    ({"structured_outputs": {"json": SCHEMA}}, ("json", SCHEMA)),
    ({"structured_outputs": {"regex": "a"}}, ("regex", "a")),
    ({"structured_outputs": {"choice": ["a"]}}, ("lark", 'start: "a"')),
    ({"structured_outputs": {"grammar": "start: /y/"}}, ("lark", "start: /y/")),
    ({"structured_outputs": {"json_object": True}}, ("object", None)),
    ({"response_format": {"type": "text"}}, None),
]
BASES = {"/v1/chat/completions": {"messages": HI}, "/v1/completions": {"prompt": "hi"}}


@pytest.fixture(scope="module")
def constrained():
    grammars = Grammars()
    with serving(served("yes", grammars=grammars)) as running:
        yield running, grammars


@pytest.mark.parametrize("path", BASES)
@pytest.mark.parametrize("body, asked", FORMATS)
def test_every_way_to_constrain(constrained, monkeypatch, path, body, asked):
    server, grammars = constrained
    grammars.asked.clear()
    jobs = []
    submit = server.service.submit
    monkeypatch.setattr(server.service, "submit", lambda job: jobs.append(job) or submit(job))
    answer = posted(server, path, {**BASES[path], **body})
    assert answer.status_code == 200, answer.text
    assert grammars.asked == ([asked] if asked else [])
    assert jobs[0].sampling.grammar == (f"{asked[0]}: {asked[1]}" if asked else None)


@pytest.mark.parametrize("path", BASES)
def test_refused_formats(constrained, server, path):
    checked, _ = constrained
    bad = {"guided_regex": "bad"}
    two = {"guided_regex": "a", "response_format": {"type": "json_object"}}
    for body in (bad, two, {"structured_outputs": {"regex": "a", "json": {}}}, {"guided_json": "[1]"}):
        answer = posted(checked, path, {**BASES[path], **body})
        assert answer.status_code == 400, answer.text
    none = posted(server, path, {**BASES[path], "guided_regex": "a"}).json()["error"]
    assert "llguidance" in none["message"] and none["param"] == "guided_regex"


def test_forced_calls_are_constrained(constrained, monkeypatch):
    server, grammars = constrained
    named = {"type": "function", "function": {"name": "get_time"}}
    for choice in ("required", named):
        grammars.asked.clear()
        body = {"messages": HI, "tools": TOOLS, "tool_choice": choice}
        assert posted(server, "/v1/chat/completions", body).status_code == 200
        ((kind, text),) = grammars.asked
        assert kind == "lark" and "get_time" in text and (("get_weather" in text) == (choice == "required"))
    with pytest.raises(BadRequestError):
        client_of(server).chat.completions.create(
            model="tiny", messages=HI, tools=TOOLS, tool_choice="required", response_format={"type": "json_object"}
        )

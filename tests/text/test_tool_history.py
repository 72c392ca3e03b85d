"""Tools in the messages of templates that know them and of those that do not."""

import json

import pytest
from text_data import shared_folder

from kvist.errors import BadValue, CorruptFile
from kvist.text.chat import ChatTemplate, encode_chat
from kvist.text.find_template import template_from_gguf
from kvist.text.tools import registry
from kvist.text.tools.history import parsed_arguments, system_text, template_knows_tools, with_tools
from kvist.text.turns import Turns

TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "é <|im_end|>", "parameters": {"type": "object", "properties": {}}},
}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"q":1}'}}
USER = {"role": "user", "content": "q"}


def test_the_system_text_is_stable_and_says_what_the_parser_reads():
    turned = {"function": dict(reversed(TOOL["function"].items())), "type": "function"}
    assert system_text([TOOL]) == system_text([turned])
    assert system_text([TOOL, {"function": {"name": "b"}}]).startswith(system_text([TOOL]).split("\n</tools>")[0])
    assert "é <|im_end|>" in system_text([TOOL])
    content, call = system_text([TOOL]).split("<tool_call></tool_call>")[1], []
    example = content.replace("<function-name>", '"look"').replace("<args-json-object>", "{}")
    parser = registry.load("hermes").parser()
    call = [delta.call for delta in [*parser.push(example), *parser.finish()] if delta.call]
    assert [(c.name, c.arguments) for c in call] == [("look", "{}")]


def test_tools_go_after_the_system_message_or_make_one():
    text = system_text([TOOL])
    assert with_tools([USER], [TOOL]) == [{"role": "system", "content": text}, USER]
    for role in ("system", "developer"):
        merged = with_tools([{"role": role, "content": [{"type": "text", "text": "Brief."}]}, USER], [TOOL])
        assert merged == [{"role": role, "content": f"Brief.\n\n{text}"}, USER]
    assert with_tools([USER], None) == with_tools([USER], []) == [USER]
    assert with_tools([], [TOOL]) == [{"role": "system", "content": text}]


def test_calls_and_results_become_text():
    second = {"function": {"name": "b", "arguments": {"é": [1, None]}}}
    chat = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "one", "tool_call_id": "c1"},
        {"role": "assistant", "content": "Now:\n", "tool_calls": [CALL, second]},
        {"role": "tool", "content": "two", "tool_call_id": "c1"},
        {"role": "tool", "content": [{"type": "text", "text": "three"}]},
        {"role": "assistant", "content": "Done.", "tool_calls": []},
    ]
    first = '<tool_call>\n{"name": "look", "arguments": {"q":1}}\n</tool_call>'
    other = '<tool_call>\n{"name": "b", "arguments": {"é": [1, null]}}\n</tool_call>'
    before = json.dumps(chat)
    assert with_tools(chat, None) == [
        USER,
        {"role": "assistant", "content": first},
        {"role": "user", "content": "<tool_response>\none\n</tool_response>"},
        {"role": "assistant", "content": f"Now:\n{first}\n{other}"},
        {
            "role": "user",
            "content": "<tool_response>\ntwo\n</tool_response>\n<tool_response>\nthree\n</tool_response>",
        },
        {"role": "assistant", "content": "Done."},
    ]
    assert json.dumps(chat) == before, "the caller's messages were changed"


def test_what_a_parser_read_is_written_back_the_same(smol, smol_path):
    """So a model's call, sent back as JSON, keeps its ids: SmolLM2's template renders it, tools and all."""
    template, turns, messages = template_from_gguf(smol_path), Turns(), [USER]
    said = 'I look.\n<tool_call>\n{"name": "look", "arguments": {"q": "a\\u00e9",  "n":1}}\n</tool_call>'
    prompt = turns.encode(b"", smol, template, with_tools(messages, [TOOL])).ids
    assert prompt == encode_chat(smol, template, with_tools(messages, [TOOL]))
    assert prompt.count(smol.id_of("<|im_end|>")) == 2
    parser = registry.load("hermes").parser()
    deltas = [*parser.push(said), *parser.finish()]
    calls = [
        {"id": "c", "type": "function", "function": {"name": d.call.name, "arguments": d.call.arguments}}
        for d in deltas
        if d.call
    ]
    answer = {"role": "assistant", "content": "".join(d.content for d in deltas), "tool_calls": calls}
    output = [n for char in said for n in smol.encode(char, add_bos=False)] + [smol.id_of("<|im_end|>")]
    spelled = with_tools([answer], None)[0]
    turns.remember(b"", with_tools(messages, [TOOL]), spelled, prompt, output)
    longer = with_tools([USER, answer, {"role": "tool", "content": "found", "tool_call_id": "c"}], [TOOL])
    found = turns.encode(b"", smol, template, longer)
    assert found.ids[: len(prompt) + len(output)] == [*prompt, *output] and not found.appended


@pytest.mark.parametrize(
    ("source", "knows"),
    [
        ("{% if tools %}x{% endif %}", True),
        ("{{ tools | tojson }}", True),
        ("{%- for t in tools -%}{{ t }}{% endfor %}", True),
        ("{# tools #}tools {{ 'tools' }} {{ messages.tools }} {{ m['tools'] }}{{ toolset }}", False),
        ("{{ messages }}", False),
        ("", False),
    ],
)
def test_whether_a_template_reads_tools(source, knows):
    assert template_knows_tools(source) == knows


def test_whether_known_templates_read_tools(smol_path):
    assert not template_knows_tools(template_from_gguf(smol_path).source)
    blind = {"HuggingFaceTB-SmolLM3-3B", "microsoft-Phi-3.5-mini-instruct"}
    blind |= {"deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "deepseek-ai-DeepSeek-V3.1"}
    for file in shared_folder("chat_templates").glob("*.jinja"):
        source = file.read_text(encoding="utf-8")
        tool = {"type": "function", "function": {"name": "xyzzy", "description": "", "parameters": {}}}
        assert template_knows_tools(source) == (file.stem not in blind), file.name
        shown = "xyzzy" in ChatTemplate(source, "", "").render([USER], tools=[tool], available_tools=[tool])
        assert shown == (file.stem not in blind), file.name
    with pytest.raises(CorruptFile, match="does not compile"):
        template_knows_tools("{{ 'open }}")


def test_arguments_become_objects_for_templates_that_want_them():
    chat = [USER, {"role": "assistant", "content": "", "tool_calls": [CALL, {"function": {"name": "b"}}]}]
    calls = parsed_arguments(chat)[1]["tool_calls"]
    assert [call["function"]["arguments"] for call in calls] == [{"q": 1}, {}]
    assert calls[0]["id"] == "c1" and chat[1]["tool_calls"][0]["function"]["arguments"] == '{"q":1}'
    assert parsed_arguments([USER, {"role": "assistant", "content": "x", "tool_calls": None}])[0] == USER


@pytest.mark.parametrize(
    ("calls", "match"),
    [
        ("look", r"messages\[0\].tool_calls='str'"),
        (["look"], r"messages\[0\].tool_calls\[0\]='str'"),
        ([{"function": {"arguments": "{}"}}], r"tool_calls\[0\]='dict'"),
        ([CALL, {"function": "look"}], r"tool_calls\[1\]"),
    ],
)
def test_malformed_calls_are_explained(calls, match):
    chat = [{"role": "assistant", "content": "", "tool_calls": calls}]
    for function in (parsed_arguments, lambda messages: with_tools(messages, [TOOL])):
        with pytest.raises(BadValue, match=match):
            function(chat)


@pytest.mark.parametrize("arguments", ["{", "[1]", "3", "x"])
def test_arguments_that_are_no_object(arguments):
    chat = [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}]
    with pytest.raises(BadValue, match=r"messages\[0\].tool_calls\[0\].function.arguments"):
        parsed_arguments(chat)


def test_malformed_messages_and_tools():
    with pytest.raises(BadValue, match=r"messages\[1\]='str'"):
        with_tools([USER, "x"], [TOOL])
    with pytest.raises(BadValue, match=r"tools\[0\]"):
        with_tools([USER], [{"name": "look"}])
    with pytest.raises(BadValue, match=r"messages\[0\].content\[0\].type='image_url'"):
        with_tools([{"role": "tool", "content": [{"type": "image_url"}]}], None)

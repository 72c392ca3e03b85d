"""Tool-call formats: every variant of the shelf under the same rules, then each one's own cases."""

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_data import shared_folder

from kvist.errors import BadValue, StateError
from kvist.text.tools import registry
from kvist.text.tools.mistral import Mistral

CALLS = {
    "hermes": '<tool_call>\n{"name": "look", "arguments": {"q": "a </tool_call", "n": [1, {"x": null}]}}\n</tool_call>',
    "llama3": '<|python_tag|>{"name": "look", "parameters": {"q": "a } \\" b", "n": [1, {"x": null}]}}',
    "mistral": '[TOOL_CALLS][{"name": "look", "arguments": {"q": "a ]\\\\", "n": [1, {"x": null}]}, "id": "abcdef"}]',
}
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {
            "type": "object",
            "properties": {"q": {"type": "string"}, "n": {"type": "integer"}},
            "required": ["q"],
            "additionalProperties": False,
        },
    },
}
BARE = {"type": "function", "function": {"name": "now.utc-2"}}
SCRAPS = [
    *CALLS.values(),
    *["<tool_call>", "</tool_call>", "<tool_", "[TOOL_CALLS]", "[TOOL", "<|python_tag|>", "<|py", "[ARGS]", "look"],
    *[
        '{"name": "f"}',
        '{"name": "f", "arguments": {}}',
        '{"a": 1}',
        "{",
        "}",
        "[",
        "]",
        '"',
        "\\",
        ";",
        " ",
        "\n",
        "é",
    ],
]


def read(name, parts):
    """(pieces in order, content, calls); whatever happens, the pieces put together are the text."""
    parser = registry.load(name).parser()
    deltas = [delta for part in parts for delta in parser.push(part)] + parser.finish()
    pieces = [delta.content + (delta.call.raw if delta.call else "") for delta in deltas]
    assert "".join(pieces) == "".join(parts)
    assert all(bool(delta.content) != (delta.call is not None) for delta in deltas)
    calls = [delta.call for delta in deltas if delta.call]
    assert [call.index for call in calls] == list(range(len(calls)))
    assert all(isinstance(json.loads(call.arguments), dict) and call.name for call in calls)
    return "".join(delta.content for delta in deltas), calls


def found(name, text):
    content, calls = read(name, [text])
    assert (content, calls) == read(name, list(text)), "the cut into pushes shows"
    return content, [(call.name, json.loads(call.arguments)) for call in calls]


@pytest.mark.parametrize("name", registry.names())
def test_a_call_comes_out_as_it_was_written(name):
    content, calls = found(name, CALLS[name])
    assert content == "" and [call[0] for call in calls] == ["look"]
    assert calls[0][1]["n"] == [1, {"x": None}] and calls[0][1]["q"][:2] == "a "
    _, whole = read(name, [CALLS[name]])
    assert whole[0].arguments in CALLS[name] and whole[0].raw == CALLS[name]


@pytest.mark.parametrize("name", registry.names())
def test_text_before_a_call_is_shown_at_once_and_a_call_when_complete(name):
    parser = registry.load(name).parser()
    text = "Let me see. " + CALLS[name]
    shown = [(at, delta) for at, char in enumerate(text) for delta in parser.push(char)]
    assert "".join(delta.content for _, delta in shown) == "Let me see. "
    assert [at for at, delta in shown if delta.content] == list(range(12))
    assert [at for at, delta in shown if delta.call] == [len(text) - 1]
    assert parser.finish() == [] == parser.finish()
    with pytest.raises(StateError, match="finished"):
        parser.push("x")


@pytest.mark.parametrize("name", registry.names())
def test_near_misses_and_cut_calls_are_content(name):
    text = CALLS[name]
    for end in range(len(text)):
        content, calls = found(name, text[:end])
        if not calls:
            assert content == text[:end]
    assert found(name, text[: len(text) // 2])[1] == []


@pytest.mark.parametrize("name", registry.names())
@settings(max_examples=400, deadline=None)
@given(scraps=st.lists(st.sampled_from(SCRAPS), max_size=8), size=st.integers(1, 9))
def test_nothing_is_lost_and_cuts_do_not_show(name, scraps, size):
    text = "".join(scraps)
    assert read(name, [text]) == read(name, [text[n : n + size] for n in range(0, len(text), size)])


@pytest.mark.parametrize("name", registry.names())
def test_what_is_held_may_still_become_a_call(name):
    """Plain text is never held beyond the length of a marker."""
    pick, parser, fed, shown = random.Random(1), registry.load(name).parser(), 0, 0
    for _ in range(2000):
        part = pick.choice(["a", "<", "[", "tool", "|>", " b\n", "}"])
        fed += len(part)
        shown += sum(len(delta.content) for delta in parser.push("x" + part)) - 1
        assert 0 <= fed - shown <= len("<|python_tag|>")


@pytest.mark.parametrize(
    ("name", "text", "content", "calls"),
    [
        ("hermes", 'a<tool_call>{"name":"f","arguments":{}}</tool_call>b', "ab", [("f", {})]),
        ("hermes", '<tool_call>{"name":"f"}</tool_call>', "", [("f", {})]),
        ("hermes", '<tool_call>{"arguments":"{\\"a\\": 1}","name":"f"}</tool_call>', "", [("f", {"a": 1})]),
        ("hermes", '<tool_call>\n{"name":"f","arguments":{"a":1}}\n', "", [("f", {"a": 1})]),
        ("hermes", '<tool_call>{"name":"f","arguments":{"a":1}}</tool_', "", [("f", {"a": 1})]),
        ("hermes", '<tool_call>{"name":"f","arguments":{"a":1}} and', None, []),
        ("hermes", '<tool_call>{"name":"f","arguments":[1]}</tool_call>', None, []),
        ("hermes", '<tool_call>{"name":"","arguments":{}}</tool_call>', None, []),
        ("hermes", '<tool_call>{"name":"f","arguments":{"a":NaN}}</tool_call>', None, []),
        ("hermes", '<tool_call>{"name":"f","arguments":{"a":' + "[" * 3000 + "]" * 3000 + "}}</tool_call>", None, []),
        ("hermes", '<tool_call>{"name":"f","arguments":{"a":' + "9" * 5000 + "}}</tool_call>", None, []),
        ("hermes", '<tool_call>{"name":"f","other":1}</tool_call>', None, []),
        ("hermes", "<tool_call>f(x)</tool_call>", None, []),
        (
            "hermes",
            '<tool_call>{"name": f}</tool_call>\n<tool_call>{"name":"g","arguments":{}}</tool_call>',
            '<tool_call>{"name": f}</tool_call>\n',
            [("g", {})],
        ),
        (
            "hermes",
            '<tool_call>{"name": "f", "arguments": {}</tool_call>, <tool_call>{"name":"g"}</tool_call>',
            '<tool_call>{"name": "f", "arguments": {}</tool_call>, ',
            [("g", {})],
        ),
        (
            "hermes",
            '<tool_call>{"name":"f","arguments":{"a":"</tool_call>"}}</tool_call>',
            "",
            [("f", {"a": "</tool_call>"})],
        ),
        ("hermes", "<tool_call>" * 3 + '{"name":"g"}</tool_call>', "<tool_call>" * 2, [("g", {})]),
        ("llama3", '{"name": "f", "parameters": {"a": 1}}', "", [("f", {"a": 1})]),
        ("llama3", ' \n{"name": "f", "arguments": {"a": 1}}', " \n", [("f", {"a": 1})]),
        ("llama3", '{"type": "function", "name": "f", "parameters": {}}', "", [("f", {})]),
        ("llama3", '{"name":"f","parameters":{}}; {"name":"g","parameters":{}}', "", [("f", {}), ("g", {})]),
        ("llama3", '{"name":"f","parameters":{}}\n{"name":"g","parameters":{}}', "\n", [("f", {}), ("g", {})]),
        ("llama3", 'I say {"name": "f", "parameters": {}}', None, []),
        ("llama3", '{"name": "f", "parameters": {}, "arguments": {}}', None, []),
        ("llama3", '{"answer": {"name": "f", "parameters": {}}}', None, []),
        ("llama3", "<|python_tag|>import os", None, []),
        ("llama3", "; hello", None, []),
        ("mistral", '[TOOL_CALLS] [{"name":"f","arguments":{}}, {"name":"g","arguments":{"a":1}}]', "", None),
        ("mistral", 'x[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[CALL_ID]abcdefghi[ARGS]{}', "x", None),
        ("mistral", '[TOOL_CALLS][{"name":"f","arguments":{}}, {"name":3}]', None, []),
        ("mistral", "[TOOL_CALLS][]", None, []),
        ("mistral", "[TOOL_CALLS]f[ARGS]{1}", None, []),
        ("mistral", "[TOOL_CALLS] said the manual", None, []),
    ],
)
def test_cases(name, text, content, calls):
    got = found(name, text)
    assert got[0] == (text if content is None else content)
    if calls is not None:
        assert got[1] == calls
    else:
        assert [call[0] for call in got[1]] == ["f", "g"]


def test_content_that_is_json_is_not_held_to_its_end():
    """Llama's calls are bare JSON: one whose first field is no call's goes through as it comes."""
    parser = registry.load("llama3").parser()
    assert parser.push('{"ans') == []
    assert [delta.content for delta in parser.push('wer": 1')] == ['{"answer": 1']
    assert [delta.content for delta in parser.push("23")] == ["23"]


def test_long_arguments_take_time_in_proportion():
    import time

    text = '<tool_call>{"name": "f", "arguments": {"a": "' + "x<" * 50_000 + '"}}</tool_call>'
    start = time.process_time()
    _, calls = read("hermes", [text[n : n + 8] for n in range(0, len(text), 8)])
    assert len(calls) == 1 and time.process_time() - start < 5


def test_the_registry():
    for name in registry.names():
        assert registry.load(name).name == name
    assert [n for n in registry.names() if registry.load(n).needs_special] == ["llama3", "mistral"]
    with pytest.raises(BadValue, match="tool_format='xml'.*hermes, llama3, mistral"):
        registry.load("xml")


def test_formats_of_known_templates():
    want = {
        "GLM-4.6": None,
        "HuggingFaceTB-SmolLM3-3B": "hermes",
        "Mistral-Small-3.2-24B-Instruct-2506": "mistral",
        "Qwen-QwQ-32B": "hermes",
        "Qwen-Qwen2.5-7B-Instruct": "hermes",
        "Qwen-Qwen3-0.6B": "hermes",
        "Qwen3-Coder": None,
        "deepseek-ai-DeepSeek-V3.1": "hermes",
        "ibm-granite-granite-3.3-2B-Instruct": None,
        "ibm-granite-granite-4.0": "hermes",
        "microsoft-Phi-3.5-mini-instruct": "hermes",
        "mistralai-Mistral-Nemo-Instruct-2407": "mistral",
        "openai-gpt-oss-120b": None,
    }
    folder = shared_folder("chat_templates")
    got = {name: registry.choose((Path(folder) / f"{name}.jinja").read_text(encoding="utf-8")) for name in want}
    assert got == want
    assert registry.choose("{{ messages }}<|python_tag|>") == "llama3"
    assert registry.choose('<|start_header_id|>{{ \'{"name": name, "parameters": \' }}{{ tools }}') == "llama3"


@pytest.fixture(scope="module")
def accepts():
    """A function that says whether a text is what a grammar asks for."""
    llguidance = pytest.importorskip("llguidance")
    tokenizer = llguidance.LLTokenizer("byte")

    def accept(grammar, text):
        assert llguidance.LLMatcher.validate_grammar(llguidance.grammar_from("lark", grammar)) == ""
        machine = llguidance.LLMatcher(tokenizer, llguidance.grammar_from("lark", grammar))
        ids = tokenizer.tokenize_str(text)
        return machine.validate_tokens(ids) == len(ids) and machine.consume_tokens(ids) and machine.is_accepting()

    return accept


GOOD = {
    "hermes": '<tool_call>\n{"name": "look", "arguments": {"q": "x", "n": 3}}\n</tool_call>',
    "llama3": '{"name": "look", "parameters": {"q": "x", "n": 3}}',
    "mistral": '[TOOL_CALLS][{"name": "look", "arguments": {"q": "x", "n": 3}}]',
}


@pytest.mark.parametrize("name", registry.names())
def test_grammars(name, accepts):
    variant, good = registry.load(name), GOOD[name]
    grammar = variant.grammar([TOOL, BARE], "required")
    for text, fits in (
        (good, True),
        (good.replace("look", "now.utc-2"), True),
        (good.replace("look", "nothing"), False),
        (good.replace("3", '"3"'), False),
        (good.replace('"q": "x", ', ""), False),
        ("Hello " + good, False),
        (good[:-1], False),
        ("", False),
    ):
        assert accepts(grammar, text) == fits, text
    content, calls = found(name, good)
    assert content == "" and calls == [("look", {"q": "x", "n": 3})]
    one = variant.grammar([TOOL, BARE], {"type": "function", "function": {"name": "look"}}, parallel=False)
    assert accepts(one, good) and not accepts(one, good.replace("look", "now.utc-2"))
    twice = {"hermes": good + "\n" + good, "llama3": good + "; " + good}.get(name, good[:-1] + ", " + good[13:])
    assert accepts(grammar, twice) and not accepts(one, twice)
    named = variant.grammar([TOOL, BARE], {"type": "function", "function": {"name": "look"}})
    assert accepts(named, good) and not accepts(named, twice), "a function that is named is called once"
    assert [call[0] for call in found(name, twice)[1]] == ["look", "look"]
    assert variant.grammar([TOOL], "auto") is variant.grammar([TOOL], "none") is variant.grammar([], None) is None


def test_markers_that_are_control_tokens_go_by_id(accepts):
    named = Mistral(named=True).grammar([TOOL, BARE], "required")
    assert accepts(named, '[TOOL_CALLS]look[ARGS]{"q": "x"}[TOOL_CALLS]now.utc-2[ARGS]{}')
    for variant in (Mistral(), Mistral(named=True)):
        grammar = variant.grammar([TOOL], "required", token_id={"[TOOL_CALLS]": 5}.get)
        assert "<[5]>" in grammar and '"[TOOL_CALLS]"' not in grammar


@pytest.mark.parametrize("name", registry.names())
@pytest.mark.parametrize(
    ("tools", "choice", "match"),
    [
        ([], "required", "tools to choose from"),
        ([TOOL], {"type": "function", "function": {"name": "nope"}}, "tool_choice='nope'.*look"),
        ([TOOL], "sometimes", "tool_choice='sometimes'"),
        ([TOOL], 3, "tool_choice=3"),
        ([TOOL], {"function": 3}, "tool_choice="),
        ([TOOL, TOOL], "required", r"tools\[1\].function.name='look'"),
        ([TOOL, {"type": "web_search"}], "required", r"tools\[1\]"),
        ([{"function": {"name": 'a"b'}}], "required", r"tools\[0\].function.name"),
        ([{"function": {"name": "a", "parameters": [1]}}], "auto", r"tools\[0\].function.parameters='list'"),
        ("look", "auto", "tools='str'"),
    ],
)
def test_bad_tools_and_choices(name, tools, choice, match):
    with pytest.raises(BadValue, match=match):
        registry.load(name).grammar(tools, choice)

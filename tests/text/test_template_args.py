"""What clients send besides messages: content in parts, arguments for the template, a template of their own."""

import time

import pytest

from kvist.errors import BadValue, ModelError, UsageError
from kvist.text.chat import ChatTemplate, encode_chat
from kvist.text.parts import join_parts, joined
from kvist.text.template_args import MAX_TEMPLATE_CHARS, check_template_kwargs, client_template

USER = {"role": "user", "content": "hi"}


def text(content, kind="text"):
    return {"type": kind, "text": content}


def test_parts_of_text_are_put_together():
    assert joined([text("a"), text(" b", "input_text"), text("c\n", "output_text"), "d"]) == "a bc\nd"
    assert joined("plain") == "plain" and joined(None) is None and joined([]) == ""
    chat = [USER, {"role": "user", "content": [text("x"), text("y")]}, {"role": "assistant", "content": None}]
    assert [m["content"] for m in join_parts(chat)] == ["hi", "xy", None]
    assert isinstance(chat[1]["content"], list), "the caller's messages were changed"


@pytest.mark.parametrize(
    ("part", "match"),
    [
        ({"type": "image_url", "image_url": {"url": "x"}}, r"messages\[1\].content\[1\].type='image_url'.*text only"),
        ({"type": "input_audio"}, r"content\[1\].type='input_audio'"),
        ({"type": "file", "text": "x"}, r"content\[1\].type='file'"),
        ({"text": "x"}, r"content\[1\].type=None"),
        ({"type": "text"}, r"content\[1\].text='NoneType'"),
        ({"type": "text", "text": 3}, r"content\[1\].text='int'"),
        (3, r"content\[1\]='int'"),
        (None, r"content\[1\]='NoneType'"),
    ],
)
def test_other_parts_are_refused_by_index_and_type(part, match):
    with pytest.raises(BadValue, match=match):
        join_parts([USER, {"role": "user", "content": [text("a"), part]}])


def test_content_of_no_kind():
    for bad in (3, {"type": "text", "text": "x"}, b"x"):
        with pytest.raises(BadValue, match="content="):
            joined(bad)
    with pytest.raises(BadValue, match="messages='str'"):
        join_parts("hello")


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "bos_token", "raise_exception", "self"])
def test_arguments_may_not_stand_for_what_the_server_sets(name):
    with pytest.raises(BadValue, match=f"chat_template_kwargs='{name}'.*leave {name} out"):
        check_template_kwargs({"enable_thinking": True, name: 1})


@pytest.mark.parametrize("name", ["", "a b", "1a", "_x", "for", "x-y", "__class__", 3])
def test_argument_names_are_words(name):
    with pytest.raises(BadValue, match="chat_template_kwargs="):
        check_template_kwargs({name: 1})


def test_arguments_are_plain_and_bounded():
    given = {"enable_thinking": False, "documents_": [{"a": ("b",)}], "n": 1.5}
    checked = check_template_kwargs(given)
    assert checked == {"enable_thinking": False, "documents_": [{"a": ["b"]}], "n": 1.5}
    assert ChatTemplate("{{ enable_thinking }}").render([USER], **checked) == "False"
    assert check_template_kwargs(None) == check_template_kwargs({}) == {}
    deep = []
    for _ in range(5000):
        deep = [deep]
    for bad in ("x", [1], {"x": object()}, {f"n{n}": 1 for n in range(33)}, {"x": "y" * 70_000}, {"x": deep}):
        with pytest.raises(BadValue):
            check_template_kwargs(bad)


def test_a_message_nested_too_deeply_is_refused(tiny):
    deep = {}
    for _ in range(5000):
        deep = {"a": deep}
    calls = [{"function": {"name": "f", "arguments": deep}}]
    for chat in ([{**USER, "x": deep}], [{"role": "assistant", "tool_calls": calls}]):
        with pytest.raises(BadValue, match="within each other"):
            encode_chat(tiny, ChatTemplate("{{ messages }}"), chat)
        with pytest.raises(BadValue, match="within each other"):
            ChatTemplate("{{ messages }}").render(chat)


def test_control_strings_in_arguments_stay_text(tiny):
    template = ChatTemplate("<|im_start|>{{ style }}{{ messages[0].content }}<|im_end|>")
    extra = check_template_kwargs({"style": "<|im_end|><|im_start|>"})
    ids = encode_chat(tiny, template, [USER], **extra)
    assert [n for n in ids if n in tiny.special_ids] == [tiny.id_of("<|im_start|>"), tiny.id_of("<|im_end|>")]


def test_a_clients_template_is_refused_unless_allowed():
    default = ChatTemplate("{{ bos_token }}A", "<B>")
    assert client_template(None, default, allowed=False) is default
    with pytest.raises(UsageError, match="takes no templates"):
        client_template("B", default, allowed=False)
    assert client_template("{{ bos_token }}B", default, allowed=True).render([USER]) == "<B>B"


def test_a_clients_template_is_bounded():
    default = ChatTemplate("A")
    for bad, match in (
        ("x" * (MAX_TEMPLATE_CHARS + 1), "at most 65536 characters"),
        ("{% for %}", "one that compiles"),
        (3, "chat_template='int'"),
    ):
        with pytest.raises(BadValue, match=match):
            client_template(bad, default, allowed=True)
    loop = "{% for i in range(1000) %}{% for j in range(1000) %}{% endfor %}{% endfor %}"
    with pytest.raises(ModelError, match="more than 100000 steps"):
        client_template(loop, default, allowed=True).render([USER])
    assert ChatTemplate(loop, max_steps=2_000_000).render([USER]) == ""
    tight = client_template("{% for i in range(70) %}{% endfor %}", ChatTemplate("A", max_steps=60), allowed=True)
    with pytest.raises(ModelError, match="more than 60 steps"):
        tight.render([USER])


@pytest.mark.parametrize(
    "piece", ["{{ a }}", "{% if a %}{% endif %}", "{% macro a() %}{% endmacro %}", "{{ [[[1]]] }}", "{{"]
)
def test_compiling_the_largest_template_does_not_take_long(piece):
    source = piece * (MAX_TEMPLATE_CHARS // len(piece))
    start = time.process_time()
    try:
        client_template(source, ChatTemplate("A"), allowed=True)
    except BadValue as error:
        assert "one that compiles" in str(error)
    assert time.process_time() - start < 10

"""Answers keep their ids from turn to turn (faults F090, F091, F092)."""

import os
import random
import threading
from pathlib import Path

import pytest
from text_data import ODD_TEXTS, shared_folder
from tiny_vocab import byte_level, sentencepiece, write_gguf

from kvist.errors import BadValue, UsageError
from kvist.text.chat import ChatTemplate, encode_chat
from kvist.text.find_template import template_from_gguf
from kvist.text.from_gguf import from_gguf
from kvist.text.outline import Outline
from kvist.text.turns import Encoded, Turns

VOCABS = Path(os.environ.get("KVIST_LLAMA_VOCABS", "/tmp/llama-vocabs"))
"""As in test_llama_vocabs.py."""

CHATML = byte_level()["tokenizer.chat_template"]
PIECES = [*ODD_TEXTS[1:13], "<|im_end|>", "<|im_", "<", "the cat", " ", "\r\n", "é\u0301", "\U0001f469\u200d", "in the"]


def user(text):
    return {"role": "user", "content": text}


def answer(text, **more):
    return {"role": "assistant", "content": text, **more}


def split_up(tokenizer, text, pick):
    """Ids that decode to ``text`` and are not the canonical ones: the text is cut anywhere and encoded in pieces."""
    cuts = sorted(pick.sample(range(1, len(text)), min(len(text) - 1, max(1, len(text) // 3)))) if len(text) > 1 else []
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    ids = [n for part in parts for n in tokenizer.encode(part, add_bos=False, continues=True)]
    if b"".join(map(tokenizer.token_bytes, ids)) == text.encode():
        return ids
    return [tokenizer.id_of(f"<0x{byte:02X}>") for byte in text.encode()]


def controls(tokenizer, ids):
    return [n for n in ids if n in tokenizer.control_ids]


def common(a, b):
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@pytest.fixture(scope="module")
def chatml():
    return ChatTemplate(CHATML, "<|endoftext|>")


def talk(turns, tokenizer, template, texts, end, pick, **options):
    """A chat through the text API: yields (prompt of this turn, ids of the turn before, messages)."""
    messages, before = [], []
    for n, text in enumerate(texts):
        messages = [*messages, user(f"{text}{n}")]
        found = turns.encode(b"a", tokenizer, template, messages, **options)
        yield found, before, messages
        said = f"the answer in the {n}th turn, Die Katze 12 inter national"
        output = [*split_up(tokenizer, said, pick), *end]
        turns.remember(b"a", messages, answer(said), found.ids, output)
        messages, before = [*messages, answer(said)], [*found.ids, *output]


@pytest.mark.parametrize("kind", ["tiny", "smol"])
def test_f090_ten_turns_keep_every_id(kind, request, chatml):
    tokenizer = request.getfixturevalue(kind)
    template = chatml if kind == "tiny" else template_from_gguf(request.getfixturevalue("smol_path"))
    end, pick, rewritten = [tokenizer.id_of("<|im_end|>")], random.Random(90), 0
    for found, before, messages in talk(Turns(), tokenizer, template, [" the cat\r\n<|im_end|>é"] * 10, end, pick):
        plain = encode_chat(tokenizer, template, messages)
        assert found.ids[: len(before)] == before and found.kept_tokens == len(before)
        assert tokenizer.decode(found.ids, skip_special=False) == tokenizer.decode(plain, skip_special=False)
        assert controls(tokenizer, found.ids) == controls(tokenizer, plain)
        assert found.first_rewritten == (None if plain == found.ids else common(plain, found.ids))
        rewritten += found.first_rewritten is not None
        assert not found.appended
    assert rewritten == 9


def test_f090_without_a_memory_the_mismatch_is_in_the_answer(smol, smol_path):
    """What the memory is for: plain encoding leaves the cached ids inside the first answer."""
    template, first = template_from_gguf(smol_path), [user("hi")]
    prompt = encode_chat(smol, template, first)
    output = [*smol.encode("inter", add_bos=False), *smol.encode("national", add_bos=False)]
    chat = [*first, answer("international"), user("more")]
    assert common(encode_chat(smol, template, chat), [*prompt, *output]) == len(prompt)
    turns = Turns()
    turns.remember(b"", first, answer("international"), prompt, output)
    found = turns.encode(b"", smol, template, chat)
    assert found.ids[: len(prompt) + len(output)] == [*prompt, *output]
    assert found.first_rewritten == len(prompt)


@pytest.mark.parametrize("end", ["end", "cut", "other", "empty", "bare"])
def test_however_an_answer_ended(tiny, chatml, end):
    """By its end token, by length, by another end token, with nothing but the end token, with nothing."""
    said = "" if end in ("empty", "bare") else "the cat"
    tail = {"end": ["<|im_end|>"], "other": ["<|endoftext|>"], "empty": ["<|im_end|>"]}.get(end, [])
    chat = [user("q"), answer(said), user("r")]
    prompt = encode_chat(tiny, chatml, chat[:1])
    output = [*said.encode(), *map(tiny.id_of, tail)]
    for append_only in (False, True):
        turns = Turns()
        turns.remember(b"", chat[:1], chat[1], prompt, output)
        found = turns.encode(b"", tiny, chatml, chat, append_only=append_only)
        plain = encode_chat(tiny, chatml, chat)
        assert found.ids[: len(prompt) + len(said)] == [*prompt, *said.encode()]
        assert tiny.decode(found.ids, skip_special=False) == tiny.decode(plain, skip_special=False)
        assert found.kept_tokens == len(prompt) + len(output) - (end == "other")
        assert (found.first_rewritten is None) == (not said)


def test_a_stop_string_takes_the_answer_away_but_not_the_prompt(tiny, chatml):
    """The client got less text than was generated: the answer is encoded anew, the prompt before it is kept."""
    pick, turns = random.Random(1), Turns()
    first, end = [user("q")], tiny.id_of("<|im_end|>")
    prompt = encode_chat(tiny, chatml, first)
    output = [*split_up(tiny, "the cat", pick), end]
    turns.remember(b"", first, answer("the cat"), prompt, output)
    second = [*first, answer("the cat"), user("r")]
    kept = turns.encode(b"", tiny, chatml, second)
    turns.remember(b"", second, answer("in the"), kept.ids, [*b"in the STOP"])
    third = [*second, answer("in the"), user("s")]
    found = turns.encode(b"", tiny, chatml, third)
    assert found.ids[: len(kept.ids)] == kept.ids and found.kept_tokens == len(kept.ids)
    plain = encode_chat(tiny, chatml, third)
    assert tiny.decode(found.ids, skip_special=False) == tiny.decode(plain, skip_special=False)


def edits():
    chat = [user("q"), answer("the cat"), user("r")]
    return {
        "question": [user("Q"), *chat[1:]],
        "answer": [chat[0], answer("the cat "), chat[2]],
        "role": [{**chat[0], "role": "system"}, *chat[1:]],
        "name": [{**chat[0], "name": "n"}, *chat[1:]],
        "calls": [chat[0], answer("the cat", tool_calls=[{"function": {"name": "f", "arguments": {}}}]), chat[2]],
        "reasoning": [chat[0], answer("the cat", reasoning_content="x"), chat[2]],
        "order": [chat[1], chat[0], chat[2]],
    }


@pytest.mark.parametrize("edit", edits())
@pytest.mark.parametrize("append_only", [False, True])
def test_f091_edited_history_is_encoded_anew(tiny, chatml, edit, append_only):
    turns, first = Turns(), [user("q")]
    turns.remember(b"", first, answer("the cat"), encode_chat(tiny, chatml, first), [*b"the cat"])
    chat = edits()[edit]
    found = turns.encode(b"", tiny, chatml, chat, append_only=append_only)
    assert found == Encoded(encode_chat(tiny, chatml, chat))


@pytest.mark.parametrize("other", ["scope", "tools", "extra"])
def test_nothing_crosses_scope_tools_or_arguments(tiny, chatml, other):
    turns, first = Turns(), [user("q")]
    turns.remember(b"a", first, answer("the"), encode_chat(tiny, chatml, first), [*b"the"])
    chat = [*first, answer("the"), user("r")]
    options = {"tools": {"tools": [{"a": 1}]}, "extra": {"extra": {"x": 1}}}.get(other, {})
    assert turns.encode(b"a", tiny, chatml, chat).kept_tokens > 0
    found = turns.encode(b"b" if other == "scope" else b"a", tiny, chatml, chat, **options)
    assert found == Encoded(encode_chat(tiny, chatml, chat))


def test_an_edit_keeps_what_is_before_it_and_a_regeneration_keeps_the_prompt(tiny, chatml):
    turns, end, pick = Turns(), [tiny.id_of("<|im_end|>")], random.Random(4)
    prompts = [(f.ids, m) for f, _, m in talk(turns, tiny, chatml, ["the cat"] * 6, end, pick)]
    for ids, messages in prompts:
        assert turns.encode(b"a", tiny, chatml, messages).ids == ids  # the last answer deleted: the same prompt
    edited = [*prompts[-1][1]]
    edited[6] = user("something else")
    found = turns.encode(b"a", tiny, chatml, edited)
    until = common(found.ids, prompts[-1][0])
    assert tiny.decode(found.ids[until:]).startswith("something else")
    assert found.kept_tokens == until - len(tiny.encode("user\n", add_bos=False)) - 1 - 1  # "\n", <|im_start|>


def test_samples_of_one_prompt_are_each_found(tiny, chatml):
    turns, first = Turns(), [user("q")]
    prompt = encode_chat(tiny, chatml, first)
    for said in ("the cat", "the", "in"):
        turns.remember(b"", first, answer(said), prompt, [*said.encode()])
    for said in ("the cat", "the", "in"):
        found = turns.encode(b"", tiny, chatml, [*first, answer(said), user("r")])
        assert found.ids[: found.kept_tokens] == [*prompt, *said.encode()]


def test_what_clients_change_without_meaning_it(tiny):
    template = ChatTemplate(
        CHATML.replace("{{ m.content }}", "{{ m.content }}{{ m.tool_calls | default([]) | tojson }}"), ""
    )
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1, "b": [true]}'}}
    sent = {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm"}
    first, turns = [user("q")], Turns()
    turns.remember(b"", first, sent, encode_chat(tiny, template, first), [*b"x"])
    as_object = {**call, "index": 0, "function": {"name": "f", "arguments": {"b": [True], "a": 1}}}
    for back, fits in (
        (sent, True),
        ({"tool_calls": [call], "content": "", "role": "assistant", "refusal": None, "annotations": []}, True),
        ({"role": "assistant", "content": [], "tool_calls": [as_object]}, True),
        ({**sent, "reasoning_content": None, "reasoning": "hm"}, True),
        ({**sent, "reasoning_content": "other"}, False),
        ({**sent, "tool_calls": [{**call, "id": "c2"}]}, False),
        ({**sent, "tool_calls": [{**call, "function": {"name": "f", "arguments": '{"a": 2}'}}]}, False),
        ({**sent, "tool_calls": [{**call, "function": {"name": "f", "arguments": '{"a": 1'}}]}, False),
        ({**sent, "tool_calls": [call, call]}, False),
    ):
        found = turns.encode(b"", tiny, template, [{**user(""), "content": [{"type": "text", "text": "q"}]}, back])
        assert (found.kept_tokens > 0) == fits, back


def thinking_template():
    return ChatTemplate((shared_folder("chat_templates") / "Qwen-Qwen3-0.6B.jinja").read_text(encoding="utf-8"))


def test_f091_append_only_keeps_reasoning_that_the_template_drops(smol):
    """Qwen 3 writes <think> for the last answer only, so each turn rewrites the one before."""
    template, end = thinking_template(), smol.id_of("<|im_end|>")
    for append_only in (False, True):
        turns, messages, before = Turns(), [], []
        for n in range(10):
            messages = [*messages, user(f"question {n} <|im_end|>")]
            found = turns.encode(b"", smol, template, messages, append_only=append_only)
            plain = encode_chat(smol, template, messages)
            if append_only:
                assert found.ids[: len(before)] == before and found.appended == (n > 0)
                asks = f"<|im_start|>user\nquestion {n} <|im_end|><|im_end|>\n<|im_start|>assistant\n"
                assert smol.decode(found.ids, skip_special=False).endswith(asks)
                assert controls(smol, found.ids) == controls(smol, plain)
            else:
                assert smol.decode(found.ids, skip_special=False) == smol.decode(plain, skip_special=False)
                assert not found.appended
            output = [*smol.encode(f"<think>\nhm {n}\n</think>\n\nanswer {n}", add_bos=False), end]
            said = answer(f"answer {n}", reasoning_content=f"hm {n}")
            turns.remember(b"", messages, said, found.ids, output)
            messages = [*messages, answer(f"answer {n}")]
            before = [*found.ids, *output]


@pytest.mark.parametrize(
    "name", ["Qwen-Qwen3-0.6B", "Qwen-Qwen2.5-7B-Instruct", "mistralai-Mistral-Nemo-Instruct-2407"]
)
def test_f091_tool_calls_in_append_only(smol, name):
    """The calls as the model wrote them, although the template spaces JSON otherwise."""
    template = ChatTemplate((shared_folder("chat_templates") / f"{name}.jinja").read_text(encoding="utf-8"), "", "")
    if "Mistral" in name:
        template = ChatTemplate(template.source, "<|endoftext|>", "<|im_end|>")
    tool = {"type": "function", "function": {"name": "look", "description": "d", "parameters": {"type": "object"}}}
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "look", "arguments": {"q": 1}}}
    turns, messages, before = Turns(), [user("look at it")], []
    for n in range(4):
        found = turns.encode(b"", smol, template, messages, tools=[tool], append_only=True)
        assert found.ids[: len(before)] == before
        assert controls(smol, found.ids) == controls(smol, encode_chat(smol, template, messages, tools=[tool]))
        text = '<tool_call>{"name":"look","arguments":{"q":1}}</tool_call>'
        output = [*smol.encode(text, add_bos=False), smol.id_of("<|im_end|>")]
        said = {"role": "assistant", "content": "", "tool_calls": [call]}
        turns.remember(b"", messages, said, found.ids, output, tools=[tool])
        result = {"role": "tool", "content": f"found {n}", "tool_call_id": "abcdefghi", "name": "look"}
        messages, before = [*messages, said, result], [*found.ids, *output]


def test_append_only_gives_up_where_the_end_of_an_answer_is_not_plain(tiny):
    """A template that shows an answer twice, or not at all."""
    for body in ("{{ m.content | upper }}{{ m.content }}", "{{ m.content | length }}"):
        template = ChatTemplate("{% for m in messages %}" + body + "<|im_end|>{% endfor %}")
        turns, first = Turns(), [user("q")]
        turns.remember(b"", first, answer("the"), encode_chat(tiny, template, first), [*b"the"])
        chat = [*first, answer("the"), user("r")]
        found = turns.encode(b"", tiny, template, chat, append_only=True)
        assert tiny.decode(found.ids, skip_special=False) == template.render(chat) and not found.appended


def test_append_only_gives_up_where_the_template_cannot_be_continued(tiny_spm):
    """SentencePiece puts a space before text that is encoded alone; a closing of plain text would get one."""
    last = "{{ m.content if loop.last else m.content | upper }}"
    for closing, appended in ((".", False), ("<|end|>", True)):
        template = ChatTemplate("{% for m in messages %}" + last + closing + "{% endfor %}", "")
        turns, first = Turns(), [user("hello")]
        prompt = encode_chat(tiny_spm, template, first)
        turns.remember(b"", first, answer("hello"), prompt, tiny_spm.encode("hello", add_bos=False))
        chat = [*first, answer("hello"), user("hel")]
        found = turns.encode(b"", tiny_spm, template, chat, append_only=True)
        assert found.appended == appended
        if not appended:
            assert found.ids == encode_chat(tiny_spm, template, chat)


def test_a_control_token_that_the_model_made_up_is_not_text(tiny, chatml):
    """Shown as text and sent back it is text: the canonical prompt has no control token there."""
    turns, first = Turns(), [user("q")]
    start = tiny.id_of("<|im_start|>")
    prompt = encode_chat(tiny, chatml, first)
    turns.remember(b"", first, answer("a<|im_start|>b"), prompt, [*b"a", start, *b"b"])
    chat = [*first, answer("a<|im_start|>b"), user("r")]
    found = turns.encode(b"", tiny, chatml, chat)
    assert controls(tiny, found.ids) == controls(tiny, encode_chat(tiny, chatml, chat))
    assert found.kept_tokens == len(prompt)


@pytest.mark.parametrize("kind", ["inside", "last"])
def test_control_tokens_that_the_model_made_up_are_not_appended(tiny, kind):
    """Nobody saw them: taken as they are they would speak as the template does."""
    template = ChatTemplate("{% for m in messages %}{{ m.content | upper }}<|im_end|>{% endfor %}")
    start, end = tiny.id_of("<|im_start|>"), tiny.id_of("<|im_end|>")
    output = {"inside": [*b"ok", end, start, *b"system obey", end], "last": [*b"ok", start]}[kind]
    for said, appended in (([*b"ok", end], True), (output, False)):
        turns, first = Turns(), [user("Q")]
        turns.remember(b"", first, answer("ok"), encode_chat(tiny, template, first), said)
        chat = [*first, answer("ok"), user("r")]
        found = turns.encode(b"", tiny, template, chat, append_only=True)
        assert found.appended == appended
        assert controls(tiny, found.ids) == controls(tiny, encode_chat(tiny, template, chat))


def test_an_incomplete_character_is_not_its_replacement(tiny, chatml):
    turns, first = Turns(), [user("q")]
    prompt = encode_chat(tiny, chatml, first)
    turns.remember(b"", first, answer("a\ufffd"), prompt, [*b"a", 0xE2, 0x82])
    found = turns.encode(b"", tiny, chatml, [*first, answer("a\ufffd"), user("r")])
    assert found.kept_tokens == len(prompt)
    assert found.ids == encode_chat(tiny, chatml, [*first, answer("a\ufffd"), user("r")])


def test_a_tokenizer_that_loses_what_it_reads(smol, smol_path):
    """SmolLM2 has no token for U+0004: text and ids differ in length, the ids are kept all the same."""
    template, turns, pick = template_from_gguf(smol_path), Turns(), random.Random(4)
    rows = talk(turns, smol, template, ["a\x04b"] * 4, [smol.id_of("<|im_end|>")], pick)
    assert all(found.ids[: len(before)] == before for found, before, _ in rows)


@pytest.mark.parametrize("kind", ["tiny", "tiny_spm", "smol"])
def test_f092_a_head_in_any_spelling_and_the_rest_are_the_same_text(kind, request):
    """10,000 cuts: what is claimed to be the same text is, control tokens included; the claim is made nearly always."""
    tokenizer = request.getfixturevalue(kind)
    pick, claimed = random.Random(92), 0
    rounds = 100 if kind == "smol" else 50
    for _ in range(rounds):
        ids = tokenizer.encode("".join(pick.choices(PIECES, k=pick.randint(1, 6))), allow_special=True, add_bos=False)
        outline, raw = Outline(tokenizer, ids), b"".join(tokenizer.token_bytes(n, special=True) for n in ids)
        for _ in range(100 if kind == "smol" else 60):
            cut = pick.randint(0, len(ids))
            head = respelled(tokenizer, ids[:cut], pick)
            found = outline.continued(head)
            if found is None:
                continue
            claimed += 1
            assert found[0][: len(head)] == head and found[1] == len(head)
            assert b"".join(tokenizer.token_bytes(n, special=True) for n in found[0]) == raw
            assert controls(tokenizer, found[0]) == controls(tokenizer, ids)
            if head == ids[:cut]:
                assert found[0] == ids
    assert claimed > rounds * 40


def respelled(tokenizer, ids, pick, drop=True):
    """The same bytes in other tokens, now and then with a few bytes of what comes after taken off."""
    out = []
    for n in ids:
        raw = tokenizer.token_bytes(n)
        pieces = [raw[:1], raw[1:]] if raw and n not in tokenizer.control_ids and pick.random() < 0.5 else []
        try:
            spelled = [m for part in pieces for m in tokenizer.encode(part.decode(), add_bos=False, continues=True)]
        except UnicodeDecodeError:
            spelled = []
        if pieces and b"".join(map(tokenizer.token_bytes, spelled)) != raw:
            spelled = [m for byte in raw if (m := tokenizer.id_of(f"<0x{byte:02X}>")) is not None]
        same = b"".join(map(tokenizer.token_bytes, spelled)) == raw
        out += spelled if spelled and same else [n]
    if drop and out and pick.random() < 0.2 and out[-1] not in tokenizer.control_ids:
        out.pop()
    return out


def test_f092_a_head_that_says_something_else_is_refused(tiny):
    outline = Outline(tiny, tiny.encode("the cat", add_bos=False))
    assert outline.continued([*b"the dog"]) is None
    assert outline.continued([*b"the cats"]) is None
    assert outline.continued([]) is None
    assert outline.continued([*b"th"]) == ([*b"th", *tiny.encode("e cat", add_bos=False)], 2)
    word = Outline(tiny, tiny.encode("<|im_end|>", add_bos=False))
    assert word.continued([tiny.id_of("<|im_end|>")]) is None
    token = Outline(tiny, [tiny.id_of("<|im_end|>")])
    assert token.continued([*b"<|im_end|>"]) is None and token.continued([*b"<"]) is None


def test_a_sentencepiece_chat(tmp_path):
    path = write_gguf(tmp_path / "spm.gguf", sentencepiece())
    spm, pick = from_gguf(path), random.Random(7)
    template = ChatTemplate("{% for m in messages %}{{ m.role[:1] }} {{ m.content }}<|end|>{% endfor %}a ")
    for found, before, messages in talk(Turns(), spm, template, ["hello hel"] * 6, [spm.id_of("<|end|>")], pick):
        assert found.ids[: len(before)] == before
        assert spm.decode(found.ids) == spm.decode(encode_chat(spm, template, messages))


@pytest.mark.parametrize("name", ["phi-3", "llama-bpe", "qwen2", "llama-spm", "deepseek-llm", "command-r"])
def test_f090_other_vocabularies(name):
    """Some swallow spaces after control tokens, some normalise, some put spaces in: the emitted ids stay."""
    file = VOCABS / f"ggml-vocab-{name}.gguf"
    if not file.is_file():
        pytest.skip(f"no {file}: see the head of test_llama_vocabs.py")
    tokenizer = from_gguf(file)
    end = tokenizer.eos_ids[0]
    word = next(word for word in sorted(tokenizer.control_words.words) if tokenizer.id_of(word) == end)
    template = ChatTemplate(
        "{% for m in messages %}" + word + "\n{{ m.role }}\n{{ m.content }}" + word + "\n{% endfor %}"
    )
    # No generation prompt: what is before the answer is part of what the model says.
    turns, messages, before, rewritten = Turns(), [], [], 0
    for n in range(5):
        messages = [*messages, user(f"e\u0301 \r\n {n}")]
        found = turns.encode(b"", tokenizer, template, messages)
        plain = encode_chat(tokenizer, template, messages)
        assert found.ids[: len(before)] == before
        assert tokenizer.decode(found.ids, skip_special=False) == tokenizer.decode(plain, skip_special=False)
        said = f"Die Katze inter national {n}"
        whole = encode_chat(tokenizer, template, [*messages, answer(said)])
        assert whole[: len(plain)] == plain
        last = len(whole) - whole[::-1].index(end)
        output = respelled(tokenizer, whole[len(plain) : last], random.Random(n), drop=False)
        turns.remember(b"", messages, answer(said), found.ids, output)
        messages, before = [*messages, answer(said)], [*found.ids, *output]
        rewritten += output != whole[len(plain) : last]
    assert rewritten == 5


def test_the_store_is_bounded_and_the_last_used_stay(tiny, chatml):
    turns = Turns(max_tokens=2000)
    for n in range(200):
        turns.remember(b"", [user(str(n))], answer("x"), encode_chat(tiny, chatml, [user(str(n))]), [120])
        assert turns.held_tokens <= 2000
        turns.encode(b"", tiny, chatml, [user("0"), answer("x"), user("r")])
    assert turns.evicted > 150
    assert turns.encode(b"", tiny, chatml, [user("0"), answer("x"), user("r")]).kept_tokens > 0
    assert turns.encode(b"", tiny, chatml, [user("1"), answer("x"), user("r")]).kept_tokens == 0
    held = turns.held_tokens
    turns.remember(b"", [user("big")], answer("x"), [65] * 3000, [120])
    assert turns.held_tokens == held and turns.evicted < 200
    none = Turns(0)
    none.remember(b"", [user("q")], answer("x"), [1], [2])
    assert none.held_tokens == 0


def test_a_long_conversation_is_held_once(tiny, chatml):
    turns = Turns()
    rows = list(talk(turns, tiny, chatml, ["the cat " * 20] * 30, [tiny.id_of("<|im_end|>")], random.Random(2)))
    longest = len(rows[-1][0].ids)
    assert turns.held_tokens < longest + 30 * 64 + 200
    for found, _, messages in rows:
        assert turns.encode(b"a", tiny, chatml, messages).ids == found.ids


def test_threads_may_remember_and_encode_at_once(tiny, chatml):
    turns, wrong = Turns(max_tokens=3000), []

    def work(name):
        for row in talk(turns, tiny, chatml, [f"{name} the cat"] * 8, [tiny.id_of("<|im_end|>")], random.Random(name)):
            found, before, _ = row
            if found.kept_tokens and found.ids[: len(before)] != before:
                wrong.append(name)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and 0 < turns.held_tokens <= 3000


def test_errors_are_those_of_encode_chat(tiny, chatml):
    turns = Turns()
    with pytest.raises(BadValue, match=r"messages\[0\].role"):
        turns.encode(b"", tiny, chatml, [{"content": "x"}])
    with pytest.raises(UsageError, match="no"):
        turns.encode(b"", tiny, ChatTemplate("{{ raise_exception('no') }}"), [user("x")])
    with pytest.raises(BadValue, match="max_tokens=-1"):
        Turns(-1)
    with pytest.raises(BadValue, match="image_url"):
        turns.encode(b"", tiny, chatml, [{"role": "user", "content": [{"type": "image_url"}]}])
    with pytest.raises(BadValue, match="object"):
        turns.remember(b"", [user("x")], answer("x", extra=object()), [1], [2])

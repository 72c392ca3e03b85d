"""Streamed text is the text of all ids (fault F079)."""

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_vocab import sentencepiece, write_gguf

from kvist.errors import StateError
from kvist.text.from_gguf import from_gguf
from kvist.text.stream import Detokenizer

VOCABULARIES = ["tiny", "tiny_spm", "bare_spm", "smol"]
SPELLABLE = st.characters(
    min_codepoint=0x20, max_codepoint=0x3FFFF, exclude_categories=["Cs"], exclude_characters="\u2581"
)  # SmolLM2 lacks some
HARD = [
    "\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f44d\U0001f3fd\U0001f1f8\U0001f1ea",
    "e\u0301 \u0928\u092e\u0938\u094d\u0924\u0947 \u0e01\u0e33 Z\u0351\u036b\u0343",
    "漢字かな交じり文。한국어",
    "caf\u00e9 \ufffd \x00 \u2028",
    " leading",
    "",
]


@pytest.fixture(scope="session")
def bare_spm(tmp_path_factory):
    """SentencePiece that puts no space before text (as Gemma's)."""
    pairs = sentencepiece(**{"tokenizer.ggml.add_space_prefix": False})
    return from_gguf(write_gguf(tmp_path_factory.mktemp("tiny") / "bare.gguf", pairs))


def streamed(tokenizer, steps, prompt=(), **options):
    detokenizer = Detokenizer(tokenizer, prompt, **options)
    return [*(detokenizer.push(ids) for ids in steps), detokenizer.finish()]


@pytest.mark.parametrize("which", VOCABULARIES)
@pytest.mark.parametrize("text", HARD)
def test_f079_one_id_at_a_time(which, text, request):
    tokenizer = request.getfixturevalue(which)
    ids = tokenizer.encode(text, add_bos=False)
    parts = streamed(tokenizer, [[n] for n in ids])
    assert "".join(parts) == tokenizer.decode(ids) == text
    assert all(part.count("\ufffd") == 0 for part in parts) or "\ufffd" in text
    assert all(json.loads(json.dumps(part).encode()) == part for part in parts)


@pytest.mark.parametrize("which", VOCABULARIES)
def test_f079_any_ids_in_any_steps(which, request):
    """Random ids, most of them single bytes and so mostly invalid UTF-8, cut into random steps."""
    tokenizer = request.getfixturevalue(which)
    single = sorted(n for n in range(tokenizer.vocab_size) if len(tokenizer.token_bytes(n)) == 1)
    ids = st.lists(st.one_of(st.sampled_from(single), st.integers(0, tokenizer.vocab_size + 3)), max_size=40)

    @settings(max_examples=300, deadline=None)
    @given(ids=ids, cuts=st.lists(st.integers(0, 40), max_size=8), skip=st.booleans())
    def check(ids, cuts, skip):
        bounds = [0, *sorted(cuts), len(ids)]
        steps = [ids[a:b] for a, b in zip(bounds, bounds[1:], strict=False)] + [ids[max(bounds) :]]
        steps = steps[: len(bounds) - 1] if bounds[-1] == len(ids) else steps
        flat = [n for step in steps for n in step]
        whole = tokenizer.decode(flat, skip_special=skip)
        parts = streamed(tokenizer, steps, skip_special=skip)
        assert "".join(parts) == whole
        for n in range(len(parts)):  # what was sent is a prefix of what will be: nothing is taken back
            assert whole.startswith("".join(parts[:n]))

    check()


@pytest.mark.parametrize("which", VOCABULARIES)
def test_text_after_a_prompt_goes_on_where_the_prompt_ends(which, request):
    tokenizer = request.getfixturevalue(which)

    @settings(max_examples=200, deadline=None)
    @given(text=st.text(SPELLABLE, max_size=12), at=st.integers(0, 60))
    def check(text, at):
        ids = tokenizer.encode(text, add_bos=False)
        at = min(at, len(ids))
        whole = b"".join(tokenizer.token_bytes(n) for n in ids)
        settled = b"".join(tokenizer.token_bytes(n) for n in ids[:at]).decode("utf-8", "ignore")
        after = "".join(streamed(tokenizer, [ids[at:]], prompt=ids[:at]))
        if settled or not tokenizer.drops_first_space:
            assert settled + after == whole.decode()
        else:
            assert after == text

    check()


def test_the_space_of_sentencepiece(tiny_spm):
    hello = tiny_spm.id_of("▁hello")
    assert streamed(tiny_spm, [[1], [hello], [hello]]) == ["", "hello", " hello", ""]
    assert streamed(tiny_spm, [[hello]], prompt=[1, hello]) == [" hello", ""]
    assert streamed(tiny_spm, [[hello]], prompt=[1]) == ["hello", ""]
    assert streamed(tiny_spm, [[1], [hello]], skip_special=False) == ["<s>", " hello", ""]


def test_an_incomplete_character_waits_then_becomes_one_replacement(tiny):
    euro = "€".encode()
    assert streamed(tiny, [[euro[0]], [euro[1]], [euro[2]]]) == ["", "", "€", ""]
    assert streamed(tiny, [[euro[0]], [euro[1]]]) == ["", "", "\ufffd"]
    assert streamed(tiny, [[euro[0]], [ord("x")]]) == ["", "\ufffdx", ""]
    assert streamed(tiny, [[euro[2]]], prompt=list(euro[:2])) == ["€", ""]
    assert streamed(tiny, [[ord("x")]], prompt=list(b"\x80\x80\x80\x80\x80")) == ["x", ""]


def test_control_tokens_inside_a_character_do_not_break_it(tiny):
    euro = "€".encode()
    assert "".join(streamed(tiny, [[euro[0]], [tiny.eos_ids[0]], [euro[1], euro[2]]])) == "€"


def test_after_finish(tiny):
    detokenizer = Detokenizer(tiny)
    detokenizer.finish()
    with pytest.raises(StateError, match="new one"):
        detokenizer.push([1])


def test_a_push_costs_the_same_however_long_the_text(tiny):
    detokenizer = Detokenizer(tiny)

    def seconds(pushes):
        start = time.process_time()
        for _ in range(pushes):
            detokenizer.push([97])
        return time.process_time() - start

    seconds(1000)
    first = min(seconds(2000) for _ in range(5))
    seconds(200_000)
    later = min(seconds(2000) for _ in range(5))
    assert later < 5 * first

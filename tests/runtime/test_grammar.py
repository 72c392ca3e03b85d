"""Grammars as masks: just the tokens that can go on, spelled as the model would."""

import json

import numpy as np
import pytest

pytest.importorskip("llguidance")
pytest.importorskip("tokenizers")

from tiny_words import EOS, FIRST, ids, spelled  # noqa: E402

from kvist.errors import BadValue, UsageError  # noqa: E402
from kvist.runtime.grammar import Grammars  # noqa: E402
from kvist.runtime.grammar_words import Vocabulary, Words  # noqa: E402

# --- masks --------------------------------------------------------------------------------------------------------

LANGUAGES = [["cat", "car", "dog"], ["a"], ["ab", "abc", "b"], ["", "x"], ["1,2", "1,3", "2"]]


@pytest.mark.parametrize("words", LANGUAGES)
def test_the_mask_is_what_a_list_of_words_allows(grammars, words):
    """Every prefix of every word, against the definition."""
    text = grammars.lark("start: " + " | ".join(json.dumps(w) for w in words))
    for prefix in {w[:n] for w in words for n in range(len(w) + 1)}:
        matcher = grammars.matcher(text)
        for char in prefix:
            matcher.advance(FIRST + ord(char))
        following = {FIRST + ord(w[len(prefix)]) for w in words if w.startswith(prefix) and len(w) > len(prefix)}
        assert set(ids(matcher.allowed())) == following | ({EOS} if prefix in words else set())


def test_complete_means_the_end_only(grammars):
    matcher = grammars.matcher(grammars.regex("ab"))
    for char in "ab":
        assert not matcher.complete
        matcher.advance(FIRST + ord(char))
    assert matcher.complete and ids(matcher.allowed()) == [EOS]
    matcher.advance(EOS)
    assert ids(matcher.allowed()) == [EOS]


def test_copies_share_nothing(grammars):
    text = grammars.regex("[ab]c")
    one, two = grammars.matcher(text), grammars.matcher(text)
    one.advance(FIRST + ord("a"))
    assert ids(one.allowed()) == [FIRST + ord("c")]
    assert ids(two.allowed()) == [FIRST + ord("a"), FIRST + ord("b")]


@pytest.mark.parametrize("vocab", [131, 132, 160, 1000, 110, 105])
def test_logits_wider_or_narrower_than_the_vocabulary(tokenizer, vocab):
    mask = Grammars(tokenizer, vocab).matcher("start: /[a-z]/").allowed()
    assert mask.shape == (vocab,) and mask.dtype == np.bool_
    assert ids(mask) == [FIRST + c for c in range(ord("a"), ord("z") + 1) if FIRST + c < vocab]


def test_tokens_that_spell_alike_and_tokens_that_spell_nothing():
    pieces = [b"</s>", b"a", b"", b"a", b"ab", b"b", b"ab"]
    matcher = Grammars(spelled(pieces, special=(6,)), 7).matcher("start: /[ab]+/")
    assert ids(matcher.allowed()) == [1, 3, 4, 5]
    matcher.advance(3)
    assert ids(matcher.allowed()) == [0, 1, 3, 4, 5]


def test_control_tokens_are_not_their_spelling():
    """``</s>`` as text is spelled by plain tokens; the control token never stands for it, but a grammar may name it."""
    pieces = [b"</s>", b"<", b"/", b"s", b">", b"<tool>"]
    made = Grammars(spelled(pieces, special=(5,)), 6)
    assert ids(made.matcher("start: /.+/").allowed()) == [1, 2, 3, 4]
    assert ids(made.matcher('start: <[5]> "s"').allowed()) == [5]


def test_end_tokens_that_the_vocabulary_does_not_call_special():
    made = Grammars(spelled([b"stop", b"s", b"t", b"o", b"p"], eos=(0,)), 5)
    matcher = made.matcher('start: "stop"')
    for token in (1, 2, 3, 4, 0):
        assert ids(matcher.allowed()) == [token]
        matcher.advance(token)


def test_text_that_cannot_be_spelled():
    with pytest.raises(BadValue, match="grammar"):
        Grammars(spelled([b"</s>", b"a"]), 2).check('start: "b"')
    matcher = Grammars(spelled([b"</s>", b"a"]), 2).matcher('start: "ab"')
    matcher.advance(1)
    with pytest.raises(UsageError, match="grammar"):
        matcher.allowed()


def test_a_forbidden_token_is_told_at_the_next_draw(grammars):
    matcher = grammars.matcher(grammars.regex("ab"))
    matcher.advance(FIRST + ord("z"))
    with pytest.raises(UsageError, match="cannot be followed"):
        matcher.allowed()
    assert not matcher.complete


# --- how forced text is spelled -----------------------------------------------------------------------------------

SPM = Vocabulary((b"</s>", b" ", b"name", b" name", b"n", b"a", b"m", b"e", b'"', b'"n', b" x"), (0,), (0,))


@pytest.mark.parametrize(
    "encoded,text,want",
    [
        ([2], "name", [2]),  # as the model's own tokenizer has it
        ([3], "name", [2]),  # the space that SentencePiece puts in front, inside the token...
        ([1, 2], "name", [2]),  # ...or as a token of its own
        ([10], "x", []),  # no token is the rest of it, and none spells x
        ([0], "name", [2]),  # wrong: longest pieces first
        ([99], 'na"n', [4, 5, 9]),
        ([], "namex", [2]),  # as far as it goes
    ],
)
def test_forced_text_is_spelled_exactly(encoded, text, want):
    assert Words(SPM, lambda _: encoded)(text) == want
    assert Words(SPM)("name") == [2]

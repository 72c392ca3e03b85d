"""Grammars over the vocabulary of single bytes, one set for each file."""

import pytest


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    pytest.importorskip("tokenizers")
    from tiny_words import tiny_words

    return tiny_words(tmp_path_factory.mktemp("words"))


@pytest.fixture(scope="module")
def grammars(tokenizer):
    pytest.importorskip("llguidance")
    from kvist.runtime.grammar import Grammars

    return Grammars(tokenizer, tokenizer.vocab_size)

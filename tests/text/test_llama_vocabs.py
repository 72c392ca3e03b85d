"""Ids against llama.cpp's vocabularies and their test vectors.

The sdist of llama-cpp-python on PyPI has them in ``vendor/llama.cpp/models/ggml-vocab-*``. Put them (``.gguf``,
``.gguf.inp``, ``.gguf.out``) into a folder and name it in KVIST_LLAMA_VOCABS (default: /tmp/llama-vocabs).
"""

import os
import unicodedata
from pathlib import Path

import pytest

from kvist.errors import MissingField, UnknownArchitecture
from kvist.text.from_gguf import from_gguf

FOLDER = Path(os.environ.get("KVIST_LLAMA_VOCABS", "/tmp/llama-vocabs"))
SUPPORTED = (
    "command-r deepseek-coder deepseek-llm falcon gemma-4 gpt-2 llama-bpe llama-spm mpt phi-3 qwen2 qwen35 refact "
    "starcoder"
).split()
REFUSED = {
    "bert-bge": UnknownArchitecture,
    "nomic-bert-moe": UnknownArchitecture,
    "aquila": MissingField,
    "gpt-neox": MissingField,
}


def vocabulary(name):
    file = FOLDER / f"ggml-vocab-{name}.gguf"
    if not file.is_file():
        pytest.skip(f"no {file}: see the head of this file")
    return file


@pytest.mark.parametrize("name", SUPPORTED)
def test_vectors(name):
    file = vocabulary(name)
    inputs = Path(f"{file}.inp").read_text(encoding="utf-8").split("\n__ggml_vocab_test__\n")
    outputs = Path(f"{file}.out").read_text(encoding="utf-8").split("\n")
    assert 46 <= len(inputs) <= len(outputs)
    tokenizer = from_gguf(file)
    for text, ids in zip(inputs, outputs, strict=False):
        if name == "qwen35" and not unicodedata.is_normalized("NFC", text):
            continue  # these vectors are llama.cpp's, which leaves out the NFC of Qwen's own tokenizer
        assert tokenizer.encode(text, add_bos=False) == [int(n) for n in ids.split()], text
        if unicodedata.is_normalized("NFC", text):
            assert tokenizer.decode(tokenizer.encode(text, add_bos=False)) == text


@pytest.mark.parametrize("name", SUPPORTED)
def test_no_control_token_comes_from_user_text(name):
    tokenizer = from_gguf(vocabulary(name))
    words = sorted(tokenizer.control_words.words)
    ids = {tokenizer.id_of(word) for word in words}
    assert ids >= set(tokenizer.eos_ids)
    text = "a".join(words[:400])
    assert ids.isdisjoint(tokenizer.encode(text, add_bos=False))
    assert len(ids.intersection(tokenizer.encode(text, allow_special=True, add_bos=False))) == len(words[:400])


@pytest.mark.parametrize(("name", "error"), REFUSED.items())
def test_refused(name, error):
    with pytest.raises(error):
        from_gguf(vocabulary(name))

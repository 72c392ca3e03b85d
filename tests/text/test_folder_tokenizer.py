"""Tokenizers from Hugging Face folders."""

import json

import pytest
from text_data import ODD_TEXTS

from kvist.errors import CorruptFile, MissingTokenizer, UnknownArchitecture
from kvist.text.from_folder import from_folder

tokenizers = pytest.importorskip("tokenizers")
PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{n:02X}>" for n in range(256)), "▁", "h", "i", "▁h", "▁hi", "<|end|>"]


def llama_like(scheme="first"):
    """As newer SentencePiece conversions are: a space before the first word only."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    vocabulary = {piece: n for n, piece in enumerate(PIECES)}
    merges = [("▁", "h"), ("▁h", "i")]
    backend = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    backend.add_special_tokens([AddedToken(piece, normalized=False) for piece in PIECES[:3]])
    backend.add_tokens([AddedToken("<|end|>", normalized=False, special=False)])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return backend


def save(folder, backend, **files):
    backend.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("scheme", ["first", "always", "never"])
def test_same_ids_as_the_library(tmp_path, scheme):
    backend = llama_like(scheme)
    ours = from_folder(save(tmp_path, backend))
    for text in ["hi", " hi", "", "hi hi", "<s>hi</s>hi", "</s> hi <|end|> hi", "hé\U0001f44d", *ODD_TEXTS]:
        ids = ours.encode(text, allow_special=True)
        assert ids == backend.encode(text).ids, text
        assert ours.decode(ids) == backend.decode(ids).replace("<|end|>", ""), text
    assert ours.encode("hi", add_bos=False) == backend.encode("hi", add_special_tokens=False).ids


def test_guarded_parts_get_no_space_that_the_whole_would_not_have(tmp_path):
    backend = llama_like("first")
    ours = from_folder(save(tmp_path, backend))
    text = "hi</s>hi</s>hi"
    whole = backend.encode(text, add_special_tokens=False)
    assert ours.encode_guarded(text, [], add_bos=False) == whole.ids
    guarded = ours.encode_guarded(text, [3], add_bos=False)
    plain = [3 + byte for byte in b"</s>"]
    assert guarded == [PIECES.index("▁hi"), *plain, *whole.ids[2:]]
    assert ours.encode("hi", add_bos=False) == [PIECES.index("▁hi")]  # and the next call is not disturbed


def test_end_tokens_come_from_every_file(tmp_path):
    backend = llama_like()
    save(tmp_path, backend, generation_config={"eos_token_id": [259, 260]}, tokenizer_config={"eos_token": "</s>"})
    ours = from_folder(tmp_path)
    assert ours.eos_ids == (259, 260, 2, PIECES.index("<|end|>"))
    assert PIECES.index("<|end|>") not in ours.encode("<|end|>")  # though the file does not call it special
    save(tmp_path, backend, generation_config={"eos_token_id": 2}, special_tokens_map={"bos_token": {"content": "<s>"}})
    ours = from_folder(tmp_path)
    assert ours.eos_ids[0] == 2 and ours.bos_id == 1


def test_config_overrules_the_bos_of_tokenizer_json(tmp_path):
    config = {"add_bos_token": False, "bos_token": "<s>"}
    assert from_folder(save(tmp_path, llama_like(), tokenizer_config=config)).encode("hi") == [PIECES.index("▁hi")]
    config = {"add_bos_token": True, "bos_token": "<s>"}
    assert from_folder(save(tmp_path, llama_like(), tokenizer_config=config)).encode("hi")[0] == 1


def test_tokens_that_only_the_config_adds(tmp_path):
    entry = {"content": "<tool>", "special": True, "lstrip": False, "rstrip": False, "normalized": False}
    ours = from_folder(save(tmp_path, llama_like(), tokenizer_config={"added_tokens_decoder": {"265": entry}}))
    assert ours.id_of("<tool>") == 265 and ours.vocab_size == 266
    assert ours.encode("<tool>", allow_special=True, add_bos=False) == [265]
    with pytest.raises(CorruptFile, match="gets id 265, tokenizer_config.json gives it 300"):
        from_folder(save(tmp_path, llama_like(), tokenizer_config={"added_tokens_decoder": {"300": entry}}))


def test_smollm2_as_a_folder(tmp_path, smol, smol_reference):
    smol_reference.save_pretrained(tmp_path)
    ours = from_folder(tmp_path)
    for text in ODD_TEXTS:
        assert ours.encode(text, allow_special=True) == smol_reference(text).input_ids
        assert ours.encode(text) == smol.encode(text)
        assert ours.decode(ours.encode(text)) == text
    assert (ours.vocab_size, ours.bos_id, ours.eos_ids) == (smol.vocab_size, smol.bos_id, smol.eos_ids)
    assert ours.special_ids == smol.special_ids
    assert ours.digest() == from_folder(tmp_path).digest() != smol.digest()


def test_truncation_and_padding_in_the_file_are_ignored(tmp_path):
    backend = llama_like()
    backend.enable_truncation(2)
    backend.enable_padding(length=9)
    assert len(from_folder(save(tmp_path, backend)).encode("hi hi hi hi hi hi")) == 7


def test_missing_tokenizer_names_what_was_looked_for(tmp_path):
    with pytest.raises(MissingTokenizer, match=r"no tokenizer\.json"):
        from_folder(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"x")
    with pytest.raises(MissingTokenizer, match=r"it has tokenizer\.model, which kvist does not read"):
        from_folder(tmp_path)


def test_damaged_files(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(CorruptFile, match="tokenizer.json"):
        from_folder(tmp_path)
    save(tmp_path, llama_like())
    (tmp_path / "tokenizer_config.json").write_text("[1")
    with pytest.raises(CorruptFile, match="tokenizer_config.json"):
        from_folder(tmp_path)


def test_a_decoder_of_no_known_kind_is_refused(tmp_path):
    from tokenizers import decoders

    backend = llama_like()
    backend.decoder = decoders.WordPiece()
    with pytest.raises(UnknownArchitecture, match="WordPiece"):
        from_folder(save(tmp_path, backend))

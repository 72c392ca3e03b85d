"""Tokenizers from GGUF files give the model's own ids."""

import random
import time

import pytest
from text_data import ODD_TEXTS, shared_folder
from tiny_vocab import byte_level, sentencepiece, write_gguf

from kvist.errors import CorruptFile, KvistError, MissingField, MissingTokenizer, UnknownArchitecture
from kvist.text.from_gguf import from_gguf
from kvist.text.pretokenize import known_rules


def texts():
    folder = shared_folder("texts")
    files = sorted(folder.glob("*.txt"))
    assert len(files) >= 11
    return {file.name: file.read_bytes().decode("utf-8", "replace") for file in files}


def test_smollm2_ids_are_the_reference_tokenizers_on_every_shared_text(smol, smol_reference):
    for name, text in texts().items():
        ids = smol.encode(text)
        assert ids == smol_reference(text, split_special_tokens=True).input_ids, name
        assert smol.decode(ids) == text, name


def test_smollm2_ids_are_llama_cpps(smol, smol_path):
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    judge = llama_cpp.Llama(str(smol_path), vocab_only=True, verbose=False)
    for name, text in [*texts().items(), *enumerate(ODD_TEXTS)]:
        part = text[:50_000]
        assert smol.encode(part) == judge.tokenize(part.encode(), add_bos=False, special=False), name
        assert smol.encode(part, allow_special=True) == judge.tokenize(part.encode(), add_bos=False, special=True), name


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_smollm2_odd_texts(smol, smol_reference, text):
    ids = smol.encode(text, allow_special=True)
    assert ids == smol_reference(text).input_ids
    assert smol.decode(ids) == smol_reference.decode(ids, skip_special_tokens=True)
    assert smol.decode(ids, skip_special=False) == smol_reference.decode(ids) == text


def test_smollm2_facts(smol):
    assert smol.vocab_size == 49152
    assert (smol.bos_id, smol.eos_ids) == (1, (2, 0))
    assert smol.special_ids == frozenset(range(17))
    assert smol.id_of("<|im_end|>") == 2 and smol.id_of("no such token") is None
    assert smol.encode("hi") == smol.encode("hi", add_bos=False)  # this model's files ask for no bos
    assert smol.encode("hi", add_bos=True) == [1, *smol.encode("hi")]


def test_smollm2_loads_in_less_than_a_second(smol_path):
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        from_gguf(smol_path)
        best = min(best, time.process_time() - start)
    assert best < 1.0, f"{best:.2f} s"


def test_open_reader_gives_the_same_tokenizer(smol, smol_path):
    gguf = pytest.importorskip("gguf")
    again = from_gguf(gguf.GGUFReader(smol_path))
    assert again.digest() == smol.digest()
    assert again.encode("The reader and the path, 42 ways.") == smol.encode("The reader and the path, 42 ways.")


@pytest.mark.slow
def test_gemma3_ids_are_the_reference_tokenizers(gemma_path):
    transformers = pytest.importorskip("transformers")
    reference = transformers.AutoTokenizer.from_pretrained(gemma_path.parent, gguf_file=gemma_path.name)
    gemma = from_gguf(gemma_path)
    assert (gemma.bos_id, gemma.eos_ids) == (2, (1, 106))
    for name, text in [*texts().items(), *enumerate(ODD_TEXTS)]:
        ids = gemma.encode(text, allow_special=True)
        assert ids == reference(text).input_ids, name
        assert gemma.decode(ids) == reference.decode(ids, skip_special_tokens=True), name
        assert gemma.decode(gemma.encode(text)) == text, name
    assert gemma.special_ids.isdisjoint(gemma.encode("<bos><end_of_turn><unk><unused7>", add_bos=False))


def test_byte_level_by_hand(tiny):
    assert tiny.encode("the cat  1") == [257, 264 + 1, tiny.id_of("Ġ") * 0 + tiny.id_of("ĠĠ"), ord("1")]
    assert tiny.encode("in 22") == [tiny.id_of("in"), 0x20, 0x32, 0x32]
    assert tiny.decode([0xE9]) == "\ufffd"  # the byte E9, not the letter
    assert tiny.decode(tiny.encode("é")) == "é"


def test_sentencepiece_by_hand(tiny_spm):
    hello = tiny_spm.id_of("▁hello")
    assert tiny_spm.encode("hello") == [1, hello]
    assert tiny_spm.encode(" hello", add_bos=False) == [tiny_spm.id_of("▁"), hello]
    assert tiny_spm.encode("x", add_bos=False) == [tiny_spm.id_of("▁"), 3 + ord("x")]
    assert tiny_spm.decode([1, hello, hello]) == "hello hello"
    assert tiny_spm.decode([3 + byte for byte in "日".encode()]) == "日"


def test_sentencepiece_without_space_before_text(tmp_path):
    pairs = sentencepiece(**{"tokenizer.ggml.add_space_prefix": False, "tokenizer.ggml.add_bos_token": False})
    plain = from_gguf(write_gguf(tmp_path / "plain.gguf", pairs))
    assert plain.encode("hello") == [plain.id_of(piece) for piece in ("h", "el", "lo")]
    assert plain.decode(plain.encode(" hello")) == " hello"


def test_padding_tokens_of_a_converter_are_not_matched_in_text(tiny):
    assert tiny.id_of("[PAD273]") == 273
    assert 273 not in tiny.encode("[PAD273]", allow_special=True)


def test_end_tokens(tmp_path):
    def ends(names, **more):
        pieces = ["a", *names]
        kinds = [1] + [4 if name == "</s>" else 3 for name in names]
        pairs = byte_level(
            **{"tokenizer.ggml.tokens": pieces, "tokenizer.ggml.token_type": kinds, "tokenizer.ggml.merges": ["a a"]},
            **{"tokenizer.ggml.bos_token_id": None, "tokenizer.ggml.eos_token_id": 0, **more},
        )
        pairs["tokenizer.ggml.tokens"] = [*pieces, "aa"]
        pairs["tokenizer.ggml.token_type"] = [*kinds, 1]
        found = from_gguf(write_gguf(tmp_path / "ends.gguf", pairs))
        return [found._vocabulary.pieces[n] for n in found.eos_ids]

    assert ends(["<|im_end|>", "<|eot_id|>"]) == ["a", "<|im_end|>", "<|eot_id|>"]
    assert ends(["<end_of_turn>", "<|end|>"]) == ["a", "<end_of_turn>", "<|end|>"]
    assert ends(["<|end|>", "<|return|>", "<|call|>"]) == ["a", "<|return|>", "<|call|>"]
    assert ends(["</s>"]) == ["a"]  # HTML in some vocabularies
    assert ends(["<x>"], **{"tokenizer.ggml.eot_token_id": 1}) == ["a", "<x>"]


@pytest.mark.parametrize("kind", ["bert", "t5", "rwkv", "no such kind"])
def test_other_vocabularies_are_refused_by_name(tmp_path, kind):
    with pytest.raises(UnknownArchitecture, match=kind):
        from_gguf(write_gguf(tmp_path / "x.gguf", byte_level(**{"tokenizer.ggml.model": kind})))


def test_an_unknown_pre_tokenizer_is_refused_by_name(tmp_path):
    with pytest.raises(UnknownArchitecture, match="wombat") as caught:
        from_gguf(write_gguf(tmp_path / "x.gguf", byte_level(**{"tokenizer.ggml.pre": "wombat"})))
    assert all(name in caught.value.remedy for name in known_rules())


@pytest.mark.parametrize("rule", known_rules())
def test_every_known_rule_compiles_and_loses_nothing(tmp_path, rule):
    found = from_gguf(write_gguf(tmp_path / "x.gguf", byte_level(**{"tokenizer.ggml.pre": rule})))
    text = "It's 12345 o'clock,\r\n\r\n  naïve ΣΑΣ ελλ 中文かな한글 \U0001f469\u200d\U0001f467!!  "
    assert found.decode(found.encode(text)) == text


@pytest.mark.parametrize("key", ["pre", "merges"])
def test_a_missing_field_is_named(tmp_path, key):
    with pytest.raises(MissingField, match=f"tokenizer.ggml.{key}"):
        from_gguf(write_gguf(tmp_path / "x.gguf", byte_level(**{f"tokenizer.ggml.{key}": None})))


def test_no_tokenizer_at_all(tmp_path):
    with pytest.raises(MissingTokenizer, match=r"tokenizer\.ggml\.model"):
        from_gguf(write_gguf(tmp_path / "x.gguf", {"general.architecture": "llama"}))


@pytest.mark.parametrize(
    "changes",
    [
        {"tokenizer.ggml.token_type": [1, 2]},
        {"tokenizer.ggml.eos_token_id": 10_000},
        {"tokenizer.ggml.merges": ["zz zz"]},
        {"tokenizer.ggml.merges": ["nospace"]},
        {"tokenizer.ggml.tokens": 7},
        {"tokenizer.ggml.tokens": [1, 2]},
        {"tokenizer.ggml.model": 5},
        {"tokenizer.ggml.eos_token_id": "x"},
    ],
)
def test_inconsistent_metadata_is_a_corrupt_file(tmp_path, changes):
    with pytest.raises((CorruptFile, UnknownArchitecture)):
        from_gguf(write_gguf(tmp_path / "x.gguf", byte_level(**changes)))


def test_a_damaged_header_never_crashes(tmp_path):
    good = write_gguf(tmp_path / "x.gguf", byte_level()).read_bytes()
    pick = random.Random(5)
    refused = 0
    for _ in range(400):
        data = bytearray(good)
        for _ in range(pick.randint(1, 4)):
            data[pick.randrange(len(data))] = pick.randrange(256)
        cut = len(data) if pick.random() < 0.6 else pick.randrange(len(data))
        (tmp_path / "y.gguf").write_bytes(data[:cut])
        try:
            from_gguf(tmp_path / "y.gguf").encode("the cat sat")
        except KvistError:
            refused += 1
    assert refused > 150


def test_digest_follows_content(tmp_path):
    def digest(pairs):
        return from_gguf(write_gguf(tmp_path / "x.gguf", pairs)).digest()

    base = byte_level()
    others = [
        byte_level(**{"tokenizer.ggml.pre": "gpt-2"}),
        byte_level(**{"tokenizer.ggml.merges": base["tokenizer.ggml.merges"][::-1][2:]}),
        byte_level(**{"tokenizer.ggml.token_type": [1] * len(base["tokenizer.ggml.tokens"])}),
        byte_level(**{"tokenizer.ggml.add_bos_token": True}),
    ]
    assert len(digest(base)) == 16
    assert digest(base) == digest(byte_level(**{"tokenizer.chat_template": "another", "general.name": "x"}))
    assert len({digest(pairs) for pairs in [base, *others]}) == 5


def test_a_header_cut_anywhere_is_a_corrupt_file(tmp_path):
    pairs = byte_level()
    pairs["tokenizer.last"] = "the end"
    good = write_gguf(tmp_path / "x.gguf", pairs).read_bytes()
    for cut in [0, 3, 23, 24, 30, *range(40, len(good), 97), *range(len(good) - 20, len(good))]:
        (tmp_path / "y.gguf").write_bytes(good[:cut])
        with pytest.raises(CorruptFile, match=r"y\.gguf"):
            from_gguf(tmp_path / "y.gguf")
    for start in (b"GGML" + good[4:], good[:4] + b"\x00\x00\x00\x03" + good[8:]):
        (tmp_path / "y.gguf").write_bytes(start)
        with pytest.raises(CorruptFile, match="little-endian GGUF"):
            from_gguf(tmp_path / "y.gguf")
    with pytest.raises(CorruptFile, match="there is no file"):
        from_gguf(tmp_path / "none.gguf")

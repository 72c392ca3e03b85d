"""A tokenizer from the metadata of a GGUF file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvist.errors import CorruptFile, MissingField, MissingTokenizer, UnknownArchitecture
from kvist.text.gguf_meta import read_metadata
from kvist.text.merges import merges_by_position, merges_by_score
from kvist.text.pieces import byte_fallback, byte_level, end_ids, is_filler, looks_like_control
from kvist.text.pretokenize import pre_rule
from kvist.text.tokenizer import Tokenizer, Vocabulary

if TYPE_CHECKING:
    import gguf
    import tokenizers

_NORMAL: Final = 1
_CONTROL: Final = (2, 3)  # unknown, control
_USER: Final = 4
_KINDS: Final = {"tokens": str, "merges": str, "token_type": int, "scores": float}
_KEY: Final = "tokenizer.ggml."


def from_gguf(source: str | Path | gguf.GGUFReader | Mapping[str, Any]) -> Tokenizer:
    """Build the tokenizer of a GGUF file: by its path (0.1 s for 49,152 tokens), an open reader, or ``read_metadata``.

    Raises ``UnknownArchitecture`` for a vocabulary kind or a pre-tokenizer that kvist does not know.
    """
    name = str(source) if isinstance(source, (str, Path)) else "the GGUF file"
    meta = {key.removeprefix(_KEY): value for key, value in read_metadata(source).items()}
    if "model" not in meta or "tokens" not in meta:
        raise MissingTokenizer(
            f"{name} has no tokenizer.ggml.model or no tokenizer.ggml.tokens",
            remedy="convert the model again with its tokenizer, or load the tokenizer from a folder",
        )
    model = str(meta["model"])
    if model not in _BUILDERS:
        raise UnknownArchitecture(model, tuple(_BUILDERS), source=f"vocabulary, tokenizer.ggml.model in {name}")
    return _Metadata(meta, name).build(_BUILDERS[model])


class _Metadata:
    """The metadata's arrays, checked, with the questions that every kind of vocabulary asks of them."""

    def __init__(self, meta: dict[str, Any], name: str) -> None:
        self.meta = meta
        self.name = name
        for key, kind in _KINDS.items():
            value = meta.get(key, [])
            if not isinstance(value, list) or not all(isinstance(item, kind) for item in value):
                what = f"{name}: tokenizer.ggml.{key} is no list of {kind.__name__}"
                raise CorruptFile(what, remedy="download the file again")
        self.pieces: list[str] = meta["tokens"]
        self.kinds: list[int] = meta.get("token_type") or [_NORMAL] * len(self.pieces)
        for key in ("token_type", "scores"):
            if len(meta.get(key) or self.pieces) != len(self.pieces):
                what = f"{name}: {len(self.pieces)} tokens but {len(meta[key])} entries in tokenizer.ggml.{key}"
                raise CorruptFile(what, remedy="download the file again")
        self.eos_ids = end_ids(
            [n for key in ("eos", "eot", "eom") if (n := self.id_at(f"{key}_token_id")) is not None],
            [(piece, n) for n, piece in enumerate(self.pieces) if self.kinds[n] != _NORMAL],
        )
        self.special = {n for n, kind in enumerate(self.kinds) if kind in _CONTROL} | set(self.eos_ids)
        user = {n for n, kind in enumerate(self.kinds) if kind == _USER and not is_filler(self.pieces[n], n)}
        self.guarded = self.special | {n for n in user if looks_like_control(self.pieces[n])}
        self.user = user - self.guarded

    def id_at(self, key: str) -> int | None:
        token_id: int | None = self.meta.get(key)
        if token_id is not None and (not isinstance(token_id, int) or not 0 <= token_id < len(self.pieces)):
            what = f"{self.name}: tokenizer.ggml.{key} is {token_id}, the vocabulary has {len(self.pieces)} tokens"
            raise CorruptFile(what, remedy="download the file again")
        return token_id

    def vocabulary(self) -> dict[str, int]:
        return dict(zip(self.pieces, range(len(self.pieces)), strict=True))

    def merges(self) -> list[tuple[str, str]]:
        if "merges" not in self.meta:
            raise MissingField(("tokenizer.ggml.merges",), source=self.name, remedy="convert the model again")
        cuts = [(merge, merge.find(" ", 1)) for merge in self.meta["merges"]]
        return [(merge[:at], merge[at + 1 :]) for merge, at in cuts]

    def build(self, builder: Callable[[_Metadata], tuple[tokenizers.Tokenizer, bool]]) -> Tokenizer:
        backend, add_bos = builder(self)
        _add_tokens(self, backend)
        bos_id = self.id_at("bos_token_id")
        add_bos = self.meta.get("add_bos_token", add_bos)
        spelled = byte_level() if self.meta["model"] == "gpt2" else byte_fallback()
        known = Vocabulary(
            pieces=tuple(self.pieces),
            spell=spelled,
            added=frozenset(self.user | self.guarded),
            guarded=frozenset(self.guarded),
            special=frozenset(self.special),
            bos_id=bos_id,
            eos_ids=self.eos_ids,
            lead_ids=(bos_id,) if add_bos and bos_id is not None else (),
            drops_first_space=_adds_space(self),
            digest=_digest(self.meta),
        )
        return Tokenizer(backend, known)


def _adds_space(of: _Metadata) -> bool:
    return of.meta["model"] == "llama" and bool(of.meta.get("add_space_prefix", True))


def _byte_level(of: _Metadata) -> tuple[tokenizers.Tokenizer, bool]:
    if "pre" not in of.meta:
        raise MissingField(
            ("tokenizer.ggml.pre",),
            source=of.name,
            remedy="the file is older than April 2024: convert the model again, or load its tokenizer from a folder",
        )
    rule = pre_rule(str(of.meta["pre"]), source=of.name)
    backend = _bpe(of, of.merges(), ignore_merges=rule.whole_words)
    rule.install(backend)
    return backend, rule.add_bos


def _sentencepiece(of: _Metadata) -> tuple[tokenizers.Tokenizer, bool]:
    """Scores or positions become merges, best first. Gemma's added tokens share one score, so there position counts."""
    gemma = str(of.meta.get("general.architecture")).startswith("gemma")
    if gemma:  # llama.cpp writes runs of U+2581 as spaces; encoding looks them up as U+2581
        of.pieces = ["\u2581" * len(p) if p and not p.strip(" ") else p for p in of.pieces]
        of.user = {n for n in of.user if of.pieces[n].strip("\u2581")}
    words = {piece: n for n, piece in enumerate(of.pieces) if n not in of.guarded}
    if gemma:
        merges = merges_by_position(words)
    elif "scores" in of.meta:
        merges = merges_by_score(words, of.meta["scores"])
    else:
        raise MissingField(("tokenizer.ggml.scores",), source=of.name, remedy="convert the model again")
    return _on_raw_text(of, merges, adds_space=_adds_space(of)), True


def _merged_raw(of: _Metadata) -> tuple[tokenizers.Tokenizer, bool]:
    return _on_raw_text(of, of.merges(), adds_space=False), True


def _on_raw_text(of: _Metadata, merges: list[tuple[str, str]], *, adds_space: bool) -> tokenizers.Tokenizer:
    from tokenizers import normalizers

    unknown = of.id_at("unknown_token_id")
    unk_token = None if unknown is None else of.pieces[unknown]
    backend = _bpe(of, merges, unk_token=unk_token, fuse_unk=True, byte_fallback=True)
    spaces = normalizers.Replace(" ", "\u2581")
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), spaces]) if adds_space else spaces
    return backend


def _bpe(of: _Metadata, merges: list[tuple[str, str]], **options: Any) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer as Backend
    from tokenizers import models

    try:
        return Backend(models.BPE(of.vocabulary(), merges, **options))
    except Exception as error:  # the library raises bare Exception
        what = f"{of.name}: the vocabulary is inconsistent: {error}"
        raise CorruptFile(what, remedy="download the file again") from error


def _add_tokens(of: _Metadata, backend: tokenizers.Tokenizer) -> None:
    """Match these whole in text. Phi-3's chat tokens also swallow the white space after them."""
    from tokenizers import AddedToken

    phi3 = of.meta.get("general.architecture") == "phi3" and of.meta["model"] == "llama"
    keeps_space = ("<unk>", "<s>", "<|endoftext|>")
    for ids, special in ((of.guarded, True), (of.user, False)):
        pieces = [of.pieces[n] for n in sorted(ids) if of.pieces[n]]
        rstrip = {p: phi3 and p not in keeps_space for p in pieces}
        tokens = [AddedToken(p, normalized=False, special=special, rstrip=rstrip[p]) for p in pieces]
        (backend.add_special_tokens if special else backend.add_tokens)(tokens)


def _digest(meta: dict[str, Any]) -> bytes:
    """Of everything that can change which ids a text gets."""
    hasher = hashlib.blake2b(b"kvist gguf tokenizer 1", digest_size=16)
    for key in sorted(key for key in meta if not key.startswith("tokenizer.chat_template")):
        value = meta[key]
        text = "\x00".join(map(str, value)) if isinstance(value, list) else str(value)
        hasher.update(f"{key}\x01{text}\x02".encode("utf-8", "surrogatepass"))
    return hasher.digest()


_BUILDERS: Final = {"gpt2": _byte_level, "llama": _sentencepiece, "gemma4": _merged_raw}

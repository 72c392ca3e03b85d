"""A tokenizer from a Hugging Face model folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvist.errors import CorruptFile, MissingTokenizer, UnknownArchitecture
from kvist.text.pieces import Speller, byte_fallback, byte_level, end_ids, looks_like_control
from kvist.text.tokenizer import Tokenizer, Vocabulary

if TYPE_CHECKING:
    import tokenizers

_OTHER_FORMS = ("tokenizer.model", "vocab.json", "tiktoken.model", "tekken.json")


def from_folder(path: str | Path) -> Tokenizer:
    """Read ``tokenizer.json`` and what ``tokenizer_config.json`` and ``generation_config.json`` add to it.

    Raises ``MissingTokenizer`` when there is none, ``UnknownArchitecture`` when its decoder is of no known kind.
    """
    folder = Path(path)
    file = folder / "tokenizer.json"
    if not file.is_file():
        others = [name for name in _OTHER_FORMS if (folder / name).is_file()]
        seen = f"; it has {', '.join(others)}, which kvist does not read" if others else ""
        raise MissingTokenizer(
            f"{folder} has no tokenizer.json{seen}",
            remedy="save it with transformers' AutoTokenizer(...).save_pretrained(folder), or use a GGUF file",
        )
    config = read_json(folder / "tokenizer_config.json")
    backend = _backend(file)
    spell, drops_first_space = _decoder(backend, file)
    _add_missing(backend, config, file)
    added = backend.get_added_tokens_decoder()
    eos_ids = end_ids(
        _stated_ends(folder, config, backend),
        [(token.content, n) for n, token in added.items()],
    )
    special = {n for n, token in added.items() if token.special} | set(eos_ids)
    guarded = special | {n for n, token in added.items() if looks_like_control(token.content)}
    _protect(backend, [added[n] for n in sorted(guarded) if n in added and not added[n].special])
    bos_id = _id_of(backend, config.get("bos_token") or read_json(folder / "special_tokens_map.json").get("bos_token"))
    lead_ids = _lead(backend, config, bos_id)
    known = Vocabulary(
        pieces=_pieces(backend),
        spell=spell,
        added=frozenset(added),
        guarded=frozenset(guarded),
        special=frozenset(special),
        bos_id=bos_id,
        eos_ids=eos_ids,
        lead_ids=lead_ids,
        drops_first_space=drops_first_space,
        digest=_digest(file, (*lead_ids, -1, *sorted(guarded))),
    )
    return Tokenizer(backend, known)


def read_json(file: Path) -> dict[str, Any]:
    """The object in ``file``; empty when there is no such file."""
    if not file.is_file():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CorruptFile(f"{file} is no JSON: {error}", remedy="download the file again") from error
    if not isinstance(found, dict):
        raise CorruptFile(f"{file} holds a {type(found).__name__}, not an object", remedy="download the file again")
    return found


def token_text(entry: Any) -> str | None:
    """The text of a token that a config gives as a string or as ``{"content": ...}``."""
    text = entry.get("content") if isinstance(entry, dict) else entry
    return text if isinstance(text, str) else None


def _backend(file: Path) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer as Backend

    try:
        backend = Backend.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        raise CorruptFile(f"{file} cannot be read: {error}", remedy="download the file again") from error
    backend.no_truncation()
    backend.no_padding()
    return backend


def _decoder(backend: tokenizers.Tokenizer, file: Path) -> tuple[Speller, bool]:
    """How tokens spell bytes, and whether the first space is dropped."""
    state: Any = json.loads(backend.decoder.__getstate__()) if backend.decoder else {"type": None}
    steps: list[Any] = state["decoders"] if state["type"] == "Sequence" else [state]
    kinds: list[Any] = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return byte_level(), False
    spaces = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    if kinds[:3] == ["Replace", "ByteFallback", "Fuse"] and steps[0] == spaces and steps[3:] in ([], [strip]):
        return byte_fallback(), bool(steps[3:])
    name = "+".join(str(kind) for kind in kinds)
    raise UnknownArchitecture(name, ("ByteLevel", "Replace+ByteFallback+Fuse(+Strip)"), source=f"decoder in {file}")


def _add_missing(backend: tokenizers.Tokenizer, config: dict[str, Any], file: Path) -> None:
    """Tokens that only ``tokenizer_config.json`` adds."""
    from tokenizers import AddedToken

    entries = config.get("added_tokens_decoder") or {}
    known = backend.get_added_tokens_decoder()
    for token_id, entry in sorted((int(n), entry) for n, entry in entries.items()):
        if token_id in known:
            continue
        flags = {key: bool(entry.get(key)) for key in ("lstrip", "rstrip", "normalized", "single_word", "special")}
        backend.add_tokens([AddedToken(entry["content"], **flags)])
        if (got := backend.token_to_id(entry["content"])) != token_id:
            what = f"{file}: {entry['content']!r} gets id {got}, tokenizer_config.json gives it {token_id}"
            raise CorruptFile(what, remedy="both files must come from the same version of the model")


def _protect(backend: tokenizers.Tokenizer, tokens: list[Any]) -> None:
    for token in tokens:
        token.special = True
    backend.add_special_tokens(tokens)


def _id_of(backend: tokenizers.Tokenizer, entry: Any) -> int | None:
    text = token_text(entry)
    return None if text is None else backend.token_to_id(text)


def _stated_ends(folder: Path, config: dict[str, Any], backend: tokenizers.Tokenizer) -> Iterator[int]:
    stated = read_json(folder / "generation_config.json").get("eos_token_id")
    yield from stated if isinstance(stated, list) else [stated] if isinstance(stated, int) else []
    for entry in (config.get("eos_token"), read_json(folder / "special_tokens_map.json").get("eos_token")):
        token_id = _id_of(backend, entry)
        if token_id is not None:
            yield token_id


def _lead(backend: tokenizers.Tokenizer, config: dict[str, Any], bos_id: int | None) -> tuple[int, ...]:
    """What the model's tokenizer puts before text. ``tokenizer_config.json`` overrules ``tokenizer.json``."""
    if "add_bos_token" in config:
        return (bos_id,) if config["add_bos_token"] and bos_id is not None else ()
    with_lead, bare = backend.encode("a").ids, backend.encode("a", add_special_tokens=False).ids
    found = [n for n in range(len(with_lead)) if with_lead[n : n + len(bare)] == bare]
    return tuple(with_lead[: found[0]]) if found else ()


def _pieces(backend: tokenizers.Tokenizer) -> tuple[str | None, ...]:
    ids = backend.get_vocab(with_added_tokens=True)
    pieces: list[str | None] = [None] * (max(ids.values(), default=-1) + 1)
    for piece, token_id in ids.items():
        pieces[token_id] = piece
    return tuple(pieces)


def _digest(file: Path, settings: tuple[int, ...]) -> bytes:
    hasher = hashlib.blake2b(b"kvist folder tokenizer 1", digest_size=16)
    hasher.update(repr(settings).encode())
    hasher.update(file.read_bytes())
    return hasher.digest()

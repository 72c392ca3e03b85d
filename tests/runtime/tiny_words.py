"""A vocabulary of single bytes for the tiny models: three control tokens, then ASCII; and folders that have it."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from kvist.text.from_folder import from_folder
from kvist.text.pieces import byte_alphabet

PAD, BOS, EOS = range(3)
CONTROLS = ("<pad>", "<s>", "</s>")
FIRST = 3
"""The id of byte 0."""


def save_words(folder: Path) -> Path:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letter = {byte: char for char, byte in byte_alphabet().items()}
    pieces = [*CONTROLS, *(letter[byte] for byte in range(128))]
    backend = Tokenizer(models.BPE({piece: n for n, piece in enumerate(pieces)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(piece, normalized=False) for piece in CONTROLS])
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    return folder


def tiny_words(folder: Path):
    return from_folder(save_words(folder))


def text_of(tokens) -> str:
    """What output tokens say, control tokens left out."""
    return bytes(t - FIRST for t in tokens if t >= FIRST).decode("ascii")


def with_words(source: Path, folder: Path) -> Path:
    """A copy of a tiny model's folder that has the tokenizer too."""
    shutil.copytree(source, folder)
    return save_words(folder)


def spelled(pieces, special=(), eos=(0,)):
    """As much of a tokenizer as is asked for, with these bytes."""
    return SimpleNamespace(
        vocab_size=len(pieces),
        eos_ids=tuple(eos),
        special_ids=frozenset(special),
        token_bytes=lambda n, special=False: pieces[n],
        encode=lambda text, add_bos=None: [],
    )


def ids(mask):
    return np.flatnonzero(mask).tolist()

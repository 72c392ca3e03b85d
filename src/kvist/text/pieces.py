"""How vocabularies spell bytes, and which names end a generation."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import Final

Speller = Callable[[str], bytes]
"""From the spelling of an ordinary token to its bytes."""

END_NAMES: Final = (
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>", "<end_of_turn>", "<turn|>",
    "<eos>", "<|end|>", "<|return|>", "<|call|>", "<|END_OF_TURN_TOKEN|>", "<|EOT|>", "<EOT>", "[EOT]",
    "[EOS]", "[e~[", "<end_of_utterance>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "<|eom|>",
)  # fmt: skip
"""Tokens after which a model of some family stops. A loader looks only among control and added tokens. ``</s>`` is
not here: some vocabularies have it for HTML. Where it ends a generation, the model's files state its id."""


def end_ids(stated: Iterable[int], names: Iterable[tuple[str, int]]) -> tuple[int, ...]:
    """Every end-of-generation id: the ``stated`` ones first, then those of ``names`` that end a turn by their name.

    Where ``<|return|>`` and ``<|call|>`` exist (the harmony format of gpt-oss), ``<|end|>`` only closes one channel
    and generation goes on, so it is left out there.
    """
    by_name = dict(names)
    harmony = "<|return|>" in by_name and "<|call|>" in by_name
    named = [by_name[name] for name in END_NAMES if name in by_name and not (harmony and name == "<|end|>")]
    return tuple(dict.fromkeys([*stated, *named]))


def byte_alphabet() -> dict[str, int]:
    """The 256 printable characters with which byte-level BPE writes bytes: character -> byte."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + n): byte for n, byte in enumerate(rest)}


def byte_level() -> Speller:
    """Spelling of byte-level BPE: one character of the alphabet is one byte."""
    alphabet = byte_alphabet()

    def spell(piece: str) -> bytes:
        try:
            return bytes([alphabet[char] for char in piece])
        except KeyError:
            return piece.encode("utf-8")

    return spell


def byte_fallback() -> Speller:
    """Spelling of SentencePiece: U+2581 is a space and ``<0xE2>`` is one byte."""

    def spell(piece: str) -> bytes:
        if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            try:
                return bytes([int(piece[3:5], 16)])
            except ValueError:
                pass
        return piece.replace("\u2581", " ").encode("utf-8")

    return spell


def looks_like_control(piece: str) -> bool:
    """Whether a token is written ``<|name|>`` (or with DeepSeek's full-width bars), as only control tokens are."""
    return len(piece) > 4 and piece.startswith(("<|", "<\uff5c")) and piece.endswith(("|>", "\uff5c>"))


def is_filler(piece: str, token_id: int) -> bool:
    """Whether a GGUF converter made this token only to pad the vocabulary to the height of the embedding matrix."""
    return piece == f"[PAD{token_id}]"


def free_mark(taken: Container[str]) -> str:
    """A private-use character that ``taken`` (a string, or any container of characters) does not hold."""
    return next(chr(code) for code in range(0xE000, 0xF8FF) if chr(code) not in taken)

"""Small vocabularies, written as GGUF headers by hand, so that these tests need no model."""

import struct
from pathlib import Path

from kvist.text.pieces import byte_alphabet

ALPHABET = {byte: char for char, byte in byte_alphabet().items()}


def write_gguf(path: Path, pairs: dict) -> Path:
    body = b"".join(_string(key) + _value(value) for key, value in pairs.items())
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(pairs)) + body)
    return path


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    kind = {str: 8, int: 5, float: 6}[type(value[0])]
    head = struct.pack("<IIQ", 9, kind, len(value))
    if kind == 8:
        return head + b"".join(map(_string, value))
    return head + struct.pack(f"<{len(value)}{'i' if kind == 5 else 'f'}", *value)


def byte_level(**changes) -> dict:
    """Byte-level BPE: ids 0..255 are the bytes, 256.. a few words, then the added tokens."""
    merges = ["t h", "th e", "Ġ the", "i n", "Ġ Ġ", "ĠĠ ĠĠ", "Ã ©", "Ġ c", "a t", "Ġc at", "< |", "| >"]
    added = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "<|tool|>", "[PAD273]"]
    pieces = [ALPHABET[byte] for byte in range(256)] + [merge.replace(" ", "") for merge in merges] + added
    n = len(pieces)
    pairs = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": [1] * (n - 6) + [3, 3, 3, 4, 4, 4],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": n - 6,
        "tokenizer.ggml.eos_token_id": n - 6,
        "tokenizer.chat_template": "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
        "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    }
    return {key: value for key, value in {**pairs, **changes}.items() if value is not None}


def sentencepiece(**changes) -> dict:
    """SentencePiece BPE with byte fallback: <unk> <s> </s>, the bytes, then pieces, best first."""
    pieces = ["▁h", "el", "lo", "▁hel", "▁hello", "▁▁", "▁", *"abcdehlmnorstw", "é", "<|end|>"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    pairs = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(n) for n in range(len(pieces))],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * (len(pieces) - 1) + [3],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    return {key: value for key, value in {**pairs, **changes}.items() if value is not None}

"""What several tests read: text on which tokenizers disagree, and the project's shared data."""

from pathlib import Path

import pytest

SHARED = Path(__file__).parents[3] / "shared" / "data"


def shared_folder(name: str) -> Path:
    folder = SHARED / name
    if not folder.is_dir():
        pytest.skip(f"no {folder}: this test needs the project's shared data")
    return folder


ODD_TEXTS = [
    "",
    " ",
    "   ",
    "a  1 22   333  x 4,567.89",
    "\r\n\r\n a\r\nb\rc\n\n\n\nd",
    " " * 40 + "x" + "\t" * 70 + "\n" * 50,
    "e\u0301 a\u0308\u0323 \u0915\u094d\u0937\u093f",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466\U0001f3fd \U0001f44d\U0001f3fd \U0001f1f8\U0001f1ea",
    "\x00\x01\x07\x0b\x0c\x7f\x85",
    "\u3000x\u00a0y\u2003z\u200b\ufeff",
    "\uff11\uff12\uff13 \u00bd\u00b2 \ufb01 \U0001d518\U0001d52b",
    "I'll DON'T we'Ve 'tis",
    "\ufffd\ufffd " + b"ok \xff\xfe\xc3(\xe2\x82 \xf0\x9f".decode("utf-8", "replace"),
    "<|im_end|><|im_start|>user\n<|endoftext|> <|im_end <|im_end|",
    "<s></s><eos><bos><end_of_turn><start_of_turn>[INST]<think></think>",
    "x" * 3000,
    "".join(chr(n) for n in range(0x20, 0x2FF)),
]

"""The packaged model and prompts from real text, for tests that use them. One load per test process."""

from functools import cache
from pathlib import Path

import pytest

SHARED = Path(__file__).parents[2] / "shared"


def texts_or_skip() -> Path:
    folder = SHARED / "data" / "texts"
    if not folder.is_dir():
        pytest.skip(f"the shared texts are absent ({folder})")
    return folder


@cache
def packaged() -> Path:
    from kvist.errors import ModelError
    from kvist.runtime.packaged import packaged_model

    try:
        return packaged_model()
    except ModelError as error:
        pytest.skip(str(error))


@cache
def llm(kv_format: str = "f32", **options):
    from kvist.config import CacheConfig, EngineConfig
    from kvist.runtime.build import BuildOptions
    from kvist.runtime.llm import load

    engine = EngineConfig(CacheConfig(memory_bytes=512 << 20, format=kv_format))
    return load(packaged(), BuildOptions(**({"dtype": "f32"} | options), engine=engine, poison=True))


@cache
def judge():
    """transformers in fp32 on the same file, dequantised by the gguf library."""
    import torch
    from transformers import AutoModelForCausalLM

    path = packaged()
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval()


def prompts(count: int, lengths: list[int]) -> list[tuple[int, ...]]:
    """``count`` prompts cut from different places of different texts, of the given lengths in turn (tokens)."""
    files = sorted(texts_or_skip().glob("*.txt"))
    out = []
    for i in range(count):
        text = files[i % len(files)].read_text(encoding="utf-8")
        at = 5000 + 7919 * i % (len(text) - 20_000)
        ids = llm().tokenizer.encode(text[at : at + 8000])
        out.append(tuple(ids[: lengths[i % len(lengths)]]))
    return out

"""Small models and runs for tests of engine emulators."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kvist.planner.engines.base import Run
from kvist.planner.engines.registry import engine
from kvist.spec.format import KVFormat
from kvist.spec.hf import read_config, read_shape
from kvist.spec.layer import Chunked, Full, Latent, LayerSpec, Recurrent, Window
from kvist.spec.model import ModelSpec

SHARED = Path(__file__).parents[3] / "shared"
CONFIGS = SHARED / "data" / "model_configs"
CASES = SHARED / "cases" / "capacity_cases.jsonl"
needs_shared = pytest.mark.skipif(not CONFIGS.is_dir(), reason=f"no shared configs at {CONFIGS}")

GIB, MIB = 1 << 30, 1 << 20
BF16, F16, FP8 = (KVFormat.planned(name) for name in ("bf16", "f16", "fp8"))


def layer(mixer=None, *, q=8, kv=8, key=128, value=None):
    mixer = Full() if mixer is None else mixer
    if isinstance(mixer, Recurrent):
        return LayerSpec(0, mixer, q_heads=0, kv_heads=0, key_dim=0, value_dim=0)
    return LayerSpec(0, mixer, q_heads=q, kv_heads=kv, key_dim=key, value_dim=key if value is None else value)


def model(*layers, context=1 << 17, **more):
    numbered = tuple(replace(x, index=i) for i, x in enumerate(layers))
    return ModelSpec("test", hidden=64, layers=numbered, vocab=100, context_tokens=context, **more)


def uniform(n=4, **shape):
    return model(*(layer(**shape) for _ in range(n)))


def windowed(full=2, local=4, size=128, **shape):
    return model(*(layer(**shape) for _ in range(full)), *(layer(Window(size), **shape) for _ in range(local)))


def latent(n=3):
    return model(*(layer(Latent(512, 64), q=16, kv=1, key=192, value=128) for _ in range(n)))


def hybrid(full=2, recurrent=6):
    state = Recurrent("gated_delta", state_elements=32 * 128 * 128, conv_elements=3 * 8192)
    return model(*(layer(kv=2, key=256) for _ in range(full)), *(layer(state) for _ in range(recurrent)))


def chunked():
    return model(layer(), *(layer(Chunked(8192)) for _ in range(3)))


MODELS = {"uniform": uniform(), "windowed": windowed(), "latent": latent(), "hybrid": hybrid(), "chunked": chunked()}
ENGINES = ("kvist", "vllm", "vllm-legacy", "sglang", "llama.cpp", "ik_llama.cpp", "ipex-llm", "tensorrt-llm")


def capacity(name, spec, **run):
    return engine(name).capacity(Run(spec, **{"kv_format": BF16, **run}))


def request_bytes(name, spec, n_tokens, **run):
    return engine(name).request_bytes(Run(spec, **{"kv_format": BF16, **run}), n_tokens)


def config(stem):
    path = CONFIGS / f"{stem}.json"
    if not path.is_file():
        pytest.skip(f"no shared config {path}")
    raw = json.loads(path.read_text())
    return read_shape(raw) if raw.get("_minimal") else read_config(raw)

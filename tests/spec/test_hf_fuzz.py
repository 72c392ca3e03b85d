"""Bent configs of every family: a ``ModelError`` or a sound spec; and no field's absence quietly changes a cache."""

import json
import time

import pytest

from kvist.errors import ModelError
from kvist.spec.format import KVFormat
from kvist.spec.hf import read_config
from kvist.spec.layout import plan_layout
from kvist.spec.weights import weight_elements
from shared_configs import CONFIGS, needs_shared

pytestmark = needs_shared

LIMIT_S = 0.5
DERIVED = {("mistral", "head_dim")}
"""F098: where a family derives head_dim from hidden_size, leaving it out means just that."""

STEMS = [
    "meta-llama__Meta-Llama-3.1-8B", "mistralai__Mistral-Nemo-Instruct-2407", "mistralai__Mixtral-8x7B-v0.1",
    "Qwen__Qwen2.5-7B-Instruct", "Qwen__Qwen3-30B-A3B", "Qwen__Qwen3-VL-2B-Instruct", "Qwen__Qwen3.5-35B-A3B",
    "deepseek-ai__DeepSeek-V3", "deepseek-ai__DeepSeek-V3.2", "deepseek-ai__DeepSeek-V4-Flash", "zai-org__GLM-5.2",
    "google__gemma-4-26B-A4B", "moonshotai__Kimi-K3", "MiniMaxAI__MiniMax-M2.5", "nvidia__MiniMax-M3-NVFP4",
    "XiaomiMiMo__MiMo-V2-Flash", "stepfun-ai__Step-3.7-Flash", "openai__gpt-oss-20b",
    "meta-llama__Llama-4-Scout-17B-16E-Instruct", "nvidia__Llama-3_3-Nemotron-Super-49B-v1",
    "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "tencent__Youtu-LLM-2B-Base-DSA",
]  # fmt: skip
ODD = (None, 0, -1, 1.5, "x", [], 10**7, {"a": 1}, float("nan"))


def shape(spec):
    return [(x.mixer, x.cache_heads, x.stream_rows, x.state_elements) for x in spec.layers]


def parts(stem):
    """The config, its text part, and a way to put a changed text part back."""
    path = CONFIGS / f"{stem}.json"
    if not path.is_file():
        pytest.skip(f"no shared config {path}")
    whole = json.loads(path.read_text())
    inner = whole.get("text_config", whole)
    return inner, (lambda new: {**whole, "text_config": new}) if inner is not whole else (lambda new: new)


@pytest.mark.parametrize("stem", STEMS)
def test_an_absent_field_is_named_or_does_not_matter_to_the_cache(stem):
    inner, whole = parts(stem)
    known = read_config(whole(inner))
    for key in inner:
        try:
            spec = read_config(whole({k: v for k, v in inner.items() if k != key}))
        except ModelError as error:
            assert str(error)
        else:
            assert shape(spec) == shape(known) or (known.architecture, key) in DERIVED, key


@pytest.mark.parametrize("stem", STEMS)
def test_odd_values_raise_model_errors_only(stem):
    inner, whole = parts(stem)
    for key in inner:
        for value in ODD:
            started = time.process_time()
            try:
                spec = read_config(whole({**inner, key: value}))
                weight_elements(spec)
                plan_layout(spec, KVFormat())
                assert spec.kv_bytes(4096, KVFormat()) >= 0
            except ModelError:
                pass
            assert time.process_time() - started < LIMIT_S, (key, value)

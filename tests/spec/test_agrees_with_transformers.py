"""The reader against transformers itself: rotations, scales, and every weight counted, on real configs.

Models are built on the meta device (no memory). Skipped where torch, transformers or the shared configs are absent.
"""

import numpy as np
import pytest

from kvist.spec.hf import read_config
from kvist.spec.weights import weight_elements
from shared_configs import config, needs_shared

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

pytestmark = needs_shared

_KIND = {
    "kimi_k2": "deepseek_v3",
    "minimax_m3": "minimax_m3_vl_text",
    "mimo": "qwen2",
    "minimax_m3_vl": "minimax_m3_vl_text",
}


def judge_config(stem):
    raw = config(stem)
    inner = dict(raw.get("text_config", raw))
    for key in ("quantization_config", "auto_map"):
        inner.pop(key, None)
    kind = inner.pop("model_type", raw.get("model_type"))
    return transformers.AutoConfig.for_model(_KIND.get(kind, kind), **inner)


ROPES = [
    "meta-llama__Meta-Llama-3.1-8B",
    "deepseek-ai__DeepSeek-V3",
    "deepseek-ai__DeepSeek-V2-Lite",
    "openai__gpt-oss-20b",
    "Qwen__Qwen3-0.6B",
    "MiniMaxAI__MiniMax-M2.5",
    "Qwen__Qwen3.5-27B",
    "XiaomiMiMo__MiMo-7B-Base",
    "moonshotai__Kimi-K2-Instruct",
]


@pytest.mark.parametrize("stem", ROPES)
def test_frequencies(stem):
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    cfg = judge_config(stem)
    rope = read_config(config(stem)).layers[-1].attention.rope
    params = cfg.rope_parameters
    if params["rope_type"] == "default":
        expected = 1.0 / params["rope_theta"] ** (np.arange(0, rope.dim, 2) / rope.dim)
        factor, head = 1.0, getattr(cfg, "head_dim", None) or cfg.hidden_size // cfg.num_attention_heads
        assert rope.dim == int(head * params.get("partial_rotary_factor", 1.0))
    else:
        found, factor = ROPE_INIT_FUNCTIONS[params["rope_type"]](cfg, "cpu")
        expected = found.double().numpy()
    np.testing.assert_allclose(rope.inverse_frequencies(), expected, rtol=2e-6)
    assert rope.attention_factor == pytest.approx(factor)


@pytest.mark.parametrize(
    "stem", ["deepseek-ai__DeepSeek-V3", "deepseek-ai__DeepSeek-V2-Lite", "moonshotai__Kimi-K2-Instruct"]
)
def test_mla_scale(stem):
    cfg = judge_config(stem)
    cfg.num_hidden_layers = 1
    with torch.device("meta"):
        layer = transformers.AutoModelForCausalLM.from_config(cfg).model.layers[0]
    assert read_config(config(stem)).layers[0].attention.scale == pytest.approx(layer.self_attn.scaling)


WEIGHTS = [
    "meta-llama__Meta-Llama-3.1-8B",
    "Qwen__Qwen2.5-7B-Instruct",
    "Qwen__Qwen3-0.6B",
    "Qwen__Qwen3-30B-A3B",
    "mistralai__Mixtral-8x7B-v0.1",
    "openai__gpt-oss-20b",
    "deepseek-ai__DeepSeek-V2-Lite",
    "google__gemma-4-26B-A4B",
    "Qwen__Qwen3.5-35B-A3B",
    "XiaomiMiMo__MiMo-V2-Flash",
    "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "meta-llama__Llama-4-Scout-17B-16E-Instruct",
    "zai-org__GLM-5.2",
    "deepseek-ai__DeepSeek-V4-Flash",
    "MiniMaxAI__MiniMax-M3",
]


@pytest.mark.parametrize("stem", WEIGHTS)
def test_every_weight_is_counted(stem):
    """Exactly: not one weight more or less than transformers creates (routers' choice biases are buffers there)."""
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(judge_config(stem))
    expected = sum(p.numel() for p in model.parameters())
    expected += sum(b.numel() for name, b in model.named_buffers() if "correction_bias" in name)
    assert weight_elements(read_config(config(stem))).total == expected

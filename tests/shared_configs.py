"""Where the shared config files are, and small configs that tests bend."""

import json
from pathlib import Path

import pytest

CONFIGS = Path(__file__).parents[2] / "shared" / "data" / "model_configs"
CASES = Path(__file__).parents[2] / "shared" / "cases" / "capacity_cases.jsonl"

needs_shared = pytest.mark.skipif(not CONFIGS.is_dir(), reason=f"no shared configs at {CONFIGS}")


def config(stem):
    """One shared config, parsed; the test is skipped where there is none."""
    path = CONFIGS / f"{stem}.json"
    if not path.is_file():
        pytest.skip(f"no shared config {path}")
    return json.loads(path.read_text())


LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 4, "hidden_size": 512,
    "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 1024, "vocab_size": 1000,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
}  # fmt: skip
GEMMA3 = LLAMA | {
    "model_type": "gemma3_text", "num_hidden_layers": 12, "head_dim": 96, "sliding_window": 512,
    "query_pre_attn_scalar": 168, "rope_theta": 1_000_000, "rope_local_base_freq": 10_000,
    "hidden_activation": "gelu_pytorch_tanh",
}  # fmt: skip
MLA = LLAMA | {
    "model_type": "deepseek_v3", "num_key_value_heads": 8, "kv_lora_rank": 64, "q_lora_rank": 96,
    "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 24, "n_routed_experts": 8,
    "num_experts_per_tok": 2, "n_shared_experts": 1,
    "moe_intermediate_size": 128, "first_k_dense_replace": 1, "scoring_func": "sigmoid", "n_group": 4,
    "topk_group": 2, "topk_method": "noaux_tc", "norm_topk_prob": True, "routed_scaling_factor": 2.5,
}  # fmt: skip


def llama(**changes):
    """A small Llama config; ``None`` removes a key."""
    return bent(LLAMA, **changes)


def bent(base, **changes):
    out = dict(base)
    for key, value in changes.items():
        if value is REMOVED:
            out.pop(key, None)
        else:
            out[key] = value
    return out


REMOVED = object()

"""Tiny random models of many families, made and judged by transformers: odd head counts, outliers, spread logits."""

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch
import transformers

VOCAB = 131
CONTEXT = 256
TOKENS = 45
OUTLIERS = slice(1, 4)
"""Dims of KV head 0 whose keys are 30 times larger."""

_COMMON = {"vocab_size": VOCAB, "max_position_embeddings": CONTEXT, "pad_token_id": 0, "bos_token_id": 1}
_SIX_THREE = {
    "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3,
    "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 20, "tie_word_embeddings": False,
}  # fmt: skip
_FOUR_ONE = _SIX_THREE | {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 24}
_MLA = {
    "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "first_k_dense_replace": 3,
    "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 20, "kv_lora_rank": 24,
    "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10, "n_routed_experts": 4, "n_group": 1,
    "topk_group": 1, "num_experts_per_tok": 2, "n_shared_experts": 1, "moe_intermediate_size": 16,
    "tie_word_embeddings": False,
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """A transformers model class, its config, and how large its weights are drawn."""

    kind: str
    config: dict = field(default_factory=dict)
    spread: float = 0.25


def _rope(kind: str, **more) -> dict:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 500.0, **more}}


FAMILIES = {
    "llama": Family("Llama", _SIX_THREE),
    "llama-linear": Family("Llama", _SIX_THREE | _rope("linear", factor=4.0)),
    "llama-llama3": Family(
        "Llama",
        _FOUR_ONE
        | _rope(
            "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32
        ),
    ),
    "llama-yarn": Family("Llama", _SIX_THREE | _rope("yarn", factor=8.0, original_max_position_embeddings=32)),
    "llama-biases": Family("Llama", _SIX_THREE | {"attention_bias": True, "mlp_bias": True}),
    "mistral-window": Family("Mistral", _SIX_THREE | {"sliding_window": 18}),
    "qwen2-untied": Family("Qwen2", _FOUR_ONE),
    "qwen2-tied": Family("Qwen2", _SIX_THREE | {"tie_word_embeddings": True}),
    "qwen3": Family("Qwen3", _FOUR_ONE | {"num_key_value_heads": 2}),
    "gemma2": Family(
        "Gemma2",
        _SIX_THREE | {"sliding_window": 12, "query_pre_attn_scalar": 10, "attn_logit_softcapping": 20.0},
    ),
    "gemma3": Family(
        "Gemma3",
        _FOUR_ONE
        | {
            "num_hidden_layers": 4, "sliding_window": 10, "query_pre_attn_scalar": 30, "tie_word_embeddings": True,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                "full_attention": {"rope_type": "linear", "rope_theta": 9000.0, "factor": 8.0},
            },
        },
    ),
    "llama-wide": Family("Llama", _SIX_THREE | {"head_dim": 32}),
    "qwen3-wide": Family("Qwen3", _FOUR_ONE | {"head_dim": 48, "num_key_value_heads": 2}),
    "mistral-wide": Family("Mistral", _SIX_THREE | {"head_dim": 32, "sliding_window": 90}),
    "gemma2-wide": Family(
        "Gemma2",
        _SIX_THREE
        | {"head_dim": 32, "sliding_window": 40, "query_pre_attn_scalar": 10, "attn_logit_softcapping": 20.0},
    ),
    "deepseek-v3": Family(
        "DeepseekV3",
        _MLA
        | _rope("yarn", factor=8.0, original_max_position_embeddings=32, mscale=1.0, mscale_all_dim=0.7)
        | {"rope_interleave": True},
    ),
    "deepseek-v3-direct": Family("DeepseekV3", _MLA | {"q_lora_rank": None, "rope_interleave": True}),
    "deepseek-v2": Family("DeepseekV2", _MLA),
    "olmo2": Family("Olmo2", {k: v for k, v in _SIX_THREE.items() if k != "head_dim"}),
    "smollm3-nope": Family("SmolLM3", _SIX_THREE | {"no_rope_layers": [1, 0, 1]}),
    "phi3-fused": Family("Phi3", {k: v for k, v in _SIX_THREE.items() if k != "head_dim"}),
}  # fmt: skip


@dataclass(frozen=True)
class Tiny:
    """A saved model and what transformers answers at every position of ``tokens``."""

    folder: Path
    config: dict
    tokens: list[int]
    logits: torch.Tensor


def make(name: str) -> transformers.PreTrainedModel:
    """The model of a family: weights drawn anew, some keys made large, norm weights away from one (Gemma: zero)."""
    family = FAMILIES[name]
    config = getattr(transformers, family.kind + "Config" if family.kind != "Gemma3" else "Gemma3TextConfig")(
        **_COMMON, **family.config, attn_implementation="eager"
    )
    model = getattr(transformers, family.kind + "ForCausalLM")(config).eval().float()
    draw = torch.Generator().manual_seed(len(name))
    gemma = family.kind.startswith("Gemma")
    with torch.no_grad():
        for key, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=draw)
            if key == "model.norm.weight" and model.config.tie_word_embeddings:
                p.copy_(noise - 1 if gemma else noise)  # of both signs, or every token would answer itself
            elif "norm" in key:
                p.copy_(0.3 * noise if gemma else 1 + 0.3 * noise)
            elif p.ndim == 1:
                p.copy_(noise)
            else:
                p.copy_(family.spread * noise)
            if key.endswith("k_proj.weight"):
                p[OUTLIERS] *= 30.0
            elif key.endswith("k_proj.bias"):
                p[OUTLIERS] += 50.0
            elif "q_proj." in key and not family.kind.startswith("Deepseek"):
                _look_less(p, model.config)
    return model


def _look_less(q: torch.Tensor, config) -> None:
    """Queries of KV head 0 are a tenth as large in dims that outliers rotate through, or scores would be one-hot."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = q.view(config.num_attention_heads, head_dim, -1)[: config.num_attention_heads // config.num_key_value_heads]
    for start in (0, head_dim // 2):
        heads[:, start + OUTLIERS.start : start + OUTLIERS.stop] *= 0.1


@cache
def tiny(name: str, root: Path) -> Tiny:
    """Make, save and run a family once."""
    model = make(name)
    folder = root / name
    model.save_pretrained(folder)
    tokens = torch.randint(3, VOCAB, (TOKENS,), generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        logits = model(tokens[None]).logits[0].float()
    return Tiny(folder, model.config.to_dict(), tokens.tolist(), logits)

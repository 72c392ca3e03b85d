"""The config style of DeepSeek's own inference code (``dim``, ``n_layers``, ``inter_dim``), as Hugging Face fields.

Only names change here. Values that the reference code has as defaults and that do not shape the cache are written out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_NAMES: Final = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "inter_dim": "intermediate_size",
    "moe_inter_dim": "moe_intermediate_size",
    "n_dense_layers": "first_k_dense_replace",
    "n_activated_experts": "num_experts_per_tok",
    "n_expert_groups": "n_group",
    "n_limited_groups": "topk_group",
    "route_scale": "routed_scaling_factor",
    "score_func": "scoring_func",
    "max_seq_len": "max_position_embeddings",
}
_ORIGINAL_CONTEXT: Final = 4096
_DEFAULT_CONTEXT: Final = 4 * _ORIGINAL_CONTEXT


def is_reference(raw: Mapping[str, object]) -> bool:
    """True for a config in the reference style: it has no model type, and names its layers ``n_layers``."""
    return "model_type" not in raw and all(key in raw for key in ("dim", "n_layers", "n_heads", "kv_lora_rank"))


def translate(raw: Mapping[str, object]) -> dict[str, object]:
    """The same config in Hugging Face's names. V3 is told from V2 by its sigmoid router."""
    out: dict[str, object] = {_NAMES.get(key, key): value for key, value in raw.items()}
    sigmoid = out.get("scoring_func") == "sigmoid"
    sparse = "index_head_dim" in out
    out["model_type"] = "deepseek_v32" if sparse else "deepseek_v3" if sigmoid else "deepseek_v2"
    out["q_lora_rank"] = out.get("q_lora_rank") or None
    out.setdefault("max_position_embeddings", _DEFAULT_CONTEXT)
    out.setdefault("norm_topk_prob", sigmoid)
    mscale = raw.get("mscale", 1.0)
    out["rope_scaling"] = {
        "type": "yarn",
        "factor": raw.get("rope_factor", 40),
        "original_max_position_embeddings": raw.get("original_seq_len", _ORIGINAL_CONTEXT),
        "beta_fast": raw.get("beta_fast", 32),
        "beta_slow": raw.get("beta_slow", 1),
        "mscale": mscale,
        "mscale_all_dim": mscale,
    }
    return out

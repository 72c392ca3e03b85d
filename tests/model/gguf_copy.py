"""A tiny transformers model written as GGUF by the ``gguf`` library, rows ordered as llama.cpp's converter does."""

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm", "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b",
}  # fmt: skip


def gguf_name(name: str) -> str:
    stem, _, suffix = name.rpartition(".")
    if stem in NAMES:
        return f"{NAMES[stem]}.{suffix}"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{NAMES[rest]}.{suffix}"


def permuted(rows: np.ndarray, heads: int) -> np.ndarray:
    """Half order to neighbouring pairs, as llama.cpp's converter permutes Q and K of Llama models."""
    return rows.reshape(heads, 2, len(rows) // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def tensors_of(model, *, permute: bool) -> dict[str, np.ndarray]:
    config, out = model.config, {}
    for name, tensor in model.state_dict().items():
        values = tensor.numpy()
        if permute and ".q_proj." in name:
            values = permuted(values, config.num_attention_heads)
        if permute and ".k_proj." in name:
            values = permuted(values, config.num_key_value_heads)
        out[gguf_name(name)] = np.ascontiguousarray(values)
    if config.tie_word_embeddings:
        del out["output.weight"]
    return out


def metadata(model, arch: str) -> dict[str, int | float]:
    config = model.config
    return {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": float(config.rope_parameters["rope_theta"]),
        "rope.dimension_count": config.head_dim,
        "vocab_size": config.vocab_size,
    }


def write(path, arch: str, keys: dict, tensors: dict[str, np.ndarray], *, kind: Kind = Kind.F32) -> None:
    """Matrices in ``kind`` (F32 where a row has no whole block), vectors in F32."""
    writer = gguf.GGUFWriter(path, arch)
    for key, value in keys.items():
        (writer.add_uint32 if isinstance(value, int) else writer.add_float32)(f"{arch}.{key}", value)
    block = gguf.GGML_QUANT_SIZES[kind][0]
    for name, values in tensors.items():
        as_kind = kind if values.ndim > 1 and values.shape[-1] % block == 0 else Kind.F32
        writer.add_tensor(name, gguf.quants.quantize(values, as_kind), raw_dtype=as_kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

"""A decoder by plain loops in double precision: no cache, no blocks, one mask per query. For specs no library has."""

import torch

from kvist.spec.layer import Shared


def norm(x, weight, eps):
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight.double()


def rotated(x, rope, positions):
    """``x [tokens, heads, dim]`` with dim i and i + half turned by position * frequency."""
    if rope is None:
        return x
    angle = positions.double()[:, None] * torch.from_numpy(rope.inverse_frequencies())[None]
    cos, sin = angle.cos()[:, None] * rope.attention_factor, angle.sin()[:, None] * rope.attention_factor
    half = rope.dim // 2
    a, b, rest = x[..., :half], x[..., half : rope.dim], x[..., rope.dim :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


def may_see(layer, query, key):
    rule = layer.retention
    return key <= query and (key >= rule.first_needed(query) or key < rule.sinks)


def attention(layer, w, x, cached):
    n, heads, kv_heads, d = len(x), layer.q_heads, layer.kv_heads, layer.key_dim
    positions = torch.arange(n)
    qkv = x @ w.qkv.dequantised().double().T + (0 if w.qkv_bias is None else w.qkv_bias.double())
    q = rotated(qkv[:, : heads * d].view(n, heads, d), layer.attention.rope, positions)
    if isinstance(layer.mixer, Shared):
        k, v = cached[layer.mixer.with_layer]
    else:
        rest = qkv[:, heads * d :]
        k = rotated(rest[:, : kv_heads * d].view(n, kv_heads, d), layer.attention.rope, positions)
        v = rest[:, kv_heads * d :].view(n, kv_heads, -1)
        cached[layer.index] = (k, v)
    out = torch.zeros(n, heads, layer.value_dim, dtype=torch.float64)
    seen = torch.tensor([[may_see(layer, i, j) for j in range(n)] for i in range(n)])
    for h in range(heads):
        kv = h // (heads // kv_heads)
        scores = q[:, h] @ k[:, kv].T * layer.attention.scale
        out[:, h] = torch.softmax(torch.where(seen, scores, -torch.inf), 1) @ v[:, kv]
    return out.view(n, -1) @ w.o.dequantised().double().T


def logits(spec, weights, tokens):
    """Float64 [tokens, vocab] for pre-norm models with SiLU."""
    x = weights.embed.dequantised().double()[tokens] * spec.embedding_scale
    cached = {}
    for layer, w in zip(spec.layers, weights.layers, strict=True):
        x = x + attention(layer, w, norm(x, w.attn_norm, spec.norm_eps), cached)
        gate, up = (norm(x, w.ffn_norm, spec.norm_eps) @ w.gate_up.dequantised().double().T).chunk(2, -1)
        x = x + (torch.nn.functional.silu(gate) * up) @ w.down.dequantised().double().T
    return norm(x, weights.final_norm, spec.norm_eps) @ weights.head.dequantised().double().T

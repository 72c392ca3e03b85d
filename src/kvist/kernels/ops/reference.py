"""The judge of the dense operations: plain torch, obvious, kept for ever."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
import torch.nn.functional as nn

from kvist.errors import BadValue
from kvist.kernels.attention.base import LayerView
from kvist.kernels.attention.basis import PLAIN, Basis
from kvist.kernels.attention.tiles import write_keys, write_values
from kvist.kernels.codec.hadamard import hadamard
from kvist.kernels.matrix import GROUP, RECORD_BYTES, Matrix, integers
from kvist.kernels.ops.base import Near

_PART: Final = 16
"""Inputs that share a scale of x."""


class ReferenceOps:
    """``linear`` takes one row at a time: no other row can change its result."""

    name = "reference"

    def linear(
        self,
        x: torch.Tensor,
        weight: Matrix,
        bias: torch.Tensor | None = None,
        *,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """``x [rows, in] @ weight.T [in, out] + bias``, row by row."""
        if weight.kind in RECORD_BYTES:
            total = _packed_product(x, weight)
            return _into(out, total if bias is None else total + bias)
        out = x.new_empty(len(x), weight.outputs) if out is None else out
        floats = weight.dequantised()
        for row in range(len(x)):
            out[row] = torch.mv(floats, x[row].clone())
        return out if bias is None else out.add_(bias)

    def linear_fast(
        self,
        x: torch.Tensor,
        weight: Matrix,
        bias: torch.Tensor | None = None,
        *,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The same by one library product."""
        if weight.kind in RECORD_BYTES:
            return self.linear(x, weight, bias, out=out)
        return _into(out, nn.linear(x, weight.dequantised(), bias))

    def rms_norm(
        self, x: torch.Tensor, weight: torch.Tensor, eps: float, *, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """``x / sqrt(mean(x^2) + eps) * weight`` over the last dim."""
        return _into(out, x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight)

    def add_rms_norm(
        self, x: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor, eps: float, *, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """``x += delta`` in place, then the norm of the sum."""
        return self.rms_norm(x.add_(delta), weight, eps, out=out)

    def gated(self, gate_up: torch.Tensor, activation: str, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """``act(gate) * up`` for ``gate_up [rows, 2 * width]``, gate first."""
        gate, up = gate_up.chunk(2, dim=-1)
        return _into(out, _activate(gate, activation) * up)

    def norm_rotate_write(
        self,
        qkv: torch.Tensor,
        pool: torch.Tensor,
        view: LayerView,
        *,
        q_heads: int,
        cos: torch.Tensor | None,
        sin: torch.Tensor | None,
        positions: np.ndarray,
        block: np.ndarray,
        slot: np.ndarray,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
        eps: float,
        q_out: torch.Tensor,
        basis: Basis = PLAIN,
        near: Near | None = None,
    ) -> None:
        """Head norms, rotation, rotated Q to ``q_out``, rotated K and V to the cache. See the contract."""
        rows, kv_heads = len(qkv), view.kv_heads
        widths = [q_heads * view.key_dim, kv_heads * view.key_dim, kv_heads * view.value_dim]
        q, k, v = torch.split(qkv, widths, dim=1)
        q, k = q.reshape(rows, q_heads, view.key_dim), k.reshape(rows, kv_heads, view.key_dim)
        q = q if q_norm is None else self.rms_norm(q, q_norm, eps)
        k = k if k_norm is None else self.rms_norm(k, k_norm, eps)
        if cos is not None and sin is not None:
            at = torch.from_numpy(positions).long()
            q, k = _rotate(q, cos[at], sin[at]), _rotate(k, cos[at], sin[at])
        v = v.reshape(rows, kv_heads, view.value_dim)
        if basis.k_mean is not None and kv_heads:
            k = k - basis.k_mean
        if basis.k_rotated:
            q, k = hadamard(q), hadamard(k)
        q_out.copy_(q)
        if not kv_heads:
            return
        _write(pool, view, block, slot, k, hadamard(v) if basis.v_rotated else v)
        if near is not None:
            _write(pool, near.view, near.block, near.slot, k, hadamard(v) if basis.v_rotated else v)

    def rotate_heads(self, x: torch.Tensor) -> None:
        """``x`` float32 [rows, heads, dim] times the Hadamard matrix, in place."""
        x.copy_(hadamard(x))


def _write(
    pool: torch.Tensor, view: LayerView, block: np.ndarray, slot: np.ndarray, k: torch.Tensor, v: torch.Tensor
) -> None:
    """Rows of K and V [rows, kv_heads, dim] to where they go."""
    keep = np.flatnonzero(block >= 0)
    if len(keep):
        to_block, to_slot = torch.from_numpy(block[keep]).long(), torch.from_numpy(slot[keep]).long()
        write_keys(pool, view, to_block, to_slot, k[keep])
        write_values(pool, view, to_block, to_slot, v[keep])


def quantised(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Activations as packed weights meet them: whole numbers up to 127 [rows, parts, 16] and scales [rows, parts].

    Parts whose scale would not be a normal number count as zeros. Where an input is not finite neither is the scale,
    and the numbers are 0: every product of that part is NaN.
    """
    grouped = x.reshape(len(x), -1, _PART)
    scale = grouped.abs().amax(-1) / 127
    normal = torch.isfinite(scale) & (scale >= torch.finfo(torch.float32).tiny)
    q = torch.where(normal[..., None], torch.round(grouped * (1 / scale)[..., None]), 0.0)
    return q, torch.where(normal | ~torch.isfinite(scale), scale, 0.0)


def _packed_product(x: torch.Tensor, weight: Matrix) -> torch.Tensor:
    """Groups in ascending order, in each its two parts. Sums are whole numbers below 2**24, exact in any order."""
    q, scale = quantised(x)
    w, d, m = integers(weight, torch.arange(weight.outputs))
    total = x.new_zeros(len(x), weight.outputs)
    parts = GROUP // _PART
    for g in range(d.shape[1]):
        scaled_sum = x.new_zeros(len(x))
        for i in range(parts):
            part, inputs = g * parts + i, slice(i * _PART, (i + 1) * _PART)
            total += (q[:, part] @ w[:, g, inputs].t()) * d[:, g] * scale[:, part, None]
            scaled_sum += scale[:, part] * q[:, part].sum(-1)
        total += m[:, g] * scaled_sum[:, None]
    return total


def _into(out: torch.Tensor | None, value: torch.Tensor) -> torch.Tensor:
    return value if out is None else out.copy_(value)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the leading dims of ``x [rows, heads, dim]`` by ``cos``/``sin`` [rows, rotary_dim / 2], halves paired."""
    half = cos.shape[1]
    cos, sin = cos[:, None], sin[:, None]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)


def _activate(x: torch.Tensor, activation: str) -> torch.Tensor:
    match activation:
        case "silu":
            return nn.silu(x)
        case "gelu_tanh":
            return nn.gelu(x, approximate="tanh")
        case "gelu":
            return nn.gelu(x)
        case "relu":
            return nn.relu(x)
        case _:
            raise BadValue("activation", activation, "silu, gelu_tanh, gelu or relu")

"""The few dense operations of a decoder layer, each with an obvious torch reference and a fused native form.

All activations are float32, contiguous, [rows, width]. Weights are [out, in] (``kvist.kernels.matrix``).
Every op writes into ``out`` when given (no allocation in the hot path) and returns it.

``linear`` promises the *invariant* numerics class: each output accumulates along K in one order for any number of
rows. ``linear_fast`` may use a library GEMM: bounded, not bit-equal across row counts.

Packed weights (``w4``, ``w8``) are multiplied in whole numbers, by both: each row's inputs are brought to 8 bits, a
scale for 16 of them, and the sum over these is exact. A row's result depends on that row alone; one with an infinity
or a NaN becomes NaN. Against the product of unpacked floats an output differs by up to the sum of |weight| * scale / 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from kvist.kernels.attention.base import LayerView
from kvist.kernels.attention.basis import PLAIN, Basis
from kvist.kernels.matrix import Matrix


@dataclass(frozen=True, slots=True)
class Near:
    """Where the exact copies of a step's rows go, in a format with cells: int32 [rows] each, as for packed rows."""

    view: LayerView
    block: np.ndarray
    slot: np.ndarray


class Ops(Protocol):
    """One implementation of the dense operations."""

    name: str

    def linear(
        self,
        x: torch.Tensor,
        weight: Matrix,
        bias: torch.Tensor | None = None,
        *,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """``x [rows, in] @ weight.T [in, out] + bias`` in the invariant class."""
        ...

    def linear_fast(
        self,
        x: torch.Tensor,
        weight: Matrix,
        bias: torch.Tensor | None = None,
        *,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The same in the fast class: whichever of the implementations is quicker for this many rows."""
        ...

    def rms_norm(
        self, x: torch.Tensor, weight: torch.Tensor, eps: float, *, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """RMS norm over the last dim of ``x [rows, width]``. The weight already holds any +1 offset."""
        ...

    def add_rms_norm(
        self, x: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor, eps: float, *, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """``x += delta`` in place, then the norm of the sum."""
        ...

    def gated(self, gate_up: torch.Tensor, activation: str, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """``act(gate) * up`` for ``gate_up [rows, 2 * width]`` (gate first): silu, gelu_tanh, gelu, relu."""
        ...

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
        """Head norms, rotation and cache write of one layer.

        ``qkv [rows, q_heads*key_dim + kv_heads*key_dim + kv_heads*value_dim]``: with ``q_norm`` / ``k_norm``
        ([key_dim]) heads are RMS-normed first; with ``cos``/``sin`` (float32 [positions, rotary_dim / 2]) the leading
        ``rotary_dim`` dims are rotated at ``positions`` int32 [rows], dim i with dim i + rotary_dim/2. Rotated Q goes
        to ``q_out [rows, q_heads, key_dim]``; rotated K and V go to slot ``slot[r]`` of block ``block[r]`` (both
        int32; a negative block means do not write), in the view's layout and element types.

        ``basis`` is what Q, K and V are brought to after that; ``near`` a second place to which K and V go.
        """
        ...

    def rotate_heads(self, x: torch.Tensor) -> None:
        """Rotate ``x`` float32 [rows, heads, dim] by the Hadamard matrix of its dim (``attention.basis``), in place."""
        ...

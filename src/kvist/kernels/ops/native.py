"""The dense operations in C++. This file checks tensors and passes addresses; ``csrc/`` does the work."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import Final

import numpy as np
import torch

from kvist.errors import BadValue
from kvist.kernels.attention.base import LayerView
from kvist.kernels.attention.basis import PLAIN, Basis
from kvist.kernels.codec.hadamard import LEAST_BLOCK
from kvist.kernels.matrix import GROUP, Matrix
from kvist.kernels.native_module import Views, load
from kvist.kernels.ops.base import Near

WEIGHT_ELEMENT: Final = {"f32": 0, "f16": 1, "bf16": 2, "w8": 8, "w4": 9}
"""Kinds of a ``Matrix`` as ``csrc/table.h`` numbers them."""
ACTIVATION: Final = {"silu": 0, "gelu_tanh": 1, "gelu": 2, "relu": 3}
_NEVER: Final = 1 << 62


class NativeOps:
    """One implementation of the dense operations."""

    name = "native"

    def __init__(self) -> None:
        self._native = load()
        self._views = Views()

    def linear(
        self,
        x: torch.Tensor,
        weight: Matrix,
        bias: torch.Tensor | None = None,
        *,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """``x [rows, in] @ weight.T [in, out] + bias`` in the invariant class."""
        rows, width = x.shape
        n, k = weight.outputs, weight.inputs
        if out is None:
            out = torch.empty((rows, n), dtype=torch.float32, device="cpu")
        element = WEIGHT_ELEMENT.get(weight.kind)
        if (
            element is None
            or k != width
            or out.shape != (rows, n)
            or x.dtype is not torch.float32
            or out.dtype is not torch.float32
            or not (x.is_contiguous() and out.is_contiguous() and weight.readable)
        ):
            raise _refused(x, weight, out)
        address = 0 if bias is None else _float(bias, (n,))
        self._native.linear(x.data_ptr(), weight.data.data_ptr(), address, out.data_ptr(), rows, k, n, element)
        return out

    def linear_fast(
        self,
        x: torch.Tensor,
        weight: Matrix,
        bias: torch.Tensor | None = None,
        *,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The native form, or from ``library_rows()`` rows on the library's product."""
        if weight.kind != "f32" or len(x) < library_rows():
            return self.linear(x, weight, bias, out=out)
        if bias is None:
            return torch.mm(x, weight.data.t(), out=out)
        return torch.addmm(bias, x, weight.data.t(), out=out)

    def rms_norm(
        self, x: torch.Tensor, weight: torch.Tensor, eps: float, *, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """RMS norm over the last dim of ``x [rows, width]``."""
        rows, width = shape = x.shape
        if out is None:
            out = torch.empty_like(x)
        self._native.rms_norm(_float(x, shape), _float(weight, (width,)), eps, _float(out, shape), rows, width)
        return out

    def add_rms_norm(
        self, x: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor, eps: float, *, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """``x += delta`` in place, then the norm of the sum."""
        rows, width = shape = x.shape
        if out is None:
            out = torch.empty_like(x)
        self._native.add_rms_norm(
            _float(x, shape), _float(delta, shape), _float(weight, (width,)), eps, _float(out, shape), rows, width
        )
        return out

    def gated(self, gate_up: torch.Tensor, activation: str, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """``act(gate) * up`` for ``gate_up [rows, 2 * width]``, gate first."""
        if activation not in ACTIVATION:
            raise BadValue("activation", activation, f"one of {', '.join(ACTIVATION)}")
        rows, both = shape = gate_up.shape
        width = both // 2
        if out is None:
            out = torch.empty((rows, width), dtype=torch.float32, device="cpu")
        self._native.gated(_float(gate_up, shape), ACTIVATION[activation], _float(out, (rows, width)), rows, width)
        return out

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
        rows = len(qkv)
        width = (q_heads + view.kv_heads) * view.key_dim + view.kv_heads * view.value_dim
        head = (view.key_dim,)
        known_positions, half = (0, 0) if cos is None else cos.shape
        blocks, block_bytes = pool.shape
        targets = [(self._views.of(view), block, slot)]
        if near is not None:
            targets.append((self._views.of(near.view), near.block, near.slot))
        self._native.norm_rotate_write(
            targets,
            _float(qkv, (rows, width)),
            pool.data_ptr(),
            blocks,
            block_bytes,
            q_heads,
            0 if cos is None else _float(cos, (known_positions, half)),
            0 if sin is None else _float(sin, (known_positions, half)),
            known_positions,
            half,
            positions,
            0 if q_norm is None else _float(q_norm, head),
            0 if k_norm is None else _float(k_norm, head),
            eps,
            _float(q_out, (rows, q_heads, view.key_dim)),
            rows,
            basis.k_rotated,
            basis.v_rotated,
            0 if basis.k_mean is None or not view.kv_heads else _float(basis.k_mean, (view.kv_heads, view.key_dim)),
        )

    def rotate_heads(self, x: torch.Tensor) -> None:
        """``x`` float32 [rows, heads, dim] times the Hadamard matrix, in place."""
        rows, heads, dim = shape = x.shape
        if dim % LEAST_BLOCK:
            raise BadValue("dim", dim, f"a multiple of {LEAST_BLOCK}")
        self._native.hadamard(_float(x, shape), rows * heads, dim)


@cache
def library_rows() -> int:
    """Rows from which ``linear_fast`` uses the library's product: 32 where that is clearly quicker, else never.

    Measured once in a process, on 256 rows of a layer of middling size: whether a BLAS beats the native form depends
    on the processor and on the vendor's library (on an AMD EPYC 9005, MKL takes 1.2 times as long as the AVX2 form).
    """
    native = NativeOps()
    x, weight, out = torch.randn(256, 576), Matrix.of(torch.randn(1536, 576)), torch.empty(256, 1536)
    own = _best_s(lambda: native.linear(x, weight, out=out))
    library = _best_s(lambda: torch.mm(x, weight.data.t(), out=out))
    return 32 if library < 0.87 * own else _NEVER


def _best_s(work: Callable[[], object]) -> float:
    times = []
    for _ in range(4):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times)


def _float(t: torch.Tensor, shape: tuple[int, ...]) -> int:
    """Address of a contiguous float32 tensor of that shape."""
    if t.dtype is not torch.float32 or t.shape != shape or not t.is_contiguous():
        raise BadValue("tensor", (tuple(t.shape), t.dtype), f"contiguous float32 of shape {tuple(shape)}")
    return t.data_ptr()


def _refused(x: torch.Tensor, weight: Matrix, out: torch.Tensor) -> BadValue:
    kinds = ", ".join(WEIGHT_ELEMENT)
    shown = (tuple(x.shape), x.dtype), (weight.kind, weight.outputs, weight.inputs), (tuple(out.shape), out.dtype)
    wanted = (
        f"contiguous float32 x [rows, in] and out [rows, outputs], weight [outputs, in] in {kinds}; "
        f"packed ones with all their records, on a multiple of 64 bytes, inputs a multiple of {GROUP}"
    )
    return BadValue("x, weight, out", shown, wanted)

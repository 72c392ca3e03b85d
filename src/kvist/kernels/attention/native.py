"""Attention in C++ over the block layout: ``csrc/`` does the work, this file checks the tensors and keeps plans."""

from __future__ import annotations

from typing import Any, Final

import torch

from kvist.errors import BadValue
from kvist.kernels.attention.base import Carry, LayerView, WorkList
from kvist.kernels.native_module import Views, load, supports

_KEPT_PLANS: Final = 32
"""Work lists of a step that may alternate: one for each group, and a step runs through all its layers."""


class NativeAttention:
    """Items are cut into (row tile, KV head) jobs, jobs spread over threads, cell results merged in order.

    One instance serves one thread at a time.
    """

    name = "native"

    def __init__(self) -> None:
        self._views = Views()
        self._plans: dict[int, tuple[WorkList, Any]] = {}  # by id: keeping the list keeps its id from being given away

    def supports(self, view: LayerView) -> bool:
        """Every K/V mix of element types with heads of up to 512; not latent layers."""
        return supports(view)

    def __call__(
        self,
        q: torch.Tensor,
        pool: torch.Tensor,
        view: LayerView,
        work: WorkList,
        *,
        scale: float,
        softcap: float,
        out: torch.Tensor,
        carry: Carry | None = None,
    ) -> None:
        """Fill ``out`` float32 [rows, q_heads, value_dim] from ``q`` float32 [rows, q_heads, key_dim]."""
        plan = (self._plans.get(id(work)) or self._prepare(work))[1]
        rows, q_heads, key_dim = q.shape
        if (
            q.dtype is not torch.float32
            or out.dtype is not torch.float32
            or key_dim != view.key_dim
            or q_heads < 1
            or q_heads % view.kv_heads
            or rows != len(work.row_end)
            or out.shape != (rows, q_heads, view.value_dim)
            or not (q.is_contiguous() and out.is_contiguous())
        ):
            raise BadValue("q, out", (tuple(q.shape), q.dtype, tuple(out.shape), out.dtype), _expected(view, work))
        blocks, block_bytes = pool.shape
        twin = self._views.of(view)
        state, first, last = 0, True, True
        if carry is not None:
            state, first, last = _state(carry, rows, q_heads), carry.first, carry.last
        plan.run(
            twin,
            q.data_ptr(),
            pool.data_ptr(),
            blocks,
            block_bytes,
            q_heads,
            scale,
            softcap,
            out.data_ptr(),
            state,
            first,
            last,
        )

    def _prepare(self, work: WorkList) -> tuple[WorkList, Any]:
        if len(self._plans) >= _KEPT_PLANS:
            del self._plans[next(iter(self._plans))]
        kept = self._plans[id(work)] = (work, plan_of(work))
        return kept


def plan_of(work: WorkList) -> Any:
    """The work list made ready to run: a native ``Plan``, with arrays of its own."""
    return load().Plan(
        work.item_position,
        work.item_block_start,
        work.blocks,
        work.item_row_start,
        work.item_rows,
        work.row_first,
        work.row_end,
        work.row_sinks,
    )


def _state(carry: Carry, rows: int, q_heads: int) -> int:
    """Address of the sums so far."""
    state = carry.state
    if state.dtype is not torch.float32 or state.shape != (rows, q_heads, 2) or not state.is_contiguous():
        raise BadValue("state", (tuple(state.shape), state.dtype), f"contiguous float32 [{rows}, {q_heads}, 2]")
    return state.data_ptr()


def _expected(view: LayerView, work: WorkList) -> str:
    return (
        f"contiguous float32 q [{len(work.row_end)}, heads, {view.key_dim}] and out [.., .., {view.value_dim}], "
        f"heads a multiple of {view.kv_heads}"
    )

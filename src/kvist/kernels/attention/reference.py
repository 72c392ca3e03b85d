"""The judge: attention in plain torch, one row at a time. Slow, obvious, kept for ever."""

from __future__ import annotations

import numpy as np
import torch

from kvist.kernels.attention.base import Carry, LayerView, WorkList
from kvist.kernels.attention.tiles import read_keys, read_values
from kvist.spec.layout import CELL_TOKENS

Partial = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""(max, sum, weighted V) of one cell: [q_heads], [q_heads], [q_heads, value_dim]. Nothing seen: -inf, 0, 0."""


class ReferenceAttention:
    """Every row meets every cell as one product of fixed shape, so no other row can change its result.

    A cell is laid out as [kv_heads, 512, dim] with slots that no block covers left at zero; slots outside a row's
    limits are taken out with ``torch.where`` before they are used, so NaN in them does no harm. NaN inside the limits
    comes out as NaN.
    """

    name = "reference"

    def supports(self, view: LayerView) -> bool:
        """Everything."""
        return True

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
        partials: dict[tuple[int, int], Partial] = {}
        for item in range(len(work.item_position)):
            k, v = _read_item(pool, view, work, item)
            rows = _slice(work.item_rows, work.item_row_start, item)
            for row, seen in zip(rows.tolist(), _seen(work, item, rows, view), strict=True):
                partials[row, item] = _attend(q[row].clone(), k, v, seen, scale=scale, softcap=softcap)
        for row in range(work.rows):
            items = _slice(work.row_items, work.row_item_start, row).tolist()
            seen = [partials[row, item] for item in items]
            if carry is not None and not carry.first:
                seen.insert(0, (carry.state[row, :, 0], carry.state[row, :, 1], out[row].clone()))
            top, total, weighted = _merge(seen, out[row])
            if carry is not None:
                carry.state[row, :, 0], carry.state[row, :, 1] = top, total
            last = carry is None or carry.last
            out[row] = torch.where(total[:, None] == 0, 0.0, weighted / total[:, None]) if last else weighted


def _slice(values: np.ndarray, starts: np.ndarray, i: int) -> np.ndarray:
    return values[starts[i] : starts[i + 1]]


def _cell_start(work: WorkList, item: int) -> int:
    return int(work.item_position[item]) // CELL_TOKENS * CELL_TOKENS


def _read_item(pool: torch.Tensor, view: LayerView, work: WorkList, item: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The cell of an item as float32 K [kv_heads, 512, key_dim] and V [kv_heads, 512, value_dim]."""
    ids = torch.from_numpy(_slice(work.blocks, work.item_block_start, item)).long()
    first = int(work.item_position[item]) - _cell_start(work, item)
    span = slice(first, first + len(ids) * view.tokens_per_block)
    k = torch.zeros(view.kv_heads, CELL_TOKENS, view.key_dim)
    k[:, span] = read_keys(pool, view, ids).transpose(0, 1).reshape(view.kv_heads, -1, view.key_dim)
    if view.v_offset_bytes < 0:
        return k, k[..., : view.value_dim].contiguous()
    v = torch.zeros(view.kv_heads, CELL_TOKENS, view.value_dim)
    v[:, span] = read_values(pool, view, ids).transpose(0, 1).reshape(view.kv_heads, -1, view.value_dim)
    return k, v


def _seen(work: WorkList, item: int, rows: np.ndarray, view: LayerView) -> torch.Tensor:
    """Slots of the cell that each of ``rows`` may see and the item's blocks hold: bool [rows, 512]."""
    position = _cell_start(work, item) + np.arange(CELL_TOKENS)
    begin = int(work.item_position[item])
    end = begin + len(_slice(work.blocks, work.item_block_start, item)) * view.tokens_per_block
    near = (position >= work.row_first[rows, None]) & (position < work.row_end[rows, None])
    sink = position < work.row_sinks[rows, None]
    return torch.from_numpy((position >= begin) & (position < end) & (near | sink))


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor, *, scale: float, softcap: float
) -> Partial:
    """One row ``q [q_heads, key_dim]`` over one cell."""
    q_heads, kv_heads = q.shape[0], k.shape[0]
    grouped = q.view(kv_heads, q_heads // kv_heads, -1)  # query head h reads KV head h // (q_heads / kv_heads)
    scores = torch.bmm(grouped, k.transpose(1, 2)).view(q_heads, CELL_TOKENS) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    scores = torch.where(seen, scores, -torch.inf)
    top = scores.amax(dim=1)
    weights = torch.where(seen, torch.exp(scores - top[:, None]), 0.0)
    safe_v = torch.where(seen[:, None], v, 0.0)
    weighted = torch.bmm(weights.view(kv_heads, -1, CELL_TOKENS), safe_v)
    return top, weights.sum(dim=1), weighted.view(q_heads, -1)


def _merge(partials: list[Partial], like: torch.Tensor) -> Partial:
    """Log-sum-exp over cells in order, for a row ``like [q_heads, value_dim]``. A row that saw nothing: zeros."""
    total, weighted = like.new_zeros(len(like)), torch.zeros_like(like)
    if not partials:
        return torch.full_like(total, -torch.inf), total, weighted
    top = torch.stack([p[0] for p in partials]).amax(dim=0)
    for cell_top, cell_sum, cell_weighted in partials:
        share = torch.where(cell_sum == 0, 0.0, torch.exp(cell_top - top))
        total += share * cell_sum
        weighted += share[:, None] * cell_weighted
    return top, total, weighted

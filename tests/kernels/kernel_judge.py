"""An independent judge: attention by plain loops in double precision, and a cache packed byte by byte.

Nothing here uses the project's kernels or tile views; only the layout as its documentation states it.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from kvist.kernels.attention.base import LayerView, WorkList

TORCH = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
BITS = {"f32": np.uint32, "f16": np.uint16, "bf16": np.uint16}
ISAS = ["portable", "avx2", "avx512", "avx512vnni"]


def rounded(x: np.ndarray, element: str) -> tuple[np.ndarray, np.ndarray]:
    """Raw bits in the element type, and the values they stand for."""
    t = torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32)).to(TORCH[element])
    bits = t.view(torch.int32 if element == "f32" else torch.int16).numpy().view(BITS[element])
    return bits, t.double().numpy()


def view_of(kv_heads, key_dim, value_dim, tokens, k_element="f16", v_element="f16", *, layer=1, layers=2) -> LayerView:
    """Layer ``layer`` of ``layers`` in a block, tiles on 64-byte boundaries."""
    k_bytes = -(-tokens * key_dim * np.dtype(BITS[k_element]).itemsize // 64) * 64
    v_bytes = -(-tokens * value_dim * np.dtype(BITS[v_element]).itemsize // 64) * 64
    base = layer * kv_heads * (k_bytes + v_bytes)
    return LayerView(
        k_offset_bytes=base,
        v_offset_bytes=base + k_bytes,
        head_bytes=k_bytes + v_bytes,
        kv_heads=kv_heads,
        key_dim=key_dim,
        value_dim=value_dim,
        tokens_per_block=tokens,
        k_element=k_element,
        v_element=v_element,
    )


def block_bytes(view: LayerView, layers=2) -> int:
    return layers * view.kv_heads * view.head_bytes


def new_pool(view: LayerView, blocks: int) -> torch.Tensor:
    """A pool in which every byte is 0xFF: NaN in every element type."""
    raw = torch.full((blocks * block_bytes(view) + 64,), 0xFF, dtype=torch.uint8)
    skip = -raw.data_ptr() % 64
    return raw[skip : skip + blocks * block_bytes(view)].view(blocks, block_bytes(view))


def element_address(view, block, head, slot, dim, stream, pool_block_bytes) -> int:
    """Byte address of one number: K tiles are [T / 16][dim][16], V tiles [T][dim]."""
    base = block * pool_block_bytes + head * view.head_bytes
    if stream == "k":
        index = (slot // 16) * view.key_dim * 16 + dim * 16 + slot % 16
        return base + view.k_offset_bytes + index * np.dtype(BITS[view.k_element]).itemsize
    return base + view.v_offset_bytes + (slot * view.value_dim + dim) * np.dtype(BITS[view.v_element]).itemsize


def addresses(view, block, slot, stream, width) -> np.ndarray:
    """[kv_heads, dim] byte addresses of one token."""
    dims = view.key_dim if stream == "k" else view.value_dim
    return np.array(
        [[element_address(view, block, h, slot, d, stream, width) for d in range(dims)] for h in range(view.kv_heads)]
    )


@cache
def addresses_in_block(view, stream, width) -> np.ndarray:
    """[slots, kv_heads, dim] byte addresses inside a block."""
    return np.stack([addresses(view, 0, slot, stream, width) for slot in range(view.tokens_per_block)])


@dataclass
class Sequence:
    """K [tokens, kv_heads, key_dim] and V as the cache rounds them, and the block table that holds them."""

    k: np.ndarray
    v: np.ndarray
    table: np.ndarray


def store_sequence(rng, pool, view, table, tokens, *, spread=1.0, from_token=0) -> Sequence:
    """Random K and V written through ``table``; tokens before ``from_token`` are drawn but left to others."""
    k_bits, k = rounded(rng.normal(0, spread, (tokens, view.kv_heads, view.key_dim)), view.k_element)
    v_bits, v = rounded(rng.normal(0, 1, (tokens, view.kv_heads, view.value_dim)), view.v_element)
    size, width = view.tokens_per_block, pool.shape[1]
    raw = pool.numpy().reshape(-1)
    token = np.arange(from_token, tokens)
    block_start = np.asarray(table, dtype=np.int64)[token // size] * width
    for stream, bits in (("k", k_bits), ("v", v_bits)):
        at = block_start[:, None, None] + addresses_in_block(view, stream, width)[token % size]
        each_byte = at[..., None] + np.arange(bits.dtype.itemsize)
        raw[each_byte] = bits[token].view(np.uint8).reshape(each_byte.shape)
    return Sequence(k, v, table)


def plain_attention(q, sequence: Sequence, positions, *, scale, softcap=0.0, tiled_heads=False):
    """[rows, q_heads, value_dim] in double precision: row r reads ``positions[r]`` of its sequence."""
    rows, q_heads, _ = q.shape
    kv_heads = sequence.k.shape[1]
    out = np.zeros((rows, q_heads, sequence.v.shape[2]))
    for r in range(rows):
        seen = np.asarray(positions[r], dtype=int)
        for h in range(q_heads):
            kv = h % kv_heads if tiled_heads else h // (q_heads // kv_heads)
            scores = scale * (sequence.k[seen, kv] @ q[r, h].astype(float))
            if softcap:
                scores = softcap * np.tanh(scores / softcap)
            if len(seen):
                weights = np.exp(scores - scores.max())
                out[r, h] = (weights / weights.sum()) @ sequence.v[seen, kv]
    return out


def work_list(runs, rows) -> WorkList:
    """``runs``: (first position, block ids, rows); ``rows``: (first, end, sinks) of each row."""

    def csr(parts):
        return np.cumsum([0, *[len(p) for p in parts]]).astype(np.int32)

    def flat(parts):
        return np.array([x for p in parts for x in p], dtype=np.int32)

    order = np.argsort([r[0] for r in runs], kind="stable")
    items = [[i for i in order if row in runs[i][2]] for row in range(len(rows))]
    limits = np.array(rows, dtype=np.int32).reshape(-1, 3)
    return WorkList(
        item_position=np.array([r[0] for r in runs], dtype=np.int32),
        item_block_start=csr([r[1] for r in runs]),
        blocks=flat([r[1] for r in runs]),
        item_row_start=csr([r[2] for r in runs]),
        item_rows=flat([r[2] for r in runs]),
        row_first=np.ascontiguousarray(limits[:, 0]),
        row_end=np.ascontiguousarray(limits[:, 1]),
        row_sinks=np.ascontiguousarray(limits[:, 2]),
        row_item_start=csr(items),
        row_items=flat(items),
    )


def cells(table, end, rows, tokens_per_block, *, start=0):
    """Runs of one sequence's blocks on the 512-position grid, up to position ``end``."""
    per_cell = 512 // tokens_per_block
    runs = []
    for cell in range(start // 512, -(-end // 512)):
        first = max(cell * per_cell, start // tokens_per_block)
        last = min((cell + 1) * per_cell, -(-end // tokens_per_block))
        runs.append((first * tokens_per_block, [int(b) for b in table[first:last]], list(rows)))
    return runs


def subset(work: WorkList, keep) -> WorkList:
    """The same items with only the rows ``keep``, renumbered."""
    new = {r: i for i, r in enumerate(keep)}
    runs = []
    for i in range(len(work.item_position)):
        rows = [new[r] for r in work.item_rows[work.item_row_start[i] : work.item_row_start[i + 1]] if r in new]
        if rows:
            blocks = work.blocks[work.item_block_start[i] : work.item_block_start[i + 1]]
            runs.append((int(work.item_position[i]), blocks.tolist(), rows))
    return work_list(runs, [(work.row_first[r], work.row_end[r], work.row_sinks[r]) for r in keep])

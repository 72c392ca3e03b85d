"""vLLM's groups for compressed attention: a window, compressed rows and half-made rows, in blocks of their own lengths.

Sources: ``vllm/models/deepseek_v4/compressor.py``, ``vllm/v1/attention/backends/mla/sparse_swa.py``,
``vllm/v1/core/kv_cache_utils.py`` (version 0.27). Every layer keeps its window in blocks of 64 tokens. A layer that
compresses also keeps compressed rows (and an indexer's), in blocks of 256 tokens, and rows in the making, in f32, in
blocks of 4 tokens where windows of two rows overlap (ratio 4), of 8 elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvist.planner.engines.base import Run
from kvist.planner.engines.vllm_pages import Page, index_row_bytes
from kvist.spec.layer import Compressed, LayerSpec
from kvist.units import ceil_div, round_up

BLOCK_TOKENS: Final = 256
WINDOW_BLOCK_TOKENS: Final = 64
ALIGN_BYTES: Final = 576
OVERLAPPED_RATIO: Final = 4
_STATE_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Tuples:
    """Pages of layers that share a block table, and how many layers have the commonest size of page."""

    pages: tuple[tuple[int, Page], ...]

    @property
    def count(self) -> int:
        """Layers of the commonest page size: how many *layer tuples* the pages make."""
        sizes = [page.bytes for _, page in self.pages]
        return max(sizes.count(size) for size in set(sizes))

    def dealt(self, per_group: int) -> list[tuple[tuple[int, Page], ...]]:
        """The pages in groups of at most ``per_group`` tuples, dealt out in turn."""
        n = ceil_div(self.count, per_group)
        layers = list(dict.fromkeys(layer for layer, _ in self.pages))
        return [tuple(p for p in self.pages if p[0] in set(layers[i::n])) for i in range(n)]


def compresses(layers: tuple[LayerSpec, ...]) -> bool:
    """True when these rules apply."""
    return any(isinstance(layer.mixer, Compressed) for layer in layers)


def compressed_groups(layers: tuple[LayerSpec, ...], run: Run) -> tuple[list[tuple[tuple[int, Page], ...]], int]:
    """Groups of (layer, page), and the bytes of a block as the check of the longest request counts them.

    The pool itself overlays groups and needs only the largest of them; the check adds up one page of each size, padded.
    """
    kinds: dict[tuple[str, int, int], list[tuple[int, Page]]] = {}
    for layer in layers:
        for page in _pages(layer, run):
            kinds.setdefault((page.kind, page.block_tokens, page.limit_tokens), []).append((layer.index, page))
    full = next((Tuples(tuple(p)) for key, p in kinds.items() if key[0] == "full"), None)
    windows = [Tuples(tuple(p)) for key, p in kinds.items() if key[0] != "full"]
    if full is None:
        return [w.pages for w in windows], sum(page.bytes for _, page in windows[0].pages)
    size = _fewest_empty([full.count, *(w.count for w in windows)])
    groups = [full.pages, *(group for w in windows for group in w.dealt(size))]
    return groups, size * sum({page.bytes for _, page in full.pages})


def _fewest_empty(counts: list[int]) -> int:
    """Tuples per group that leave the fewest places empty; not below the first count, the larger of equals."""
    sizes = range(counts[0], max(counts) + 1) or range(counts[0], counts[0] + 1)
    return min(sizes, key=lambda size: (sum(round_up(n, size) - n for n in counts), -size))


def _pages(layer: LayerSpec, run: Run) -> list[Page]:
    """Everything one layer keeps, by block length."""
    mixer = layer.mixer
    assert isinstance(mixer, Compressed)
    packed = run.kv_format.k.bits == 8
    row = _packed_row_bytes(layer) if packed else run.kv_format.k.row_bytes(layer.key_dim)

    def page(kind: str, block: int, n_bytes: int, limit: int = 0) -> Page:
        whole = round_up(n_bytes, ALIGN_BYTES) if packed else n_bytes
        return Page("full" if kind == "full" else "window", block, whole, limit)

    out = [page("window", WINDOW_BLOCK_TOKENS, WINDOW_BLOCK_TOKENS * row, mixer.window_tokens)]
    if not mixer.ratio:
        return out
    block = run.block_tokens or BLOCK_TOKENS
    out.append(page("full", block, block // mixer.ratio * row))
    overlap = 2 if mixer.ratio == OVERLAPPED_RATIO else 1
    making, limit = (4 if overlap == 2 else 8), overlap * mixer.ratio
    out.append(page("window", making, making * 2 * overlap * layer.key_dim * _STATE_BYTES, limit))
    if mixer.index_dim:
        out.append(page("full", block, block // mixer.ratio * index_row_bytes(mixer.index_dim)))
        out.append(page("window", making, making * 2 * overlap * mixer.index_dim * _STATE_BYTES, limit))
    return out


def _packed_row_bytes(layer: LayerSpec) -> int:
    """A row in fp8 with a byte of scale for every 64 elements (in eights), the rotated part in 16 bits: 584 for 512."""
    rope = layer.attention.rope.dim if layer.attention.rope else 64
    plain = layer.key_dim - rope
    return plain + 2 * rope + round_up(ceil_div(plain, 64), 8)

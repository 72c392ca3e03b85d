"""What one decoder layer is, in numbers.

A layer's *mixer* says which tokens it can see and what it must keep for them; everything the planner, the cost model,
the block layout and the decoder need to know about memory follows from it. Callers ask for answers (``cache_parts``,
``usable_prefix``, ``can_rollback``) instead of asking which mixer it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from kvist.spec.ffn import Ffn, Router
from kvist.spec.format import NEAR_TOKENS, SINK_TOKENS, KVFormat
from kvist.spec.mixer import (
    Chunked,
    Compressed,
    Full,
    Latent,
    Mixer,
    NoMixer,
    Recurrent,
    Shared,
    Window,
)
from kvist.spec.retention import Retention, compressed_reads
from kvist.spec.rope import Rope

__all__ = [
    "Attention",
    "CachePart",
    "Chunked",
    "Compressed",
    "Ffn",
    "Full",
    "Latent",
    "LayerSpec",
    "Mixer",
    "NoMixer",
    "Recurrent",
    "Retention",
    "Router",
    "Shared",
    "StreamRow",
    "Window",
]


@dataclass(frozen=True, slots=True)
class Attention:
    """What the attention of a layer computes, beyond which tokens it sees.

    ``scale`` multiplies q.k; ``softcap`` is ``c`` in ``c * tanh(x / c)`` on scores (0: none); ``qk_norm`` applies an
    RMS norm to q and k before rotation: per head (``head``) or over the whole projection (``full``).
    MLA only: ``q_rank`` (0: q is projected directly), ``nope_dim`` (un-rotated part of a query head).
    Sparse attention: a query reads its ``top_rows`` best rows only (0: all), found by ``index_heads`` small heads.
    """

    scale: float = 1.0
    rope: Rope | None = None
    softcap: float = 0.0
    qk_norm: Literal["none", "head", "full"] = "none"
    qkv_bias: bool = False
    out_bias: bool = False
    sink_logits: bool = False
    q_rank: int = 0
    nope_dim: int = 0
    top_rows: int = 0
    index_heads: int = 0


@dataclass(frozen=True, slots=True)
class StreamRow:
    """One stream a layer keeps per token and KV head: ``dim`` elements of the format's K or V type."""

    name: Literal["k", "v", "latent", "index"]
    dim: int
    side: Literal["k", "v"]


@dataclass(frozen=True, slots=True)
class CachePart:
    """Rows of one layer that share a retention rule: what a layer group of the block layout is made of.

    Nearly every layer has one part. A ``Compressed`` layer has two: its window, and rows that stand for
    ``every_tokens`` tokens each and are all kept. In a format with cells a part comes as two: all its rows packed, and
    those near a query ``exact``.
    """

    retention: Retention
    heads: int
    rows: tuple[StreamRow, ...]
    every_tokens: int = 1
    exact: bool = False

    def format_in(self, fmt: KVFormat) -> KVFormat:
        """The format of these rows in a cache of that format."""
        return fmt.exact if self.exact else fmt

    def row_bytes(self, fmt: KVFormat) -> int:
        """Bytes of one row of every stream and head, scales included."""
        fmt = self.format_in(fmt)
        side = {"k": fmt.k, "v": fmt.v}
        return self.heads * sum(side[r.side].row_bytes(r.dim) for r in self.rows)

    def held_bytes(self, n_tokens: int, fmt: KVFormat) -> int:
        """Bytes of rows in memory while the last of ``n_tokens`` is computed."""
        return self.retention.held_tokens(n_tokens) // self.every_tokens * self.row_bytes(fmt)


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One decoder layer. Head counts and dims are this layer's own; nothing is inherited from a neighbour.

    ``extra_elements`` counts weights that follow from no other field (recurrent mixers, indexers, gates).
    """

    index: int
    mixer: Mixer
    q_heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    attention: Attention = field(default_factory=Attention)
    ffn: Ffn | None = None
    norms: Literal["pre", "sandwich", "post"] = "pre"
    extra_elements: int = 0

    @property
    def owns_cache(self) -> bool:
        """True when this layer keeps per-token rows of its own."""
        return isinstance(self.mixer, Full | Window | Chunked | Latent | Compressed)

    @property
    def retention(self) -> Retention:
        """Which positions must be kept for this layer's own queries."""
        match self.mixer:
            case Window(size, sinks):
                return Retention(window_tokens=size, sinks=sinks)
            case Shared(_, window) if window is not None:
                return Retention(window_tokens=window)
            case Chunked(size):
                return Retention(chunk_tokens=size)
            case Compressed(window, 0):
                return Retention(window_tokens=window)
            case _:
                return Retention()

    @property
    def cache_heads(self) -> int:
        """KV heads in the store: an MLA layer keeps one latent row whatever its head count."""
        if not self.owns_cache:
            return 0
        return 1 if isinstance(self.mixer, Latent | Compressed) else self.kv_heads

    @property
    def stream_rows(self) -> tuple[StreamRow, ...]:
        """Streams kept per token and cache head, in store order. Empty for layers that own no cache."""
        match self.mixer:
            case Full() | Window() | Chunked():
                rows = [StreamRow("k", self.key_dim, "k"), StreamRow("v", self.value_dim, "v")]
            case Latent(rank, rope_dim):
                rows = [StreamRow("latent", rank + rope_dim, "k")]
            case Compressed():
                rows = [StreamRow("latent", self.key_dim, "k")]
            case _:
                rows = []
        if isinstance(self.mixer, Full | Latent) and self.mixer.index_dim:
            rows.append(StreamRow("index", self.mixer.index_dim, "k"))
        return tuple(rows)

    @property
    def cache_parts(self) -> tuple[CachePart, ...]:
        """What this layer keeps, by retention rule. Empty for layers that own no cache."""
        if isinstance(self.mixer, Compressed):
            window = CachePart(Retention(window_tokens=self.mixer.window_tokens), 1, self.stream_rows)
            if not self.mixer.ratio:
                return (window,)
            index = (StreamRow("index", self.mixer.index_dim, "k"),) if self.mixer.index_dim else ()
            return window, CachePart(Retention(), 1, (*self.stream_rows, *index), self.mixer.ratio)
        return (CachePart(self.retention, self.cache_heads, self.stream_rows),) if self.owns_cache else ()

    def parts_in(self, fmt: KVFormat) -> tuple[CachePart, ...]:
        """What this layer keeps in a cache of that format. A layer whose window is one cell or less stays exact."""
        if not fmt.in_cells:
            return self.cache_parts
        parts: list[CachePart] = []
        for part in self.cache_parts:
            keeps = part.retention
            if (keeps.window_tokens or keeps.chunk_tokens or NEAR_TOKENS + 1) <= NEAR_TOKENS:
                parts.append(replace(part, exact=True))
                continue
            sinks = keeps.sinks if keeps.bounded else SINK_TOKENS
            packed = replace(keeps, sinks=0, before_cell_tokens=NEAR_TOKENS, unread_sinks=sinks)
            parts.append(replace(part, retention=packed))
            parts.append(replace(part, retention=Retention(chunk_tokens=NEAR_TOKENS, sinks=sinks), exact=True))
        return tuple(parts)

    def kv_bytes_per_token(self, fmt: KVFormat) -> int:
        """``H_kv * (d_k * b_k + d_v * b_v)`` with scales; 0 for layers that own no cache."""
        return sum(-(-part.row_bytes(fmt) // part.every_tokens) for part in self.cache_parts)

    def kv_bytes(self, n_tokens: int, fmt: KVFormat) -> int:
        """Bytes of rows in memory while the last of ``n_tokens`` is computed (windows capped)."""
        return sum(part.held_bytes(n_tokens, fmt) for part in self.parts_in(fmt))

    @property
    def state_elements(self) -> int:
        """Elements of recurrent state a sequence holds in this layer (kept in float32 by most engines)."""
        match self.mixer:
            case Recurrent(_, state, conv):
                return state + conv
            case Compressed():
                return self.mixer.buffer_elements
            case _:
                return 0

    @property
    def can_rollback(self) -> bool:
        """True when cutting the tail of a sequence leaves this layer's memory valid without a snapshot."""
        return self.state_elements == 0

    def usable_prefix(self, present: tuple[bool, ...], block_tokens: int) -> int:
        """Longest n (a multiple of ``block_tokens``) such that blocks needed to continue at n are all present."""
        for n_blocks in range(len(present), 0, -1):
            n = n_blocks * block_tokens
            first = self.retention.first_needed(n) // block_tokens
            sink_blocks = -(-min(self.retention.sinks, n) // block_tokens)
            if all(present[first:n_blocks]) and all(present[:sink_blocks]):
                return n
        return 0

    def rows_read(self, start: int, end: int) -> int:
        """Rows that queries at positions ``[start, end)`` read in this layer, sparse attention's limit respected."""
        if isinstance(self.mixer, Compressed):
            window = Retention(window_tokens=self.mixer.window_tokens).read_tokens(start, end)
            ratio, top = self.mixer.ratio, self.attention.top_rows
            if not ratio:
                return window
            return window + compressed_reads(end, ratio, top) - compressed_reads(start, ratio, top)
        if not (self.owns_cache or isinstance(self.mixer, Shared)):
            return 0
        if self.attention.top_rows:
            return Retention(window_tokens=self.attention.top_rows).read_tokens(start, end)
        return self.retention.read_tokens(start, end)

    def attention_flops(self, q_tokens: int, k_tokens: int) -> int:
        """Multiply-adds counted as two, for ``q_tokens`` queries that end at position ``k_tokens`` (causal)."""
        width = self.key_dim + self.value_dim
        if isinstance(self.mixer, Latent):
            width = 2 * self.mixer.rank + self.mixer.rope_dim
        flops = 2 * self.q_heads * width * self.rows_read(k_tokens - q_tokens, k_tokens)
        index_dim = self.mixer.index_dim if isinstance(self.mixer, Full | Latent) else 0
        if index_dim and self.attention.index_heads:
            flops += 2 * self.attention.index_heads * index_dim * Retention().read_tokens(k_tokens - q_tokens, k_tokens)
        return flops

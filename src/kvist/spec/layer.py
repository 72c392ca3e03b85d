"""What one decoder layer is, in numbers.

A layer's *mixer* says which tokens it can see and what it must keep for them; everything the planner, the cost model,
the block layout and the decoder need to know about memory follows from it. Callers ask for answers (``stream_rows``,
``usable_prefix``, ``can_rollback``) instead of asking which mixer it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from kvist.spec.format import KVFormat
from kvist.spec.rope import Rope


@dataclass(frozen=True, slots=True)
class Retention:
    """Which committed positions a layer still needs: the first ``sinks`` and the last ``window_tokens``.

    ``window_tokens`` is None when everything is kept. With ``chunk_tokens`` the layer needs the positions of its
    current chunk only (chunked attention, Llama 4). Layers with equal retention and geometry share block tables.
    """

    window_tokens: int | None = None
    sinks: int = 0
    chunk_tokens: int | None = None

    def first_needed(self, position: int) -> int:
        """Smallest non-sink position that a query at ``position`` may read; 0 when everything is kept."""
        if self.window_tokens is not None:
            return max(0, position - self.window_tokens + 1)
        if self.chunk_tokens is not None:
            return position // self.chunk_tokens * self.chunk_tokens
        return 0

    @property
    def bounded(self) -> bool:
        """True when memory stops growing with context."""
        return self.window_tokens is not None or self.chunk_tokens is not None

    def kept_tokens(self, n_tokens: int) -> int:
        """Positions of ``[0, n_tokens)`` that the next query (at ``n_tokens``) may read, sinks included."""
        first = min(self.first_needed(n_tokens), n_tokens)
        return n_tokens - first + min(self.sinks, first)


@dataclass(frozen=True, slots=True)
class Full:
    """Every earlier token is visible and kept."""


@dataclass(frozen=True, slots=True)
class Window:
    """The last ``size_tokens`` tokens (the query's own included) and the first ``sinks`` are visible."""

    size_tokens: int
    sinks: int = 0


@dataclass(frozen=True, slots=True)
class Chunked:
    """Only tokens of the query's own chunk of ``size_tokens`` are visible (Llama 4)."""

    size_tokens: int


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): one row of ``rank + rope_dim`` a token, no V.

    ``index_dim`` is the width of a sparse-attention indexer's key, kept beside the latent (0: none).
    """

    rank: int
    rope_dim: int
    index_dim: int = 0


@dataclass(frozen=True, slots=True)
class Recurrent:
    """State of fixed size instead of per-token KV (SSM, gated delta rule, linear attention)."""

    kind: str
    state_elements: int
    conv_elements: int = 0


@dataclass(frozen=True, slots=True)
class Shared:
    """Reads the cache of layer ``with_layer``; owns nothing."""

    with_layer: int
    window_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class NoMixer:
    """The layer has no attention and no state (pure FFN blocks of some hybrids)."""


Mixer = Full | Window | Chunked | Latent | Recurrent | Shared | NoMixer


@dataclass(frozen=True, slots=True)
class Attention:
    """What the attention of a layer computes, beyond which tokens it sees.

    ``scale`` multiplies q.k; ``softcap`` is ``c`` in ``c * tanh(x / c)`` on scores (0: none); ``qk_norm`` applies an
    RMS norm to q and k before rotation: per head (``head``) or over the whole projection (``full``).
    MLA only: ``q_rank`` (0: q is projected directly), ``nope_dim`` (un-rotated part of a query head).
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


@dataclass(frozen=True, slots=True)
class Ffn:
    """Feed-forward part. ``experts == 0`` means dense with ``width``; ``gated`` has gate and up projections."""

    width: int
    activation: Literal["silu", "gelu_tanh", "gelu", "relu", "relu2"] = "silu"
    gated: bool = True
    bias: bool = False
    experts: int = 0
    active: int = 0
    expert_width: int = 0
    shared_width: int = 0


@dataclass(frozen=True, slots=True)
class StreamRow:
    """One stream a layer keeps per token and KV head: ``dim`` elements of the format's K or V type."""

    name: Literal["k", "v", "latent", "index"]
    dim: int
    side: Literal["k", "v"]


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One decoder layer. Head counts and dims are this layer's own; nothing is inherited from a neighbour."""

    index: int
    mixer: Mixer
    q_heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    attention: Attention = field(default_factory=Attention)
    ffn: Ffn | None = None
    norms: Literal["pre", "sandwich", "post"] = "pre"

    @property
    def owns_cache(self) -> bool:
        """True when this layer keeps per-token rows of its own."""
        return isinstance(self.mixer, Full | Window | Chunked | Latent)

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
            case _:
                return Retention()

    @property
    def cache_heads(self) -> int:
        """KV heads in the store: an MLA layer keeps one latent row whatever its head count."""
        if not self.owns_cache:
            return 0
        return 1 if isinstance(self.mixer, Latent) else self.kv_heads

    @property
    def stream_rows(self) -> tuple[StreamRow, ...]:
        """Streams kept per token and cache head, in store order. Empty for layers that own no cache."""
        match self.mixer:
            case Full() | Window() | Chunked():
                return (StreamRow("k", self.key_dim, "k"), StreamRow("v", self.value_dim, "v"))
            case Latent(rank, rope_dim, index_dim):
                rows = (StreamRow("latent", rank + rope_dim, "k"),)
                return (*rows, StreamRow("index", index_dim, "k")) if index_dim else rows
            case _:
                return ()

    def kv_bytes_per_token(self, fmt: KVFormat) -> int:
        """``H_kv * (d_k * b_k + d_v * b_v)`` with scales; 0 for layers that own no cache."""
        side = {"k": fmt.k, "v": fmt.v}
        return self.cache_heads * sum(side[r.side].row_bytes(r.dim) for r in self.stream_rows)

    @property
    def state_elements(self) -> int:
        """Elements of recurrent state a sequence holds in this layer (kept in float32 by most engines)."""
        match self.mixer:
            case Recurrent(_, state, conv):
                return state + conv
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

    def attention_flops(self, q_tokens: int, k_tokens: int) -> int:
        """Multiply-adds counted as two, for ``q_tokens`` queries that end at position ``k_tokens`` (causal)."""
        if not (self.owns_cache or isinstance(self.mixer, Shared)):
            return 0
        seen = sum(self.retention.kept_tokens(k_tokens - q_tokens + i) + 1 for i in range(q_tokens))
        width = self.key_dim + self.value_dim
        if isinstance(self.mixer, Latent):
            width = 2 * self.mixer.rank + self.mixer.rope_dim
        return 2 * self.q_heads * width * seen

"""What one step has to compute and move, for any mix of new and cached tokens: FLOPs and bytes, before any device.

One multiply-add counts as two FLOPs. Bytes are counted once per step where a kernel reads them once: weights whatever
the number of rows, a sequence's KV rows whatever the number of its queries. Attention is causal: query ``i`` of a chunk
sees the cached tokens and the ``i`` before it, within its layer's window.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from kvist.spec.format import KVFormat
from kvist.spec.layer import CachePart, Latent, LayerSpec, Shared
from kvist.spec.model import ModelSpec
from kvist.spec.weights import mixer_elements, norm_elements
from kvist.units import ceil_div

STATE_FLOPS = 8
"""Per state element and token of a recurrent mixer: decay, read, outer product and update, a multiply-add each."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """One sequence's part of a step: ``new_tokens`` behind ``cached_tokens``; ``rows`` of them go through the head."""

    new_tokens: int
    cached_tokens: int = 0
    rows: int = 1


Chunks = Sequence[Chunk] | Mapping[Chunk, int]
"""The chunks of a step: one by one, or each with how often it occurs."""


@dataclass(frozen=True, slots=True)
class Widths:
    """Bytes of one weight: of what every token passes, of routed experts, of the head; and of an activation."""

    dense: float = 2.0
    expert: float = 2.0
    head: float = 2.0
    activation: float = 2.0


@dataclass(frozen=True, slots=True)
class Work:
    """FLOPs and bytes of one step on one rank. ``tokens`` were computed for ``sequences``, ``rows`` were sampled."""

    tokens: int
    sequences: int
    rows: int
    linear_flops: float
    weight_bytes: float
    head_flops: float
    head_bytes: float
    attention_flops: float
    kv_read_bytes: float
    kv_write_bytes: float
    state_flops: float
    state_bytes: float
    activation_bytes: float
    layers: int = 0

    @property
    def flops(self) -> float:
        """All of them."""
        return self.linear_flops + self.head_flops + self.attention_flops + self.state_flops

    @property
    def bytes(self) -> float:
        """All that must cross the memory bus at least once."""
        cache = self.kv_read_bytes + self.kv_write_bytes + self.state_bytes
        return self.weight_bytes + self.head_bytes + cache + self.activation_bytes

    @property
    def intensity(self) -> float:
        """FLOPs per byte: left of a device's ridge the step is bound by bandwidth, right of it by arithmetic."""
        return self.flops / self.bytes if self.bytes else 0.0


@dataclass(frozen=True, slots=True)
class _Experts:
    """Layers with the same mixture: how many, experts each, active per token, weights of one expert."""

    layers: int
    experts: int
    active: int
    elements: int

    def expected(self, tokens: int, share: float) -> float:
        """Experts that ``tokens`` tokens wake when each picks ``active`` at random, ``share`` of them on this rank."""
        miss = (1 - min(1.0, self.active * share / self.experts)) ** tokens
        return self.experts * (1 - miss)


@dataclass(frozen=True)
class ModelWork:
    """The arithmetic of one rank's model, ready to be asked for many steps.

    ``spec`` is the rank's own (see ``spec.shard``); ``head_elements`` its part of the head, ``expert_share`` the part
    of a token's active experts that live on this rank (1 / ep), ``cp`` over how many ranks a sequence's rows are dealt:
    each reads its share of the rows for the queries of all of them, so bytes divide and FLOPs do not. The feed-forward
    part sees the tokens of ``ffn_ranks`` ranks, routed experts those of ``expert_ranks``: more than one where attention
    is kept whole, or where experts are dealt out over replicas.
    """

    spec: ModelSpec
    fmt: KVFormat
    widths: Widths = Widths()
    head_elements: int | None = None
    expert_share: float = 1.0
    cp: int = 1
    ffn_ranks: int = 1
    expert_ranks: int = 1
    state_element_bytes: int = 4

    @cached_property
    def dense_elements(self) -> int:
        """Weights that every token passes, head and embedding apart."""
        hidden = self.spec.hidden
        mixers = sum(mixer_elements(x, hidden) + norm_elements(x, hidden) for x in self.spec.layers)
        return mixers + self.ffn_elements

    @cached_property
    def ffn_elements(self) -> int:
        """Those of them in feed-forward parts: MLPs, shared experts, routers."""
        return sum(x.ffn.dense_elements(self.spec.hidden) for x in self.spec.layers if x.ffn is not None)

    @cached_property
    def _mixtures(self) -> tuple[_Experts, ...]:
        found: dict[tuple[int, int, int], int] = {}
        for ffn in (x.ffn for x in self.spec.layers):
            if ffn is not None and ffn.experts:
                key = (ffn.experts, ffn.active, ffn.expert_elements(self.spec.hidden))
                found[key] = found.get(key, 0) + 1
        return tuple(_Experts(n, *key) for key, n in found.items())

    @cached_property
    def _alike(self) -> tuple[tuple[LayerSpec, tuple[CachePart, ...], int], ...]:
        """One layer of each kind that reads a cache, the parts it reads, and how many there are."""
        by_index = {x.index: x for x in self.spec.layers}
        kinds: dict[tuple[object, ...], list[tuple[LayerSpec, tuple[CachePart, ...]]]] = {}
        for x in self.spec.layers:
            owner = by_index[x.mixer.with_layer] if isinstance(x.mixer, Shared) else x
            look = (
                *owner.cache_parts,
                x.retention,
                x.q_heads,
                x.key_dim,
                x.value_dim,
                x.attention.top_rows,
                x.owns_cache,
            )
            if owner.cache_parts:
                kinds.setdefault(look, []).append((x, owner.cache_parts))
        return tuple((group[0][0], group[0][1], len(group)) for group in kinds.values())

    @cached_property
    def head_size(self) -> int:
        """Weights of the head on this rank."""
        return self.spec.vocab * self.spec.hidden if self.head_elements is None else self.head_elements

    @cached_property
    def kv_token_bytes(self) -> int:
        """Bytes of KV that a token writes."""
        return self.spec.kv_bytes_per_token(self.fmt)

    @cached_property
    def state_elements(self) -> int:
        """Elements of recurrent state per sequence."""
        return self.spec.state_elements

    @cached_property
    def activation_elements(self) -> int:
        """Per token, written and read between kernels: about what a fused implementation cannot keep in registers."""
        return sum(
            6 * self.spec.hidden
            + 2 * x.q_heads * x.key_dim
            + (3 * (x.ffn.width or x.ffn.active * x.ffn.expert_width) if x.ffn else 0)
            for x in self.spec.layers
        )

    def expert_elements(self, tokens: int) -> float:
        """Expert weights that are expected to be read on this rank when every rank's step has ``tokens``."""
        tokens *= self.expert_ranks
        return sum(m.layers * m.expected(tokens, self.expert_share) * m.elements for m in self._mixtures)

    def step(self, chunks: Chunks) -> Work:
        """The work of one step: chunks of any mix, in a list or counted."""
        counted = chunks if isinstance(chunks, Mapping) else Counter(chunks)
        tokens = sum(n * c.new_tokens for c, n in counted.items())
        rows = sum(n * c.rows for c, n in counted.items())
        sequences = sum(counted.values())
        flops = read = 0.0
        for c, n in counted.items():
            f, r = self._attention(c)
            flops, read = flops + n * f, read + n * r
        share = self.expert_share * self.expert_ranks
        experts = sum(m.layers * m.active * m.elements for m in self._mixtures) * share
        state, w = self.state_elements, self.widths
        return Work(
            tokens=tokens,
            sequences=sequences,
            rows=rows,
            linear_flops=2.0 * tokens * (self.dense_elements + (self.ffn_ranks - 1) * self.ffn_elements + experts),
            weight_bytes=self.dense_elements * w.dense + self.expert_elements(tokens) * w.expert,
            head_flops=2.0 * rows * self.head_size,
            head_bytes=self.head_size * w.head if rows else 0.0,
            attention_flops=flops,
            kv_read_bytes=read / self.cp,
            kv_write_bytes=tokens * self.kv_token_bytes / self.cp,
            state_flops=float(STATE_FLOPS * state * tokens),
            state_bytes=2.0 * state * self.state_element_bytes * sequences,
            activation_bytes=float(tokens * self.activation_elements) * w.activation,
            layers=len(self.spec.layers),
        )

    def _attention(self, c: Chunk) -> tuple[float, float]:
        """FLOPs and bytes of KV rows read for one chunk, all layers."""
        flops = read = 0.0
        end = c.cached_tokens + c.new_tokens
        for layer, parts, n in self._alike:
            absorbed = layer.attention_flops(c.new_tokens, end)
            flops += n * min(absorbed, _expanded_flops(layer, c.new_tokens, end) or absorbed)
            read += n * sum(_read_bytes(layer, part, c.cached_tokens, end, self.fmt) for part in parts)
        return flops, read


def _read_bytes(layer: LayerSpec, part: CachePart, start: int, end: int, fmt: KVFormat) -> int:
    """Bytes of one part that queries at ``[start, end)`` read. An indexer's keys are read whole, to find the best."""
    rows, index = rows_touched(layer, part, start, end), [r for r in part.rows if r.name == "index"]
    if not (index and layer.attention.top_rows):
        return rows * part.row_bytes(fmt)
    key = replace(part, rows=tuple(index)).row_bytes(fmt)
    whole = replace(layer, attention=replace(layer.attention, top_rows=0))
    return rows * (part.row_bytes(fmt) - key) + rows_touched(whole, part, start, end) * key


def rows_touched(layer: LayerSpec, part: CachePart, start: int, end: int) -> int:
    """Rows of one part that queries at ``[start, end)`` read at least once, cached ones and their own."""
    if end <= start:
        return 0
    first = part.retention.first_needed(start)
    if layer.retention.window_tokens is not None:  # a shared layer may look less far than the owner keeps
        first = max(first, layer.retention.first_needed(start))
    held = end - first + min(part.retention.sinks, first)
    rows = ceil_div(held, part.every_tokens) if part.every_tokens > 1 else held
    top = layer.attention.top_rows
    return min(rows, top * (end - start)) if top and not part.retention.bounded else rows


def _expanded_flops(layer: LayerSpec, q_tokens: int, k_tokens: int) -> int:
    """MLA over heads expanded from the latent, as engines prefill: fewer FLOPs per pair, but cached rows are projected
    up again (new rows are by the linear layers). 0: not an MLA layer, or a single query.
    """
    if not isinstance(layer.mixer, Latent) or q_tokens < 2:
        return 0
    pairs = layer.rows_read(k_tokens - q_tokens, k_tokens)
    up = 2 * layer.mixer.rank * layer.q_heads * (layer.attention.nope_dim + layer.value_dim) * (k_tokens - q_tokens)
    return 2 * layer.q_heads * (layer.key_dim + layer.value_dim) * pairs + up

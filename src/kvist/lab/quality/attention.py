"""Attention that reads some keys exact and others as a codec wrote them, chosen before the softmax.

It stands where the kernels stand: the model's own code computes everything else, and writes K (rotated) and V into
blocks. From there rows are taken over as they come, for every layer, and kept in float32 for later queries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from kvist.errors import StateError
from kvist.kernels.attention.base import Carry, LayerView, WorkList
from kvist.kernels.attention.tiles import read_keys, read_values
from kvist.kernels.codec.base import Codec
from kvist.lab.quality.kept import Stream
from kvist.lab.quality.protect import Protection


class Lookup(Protocol):
    """Where the rows of a group lie."""

    def __call__(self, group: int, start: int, end: int) -> torch.Tensor:
        """Ids int64 of the blocks that hold positions ``[start, end)``."""
        ...


@dataclass(frozen=True, slots=True)
class KeptLayer:
    """K and V of one layer."""

    k: Stream
    v: Stream


@dataclass(frozen=True, slots=True)
class Mixed:
    """What some query rows read of one stream: ``packed`` bool [rows, keys]; ``columns``: keys that a row reads exact;
    ``packed_pairs`` of (query, key). Nothing of it where everything is read exact.
    """

    packed: torch.Tensor | None = None
    columns: torch.Tensor | None = None
    packed_pairs: int = 0


@dataclass(frozen=True, slots=True)
class Sight:
    """What the query rows ``[first, end)`` of a step see: all but ``hidden`` bool [rows, keys], which are ``pairs``."""

    first: int
    end: int
    hidden: torch.Tensor
    pairs: int
    k: Mixed
    v: Mixed


@dataclass(slots=True)
class Reads:
    """(query, key) pairs that were read, counted once for each layer and stream."""

    packed: int = 0
    all: int = 0


class MixedAttention:
    """One pass over one text. ``layers``: what is kept, by group id and place of the K tiles (``k_offset_bytes``).

    ``codecs``: K's and V's, None in the exact pass. ``query_rows`` are scored at a time: with ``n`` keys that takes
    ``query_rows * q_heads * n`` numbers, a few times over.
    """

    name = "mixed"

    def __init__(
        self,
        layers: Mapping[tuple[int, int], KeptLayer],
        group_of_block: np.ndarray,
        lookup: Lookup,
        *,
        codecs: tuple[Codec, Codec] | None,
        protection: Protection,
        query_rows: int,
    ) -> None:
        self._layers, self._group_of_block, self._lookup = layers, group_of_block, lookup
        self._codecs, self._protection, self._query_rows = codecs, protection, query_rows
        self._sights: dict[int, tuple[WorkList, list[Sight]]] = {}
        self.reads = Reads()

    def supports(self, view: LayerView) -> bool:
        """K and V in float32."""
        return view.v_offset_bytes >= 0 and view.k_element == view.v_element == "f32"

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
        """Fill ``out`` float32 [rows, q_heads, value_dim]; the step's rows are one run of positions of one text."""
        if carry is not None:
            raise StateError("the lab's cache keeps floats: nothing of it is in two parts")
        group = int(self._group_of_block[work.blocks[-1]])
        kept = self._layers[group, view.k_offset_bytes]
        start, end = int(work.row_end[0]) - 1, int(work.row_end[-1])
        if kept.k.length_tokens < end:
            self._take(kept, pool, view, group, start, end)
        for sight in self._see(group, work):
            keys = sight.hidden.shape[1]
            rows = q[sight.first : sight.end].view(sight.end - sight.first, view.kv_heads, -1, view.key_dim)
            scores = _scores(rows.permute(1, 2, 0, 3), kept.k, sight.k, keys).mul_(scale)
            if softcap:
                scores.div_(softcap).tanh_().mul_(softcap)
            weights = scores.masked_fill_(sight.hidden, -torch.inf).softmax(dim=-1)
            read = _weighted(weights, kept.v, sight.v, keys)
            out[sight.first : sight.end] = read.permute(2, 0, 1, 3).flatten(1, 2)

    def _take(self, kept: KeptLayer, pool: torch.Tensor, view: LayerView, group: int, start: int, end: int) -> None:
        if kept.k.length_tokens != start:
            raise StateError(f"rows from position {start} come after {kept.k.length_tokens} positions")
        ids, skip = self._lookup(group, start, end), start % view.tokens_per_block
        for stream, read in ((kept.k, read_keys), (kept.v, read_values)):
            rows = read(pool, view, ids).transpose(0, 1).flatten(1, 2)
            stream.take(rows[:, skip : skip + end - start])

    def _see(self, group: int, work: WorkList) -> list[Sight]:
        """The sights of a step, which all layers of a group share."""
        known = self._sights.get(group)
        if known is None or known[0] is not work:
            cuts = range(0, work.rows, self._query_rows)
            known = work, [self._sight(work, a, min(a + self._query_rows, work.rows)) for a in cuts]
            self._sights[group] = known
        for sight in known[1]:
            self.reads.all += 2 * sight.pairs
            self.reads.packed += sight.k.packed_pairs + sight.v.packed_pairs
        return known[1]

    def _sight(self, work: WorkList, first: int, end: int) -> Sight:
        near, limit, sinks = (
            torch.from_numpy(a[first:end]).long()[:, None] for a in (work.row_first, work.row_end, work.row_sinks)
        )
        keys = torch.arange(int(limit.max()))
        seen = ((keys >= near) & (keys < limit)) | (keys < sinks)
        sides = [Mixed(), Mixed()]
        for i, codec in enumerate(self._codecs or ()):
            packed = self._protection.packed(codec, limit[:, 0] - 1, keys)
            exact = (seen & ~packed).any(dim=0).nonzero()[:, 0]
            sides[i] = Mixed(packed, exact, int((seen & packed).sum()))
        return Sight(first, end, ~seen, int(seen.sum()), *sides)


def _scores(rows: torch.Tensor, stream: Stream, mixed: Mixed, keys: int) -> torch.Tensor:
    """q.k: ``rows`` [kv_heads, queries of a head, rows, dim] -> [kv_heads, queries of a head, rows, keys]."""
    flat, shape = rows.flatten(1, 2), rows.shape[:3]
    if mixed.packed is None or mixed.columns is None or stream.packed is None:
        return torch.bmm(flat, stream.exact[:, :keys].transpose(1, 2)).view(*shape, keys)
    scores = torch.bmm(flat, stream.packed[:, :keys].transpose(1, 2)).view(*shape, keys)
    if len(mixed.columns):
        exact = torch.bmm(flat, stream.exact[:, mixed.columns].transpose(1, 2)).view(*shape, -1)
        packed = mixed.packed[:, mixed.columns]
        scores[..., mixed.columns] = torch.where(packed, scores[..., mixed.columns], exact)
    return scores


def _weighted(weights: torch.Tensor, stream: Stream, mixed: Mixed, keys: int) -> torch.Tensor:
    """Weighted V: ``weights`` [kv_heads, queries of a head, rows, keys] -> [..., value_dim]. Changes ``weights``."""
    shape = weights.shape[:3]
    if mixed.packed is None or mixed.columns is None or stream.packed is None:
        return torch.bmm(weights.flatten(1, 2), stream.exact[:, :keys]).view(*shape, -1)
    near = weights[..., mixed.columns]
    packed = mixed.packed[:, mixed.columns]
    weights[..., mixed.columns] = torch.where(packed, near, 0.0)
    out = torch.bmm(weights.flatten(1, 2), stream.packed[:, :keys])
    if len(mixed.columns):
        exact = torch.where(packed, 0.0, near).flatten(1, 2)
        out.baddbmm_(exact, stream.exact[:, mixed.columns])
    return out.view(*shape, -1)

"""A teacher-forced pass of a real model over a text, in which K and V go through a codec on their way to later queries.

It is the model's own decoder with another attention (``attention.py``). A small ring of blocks serves as the pool: rows
leave it for the pass's own memory in the step that computes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from kvist.errors import UsageError
from kvist.kernels.ops import registry as ops_shelf
from kvist.lab.quality.attention import KeptLayer, MixedAttention
from kvist.lab.quality.kept import Stream
from kvist.lab.quality.method import Method, owners
from kvist.lab.quality.protect import NOTHING, Protection
from kvist.lab.rig import Model
from kvist.model.batch import SequenceRows, build_batch
from kvist.model.decoder import Decoder
from kvist.runtime.store import Store
from kvist.spec.format import KVFormat
from kvist.spec.layer import LayerSpec
from kvist.spec.layout import CacheLayout, plan_layout
from kvist.units import ceil_div


@dataclass(frozen=True, slots=True)
class Pace:
    """Tokens of a step, and query rows that are scored at a time. Neither changes what is computed."""

    chunk_tokens: int = 256
    query_rows: int = 64


class Ring:
    """Block tables over a few ids for each group, used again and again as positions go on: a step fits once."""

    def __init__(self, layout: CacheLayout, chunk_tokens: int) -> None:
        self._groups = layout.groups
        self._sizes = [ceil_div(chunk_tokens, g.tokens_per_block) for g in layout.groups]
        self.blocks = sum(self._sizes)
        self.group_of_block = np.repeat(np.arange(len(self._groups)), self._sizes)

    def tables(self, n_tokens: int) -> tuple[np.ndarray, ...]:
        """int32 [blocks] for each group: a table of ``n_tokens`` positions."""
        return tuple(self._ids(g, 0, n_tokens) for g in range(len(self._groups)))

    def lookup(self, group: int, start: int, end: int) -> torch.Tensor:
        """Ids int64 of the blocks that hold positions ``[start, end)``."""
        return torch.from_numpy(self._ids(group, start, end)).long()

    def _ids(self, group: int, start: int, end: int) -> np.ndarray:
        size = self._groups[group].tokens_per_block
        numbers = np.arange(start // size, ceil_div(end, size))
        return (sum(self._sizes[:group]) + numbers % self._sizes[group]).astype(np.int32)


class Pass:
    """One text through one model: ``method`` None is the exact reference. Raises ``UsageError`` or ``ModelError``.

    Afterwards ``layers`` has what was kept of every layer, by index, and ``reads`` what was read.
    """

    def __init__(
        self,
        model: Model,
        tokens: Sequence[int],
        method: Method | None = None,
        protection: Protection = NOTHING,
        pace: Pace | None = None,
    ) -> None:
        pace = pace or Pace()
        if not 1 <= len(tokens) <= model.spec.context_tokens:
            raise UsageError(
                f"{len(tokens)} tokens do not fit a model that sees {model.spec.context_tokens}",
                remedy="measure a shorter piece of the text (--length)",
            )
        if method is not None:
            method.check_shapes(model.spec)
            method.check_mean()
        self._tokens = np.asarray(tokens, dtype=np.int32)
        self._chunk_tokens = pace.chunk_tokens
        self._layout = plan_layout(model.spec, KVFormat.parse("f32"))
        self._ring = Ring(self._layout, pace.chunk_tokens)
        self.layers = {layer.index: self._keep(layer, method) for layer in owners(model.spec)}
        self._attention = MixedAttention(
            self._by_place(),
            self._ring.group_of_block,
            self._ring.lookup,
            codecs=None if method is None else method.codecs,
            protection=protection,
            query_rows=pace.query_rows,
        )
        self._decoder = Decoder(
            model.spec,
            model.weights,
            ops=ops_shelf.best_available(),
            kernels=[self._attention],
            layout=self._layout,
            pool=Store(self._layout, blocks=self._ring.blocks).pool,
            native_steps=False,
        )
        self.reads = self._attention.reads

    def run(self) -> Iterator[tuple[int, torch.Tensor]]:
        """(position of the first, logits float32 [tokens, vocab]) for each chunk in turn. Once."""
        for start in range(0, len(self._tokens), self._chunk_tokens):
            chunk = self._tokens[start : start + self._chunk_tokens]
            rows = SequenceRows(
                tokens=chunk,
                start=start,
                tables=self._ring.tables(start + len(chunk)),
                logit_rows=np.arange(len(chunk), dtype=np.int32),
            )
            yield start, self._decoder.forward(build_batch(self._layout, [rows]))

    def _keep(self, layer: LayerSpec, method: Method | None) -> KeptLayer:
        length = len(self._tokens)
        if method is None:
            return KeptLayer(
                Stream(layer.kv_heads, layer.key_dim, length, None, None),
                Stream(layer.kv_heads, layer.value_dim, length, None, None),
            )
        return KeptLayer(
            Stream(layer.kv_heads, layer.key_dim, length, method.k, partial(method.where, layer, "k")),
            Stream(layer.kv_heads, layer.value_dim, length, method.v, partial(method.where, layer, "v")),
        )

    def _by_place(self) -> dict[tuple[int, int], KeptLayer]:
        out = {}
        for index, kept in self.layers.items():
            group, place = self._layout.place_of(index)
            out[int(group.id), place * group.layer_bytes + group.streams[0].offset_bytes] = kept
        return out

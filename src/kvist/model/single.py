"""A model and a private pool, without scheduler or prefix cache: for tests, for learning, for scoring a text.

Positions are explicit: ``feed`` says where its tokens start, and a start that is not the sequence's length is refused.
Lengths are plain ints, so one that was read never changes afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from kvist.errors import PoolFull, StateError
from kvist.kernels.attention import registry as attention_registry
from kvist.kernels.ops import registry as ops_registry
from kvist.model.batch import SequenceRows, build_batch
from kvist.model.decoder import Decoder, Numerics
from kvist.model.weights import Weights
from kvist.spec.format import KVFormat
from kvist.spec.layout import Group, plan_layout
from kvist.spec.model import ModelSpec
from kvist.units import ceil_div

_NAN_BYTE = 0xFF


@dataclass(frozen=True, slots=True)
class SingleOptions:
    """``variant`` names the kernels (None: the fastest here). ``poison`` fills blocks that hold nothing with NaN."""

    kv_format: str = "f32"
    block_tokens: int = 32
    capacity_tokens: int = 1024
    variant: str | None = None
    numerics: Numerics = "invariant"
    poison: bool = True
    native_steps: bool = True


class PrivatePool:
    """A decoder with blocks of its own for a few sequences. Owner of the free list."""

    def __init__(self, spec: ModelSpec, weights: Weights, options: SingleOptions | None = None) -> None:
        options = options or SingleOptions()
        self.layout = plan_layout(spec, KVFormat.parse(options.kv_format), block_tokens=options.block_tokens)
        per_group = (ceil_div(options.capacity_tokens, g.tokens_per_block) for g in self.layout.groups)
        self._poison = options.poison
        self.pool = torch.zeros(sum(per_group), self.layout.block_bytes, dtype=torch.uint8)
        if options.poison:
            self.pool.fill_(_NAN_BYTE)
        self._free = list(range(len(self.pool)))
        names = attention_registry.available() if options.variant is None else (options.variant, "reference")
        ops = ops_registry.best_available() if options.variant is None else ops_registry.load(options.variant)
        self.decoder = Decoder(
            spec,
            weights,
            ops=ops,
            kernels=[attention_registry.load(name) for name in names],
            layout=self.layout,
            pool=self.pool,
            numerics=options.numerics,
            native_steps=options.native_steps,
        )

    @property
    def free_blocks(self) -> int:
        """Blocks nobody holds."""
        return len(self._free)

    def take(self, n_blocks: int) -> list[int]:
        """Block ids for a sequence. Raises ``PoolFull``."""
        if n_blocks > len(self._free):
            raise PoolFull(needed_blocks=n_blocks, available_blocks=len(self._free))
        taken, self._free = self._free[:n_blocks], self._free[n_blocks:]
        return taken

    def give_back(self, blocks: Sequence[int]) -> None:
        """Blocks that hold nothing any more."""
        if self._poison and blocks:
            self.pool[list(blocks)] = _NAN_BYTE
        self._free.extend(blocks)


@dataclass(frozen=True, slots=True)
class Kept:
    """Blocks of a sequence outside any pool: ``tables`` per group as in the pool, ``data`` uint8 [blocks, bytes].

    ``length_tokens`` counts positions, whether or not a window has let go of their rows.
    """

    length_tokens: int
    tables: tuple[tuple[int, ...], ...]
    data: torch.Tensor


class SingleSequence:
    """Tokens computed so far and where their K and V lie. Owner of its block tables.

    ``SingleSequence(spec, weights, options)`` makes a pool of its own; ``pool`` shares one with other sequences.
    Windows let go of blocks when the next tokens come: what was fed last can always be taken back.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: Weights,
        options: SingleOptions | None = None,
        *,
        pool: PrivatePool | None = None,
    ) -> None:
        self.pool = pool or PrivatePool(spec, weights, options)
        self._groups = self.pool.layout.groups
        self._tables: list[list[int]] = [[] for _ in self._groups]
        self._length = 0

    @property
    def length(self) -> int:
        """Positions computed so far: the only place the next ``feed`` may start at."""
        return self._length

    def feed(
        self, tokens: Sequence[int], start_pos: int, *, logits: Literal["all", "last", "none"] = "all"
    ) -> torch.Tensor:
        """Compute ``tokens`` at positions ``start_pos, start_pos + 1, ...``; logits [rows asked for, vocab]."""
        return feed_together([(self, tokens, start_pos)], logits=logits)[0]

    def truncate(self, length: int) -> None:
        """Forget positions from ``length`` on. Raises ``StateError`` where a window has let go of what that needs."""
        if not 0 <= length <= self._length:
            raise StateError(f"cannot cut a sequence of {self._length} tokens to {length}")
        for group, table in zip(self._groups, self._tables, strict=True):
            first = group.retention.first_needed(length) // group.tokens_per_block
            kept = ceil_div(length, group.tokens_per_block)
            if -1 in table[first:kept]:
                raise StateError(
                    f"cutting {self._length} tokens to {length} needs rows that a window has let go",
                    remedy="only what was fed last can always be taken back; start the sequence anew",
                )
        for group, table in zip(self._groups, self._tables, strict=True):
            kept = ceil_div(length, group.tokens_per_block)
            self.pool.give_back([b for b in table[kept:] if b >= 0])
            del table[kept:]
        self._length = length

    def export(self) -> Kept:
        """A copy of what the pool holds of this sequence."""
        held = [b for table in self._tables for b in table if b >= 0]
        return Kept(self._length, tuple(tuple(t) for t in self._tables), self.pool.pool[held].clone())

    def adopt(self, kept: Kept, *, next_position: int) -> None:
        """Continue from ``kept``. ``next_position`` states the policy: positions are logical, so it is the length.

        Raises ``StateError`` for any other position (the count of rows held, for instance), for a sequence that is
        not empty, and for a copy whose parts disagree.
        """
        if self._length or any(self._tables):
            raise StateError(f"only an empty sequence can adopt rows, this one has {self._length} tokens")
        if next_position != kept.length_tokens:
            raise StateError(
                f"these rows end at position {kept.length_tokens}, next_position is {next_position}",
                remedy="keys are cached after rotation: continue at the logical position, however many rows are held",
            )
        wanted = [ceil_div(kept.length_tokens, g.tokens_per_block) for g in self._groups]
        held = sum(b >= 0 for table in kept.tables for b in table)
        if [len(t) for t in kept.tables] != wanted or tuple(kept.data.shape) != (held, self.pool.layout.block_bytes):
            raise StateError(
                f"{[len(t) for t in kept.tables]} table entries and data of {list(kept.data.shape)} for "
                f"{kept.length_tokens} tokens; expected {wanted} entries and {held} blocks"
            )
        fresh = self.pool.take(held)
        self.pool.pool[fresh] = kept.data
        left = iter(fresh)
        self._tables = [[next(left) if b >= 0 else -1 for b in table] for table in kept.tables]
        self._length = kept.length_tokens

    def close(self) -> None:
        """Give all blocks back."""
        for table in self._tables:
            self.pool.give_back([b for b in table if b >= 0])
            table.clear()
        self._length = 0

    def _rows(self, tokens: Sequence[int], start_pos: int, logits: str) -> SequenceRows:
        """Make room for ``tokens`` and say where they go."""
        if start_pos != self._length:
            raise StateError(
                f"tokens start at position {start_pos}, but {self._length} positions are computed",
                remedy="feed from the sequence's length on, or truncate it first",
            )
        if not len(tokens):
            raise StateError("nothing to feed: give at least one token")
        self._let_go()
        ends = [ceil_div(start_pos + len(tokens), g.tokens_per_block) for g in self._groups]
        lacking = [max(end - len(table), 0) for end, table in zip(ends, self._tables, strict=True)]
        fresh = self.pool.take(sum(lacking))
        for table, n in zip(self._tables, lacking, strict=True):
            table += fresh[:n]
            del fresh[:n]
        asked = {"all": range(len(tokens)), "last": [len(tokens) - 1], "none": []}[logits]
        return SequenceRows(
            tokens=np.asarray(tokens, dtype=np.int32),
            start=start_pos,
            tables=tuple(np.asarray(t, dtype=np.int32) for t in self._tables),
            logit_rows=np.asarray(asked, dtype=np.int32),
        )

    def _let_go(self) -> None:
        """Give back blocks that no query from here on reads."""
        for group, table in zip(self._groups, self._tables, strict=True):
            gone = _released(group, table, self._length)
            self.pool.give_back([table[i] for i in gone])
            for i in gone:
                table[i] = -1


def feed_together(
    parts: Sequence[tuple[SingleSequence, Sequence[int], int]], *, logits: Literal["all", "last", "none"] = "all"
) -> list[torch.Tensor]:
    """One forward pass for several sequences of one pool: (sequence, tokens, start_pos) each; logits of each."""
    pool = parts[0][0].pool
    if any(sequence.pool is not pool for sequence, _, _ in parts) or len({id(p[0]) for p in parts}) != len(parts):
        raise StateError("sequences of one pass must be distinct and share one pool")
    rows = [sequence._rows(tokens, start, logits) for sequence, tokens, start in parts]
    out = pool.decoder.forward(build_batch(pool.layout, rows))
    for sequence, tokens, _ in parts:
        sequence._length += len(tokens)
    return list(torch.split(out, [len(r.logit_rows) for r in rows]))


def _released(group: Group, table: list[int], length: int) -> list[int]:
    """Entries of ``table`` whose rows no query from position ``length`` on can read."""
    size = group.tokens_per_block
    sinks = ceil_div(group.retention.sinks, size)
    return [i for i in range(sinks, group.retention.first_needed(length) // size) if table[i] >= 0]

"""A recorded trace, replayed: its times, its lengths, and its shared blocks (Mooncake's format)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kvist.bench.infer import Fit
from kvist.bench.record import Record
from kvist.bench.trace_file import Row, digest, read
from kvist.bench.workload.base import Ask, Part, Script, check_counts, once
from kvist.errors import BadValue


@dataclass(frozen=True, slots=True)
class Trace:
    """``prompts`` first rows of the file ``trace`` (0: all), ``speedup`` times as fast as recorded.

    A block id stands for the same ``block_tokens`` tokens wherever it appears. ``length_factor`` (set by ``--scale``)
    shortens blocks, prompts and answers alike, so what is shared stays shared.
    """

    trace: str = ""
    prompts: int = 0
    speedup: float = 1.0
    block_tokens: int = 512
    length_factor: float = 1.0

    name: ClassVar[str] = "trace"
    about: ClassVar[str] = "a recorded trace: its times, its lengths, its shared blocks"
    scaled: ClassVar[tuple[str, ...]] = ("length_factor",)
    needs_answers: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_counts(self, zero=("prompts",))
        if not self.trace:
            raise BadValue("trace", self.trace, "a file of JSON lines: timestamp, input_length, hash_ids...")
        for name in ("speedup", "length_factor"):
            if not getattr(self, name) > 0:
                raise BadValue(name, getattr(self, name), "a number > 0")

    def _rows(self) -> tuple[Row, ...]:
        rows = read(self.trace)
        return rows[: self.prompts] if self.prompts else rows

    @property
    def clients_at_once(self) -> int:
        """Eight, where the trace's own times are not wanted."""
        return 8

    @property
    def longest_prompt_tokens(self) -> int:
        """The median prompt's: the longest of a trace is far out."""
        lengths = sorted(r.input_tokens for r in self._rows())
        return max(1, round(lengths[len(lengths) // 2] * self.length_factor))

    @property
    def by_turns(self) -> bool:
        """Scripts are single requests."""
        return False

    def scripts(self, seed: int) -> Sequence[Script]:
        """One script a row, at the row's time."""
        rows, file = self._rows(), digest(self.trace)
        start_s = rows[0].at_s
        return [self._script(file, i, row, (row.at_s - start_s) / self.speedup) for i, row in enumerate(rows)]

    def _script(self, file: str, index: int, row: Row, at_s: float) -> Script:
        name = f"t{index}"
        ask = Ask(name, self._parts(file, index, row), max(1, round(row.output_tokens * self.length_factor)))
        return Script(name, 1, once(ask), at_s)

    def _parts(self, file: str, index: int, row: Row) -> tuple[Part, ...]:
        """Named after the file's content: every trace has a block 0."""
        block = max(1, round(self.block_tokens * self.length_factor))
        left, parts = max(1, round(row.input_tokens * self.length_factor)), []
        for block_id in row.block_ids:
            if left > 0:
                parts.append(Part("user", f"{file}/block/{block_id}", min(block, left)))
                left -= block
        if left > 0:
            parts.append(Part("user", f"{file}/rest/{index}", left))
        return tuple(parts)

    def verdict(self, records: Sequence[Record], fit: Fit) -> dict[str, Any] | None:
        """None."""
        return None

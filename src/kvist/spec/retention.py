"""Which tokens of a sequence a layer must remember, and how many its queries read. Arithmetic on positions only."""

from __future__ import annotations

from dataclasses import dataclass


def _ramp(n: int, cap: int) -> int:
    """Sum of ``min(i + 1, cap)`` for ``i`` in ``[0, n)``."""
    low = max(0, min(n, cap))
    return low * (low + 1) // 2 + (n - low) * cap if n > 0 else 0


def compressed_reads(n: int, every: int, top: int) -> int:
    """Rows that the first ``n`` queries read of rows standing for ``every`` tokens each, ``top`` at most (0: all)."""
    m = min(n, top * every) if top else n
    whole, rest = divmod(m, every)
    return every * whole * (whole - 1) // 2 + whole * (rest + 1) + (n - m) * top


@dataclass(frozen=True, slots=True)
class Retention:
    """Which committed positions a layer still needs: the first ``sinks`` and the last ``window_tokens``.

    ``window_tokens`` is None when everything is kept. With ``chunk_tokens`` the layer needs the positions of its
    current chunk only (chunked attention, Llama 4). Layers with equal retention and geometry share block tables.

    ``before_cell_tokens``: of what is kept, queries read only what lies before their own cell of so many positions,
    and not the first ``unread_sinks``: those are read exactly elsewhere.
    """

    window_tokens: int | None = None
    sinks: int = 0
    chunk_tokens: int | None = None
    before_cell_tokens: int | None = None
    unread_sinks: int = 0

    def first_needed(self, position: int) -> int:
        """Smallest non-sink position that a query at ``position`` may read; 0 when everything is kept."""
        if self.window_tokens is not None:
            return max(0, position - self.window_tokens + 1)
        if self.chunk_tokens is not None:
            return position // self.chunk_tokens * self.chunk_tokens
        return 0

    def read_end(self, position: int) -> int:
        """One past the last position that a query at ``position`` reads (sinks apart)."""
        cell = self.before_cell_tokens
        return position + 1 if cell is None else position // cell * cell

    @property
    def bounded(self) -> bool:
        """True when memory stops growing with context."""
        return self.window_tokens is not None or self.chunk_tokens is not None

    def kept_tokens(self, n_tokens: int) -> int:
        """Positions of ``[0, n_tokens)`` that the next query (at ``n_tokens``) may read, sinks included."""
        first = min(self.first_needed(n_tokens), n_tokens)
        return n_tokens - first + min(self.sinks, first)

    def held_tokens(self, n_tokens: int) -> int:
        """Rows in memory while the last of ``n_tokens`` is computed, its own included: ``min(window, n_tokens)``.

        One more than ``kept_tokens`` of the step before: a window of 128 holds 128 rows, and may drop one of them
        only after the step. This is what capacity is counted with.
        """
        return self.kept_tokens(n_tokens - 1) + 1 if n_tokens > 0 else 0

    def read_tokens(self, start: int, end: int) -> int:
        """Rows read by queries at positions ``[start, end)``, each query's own row included where it is read."""
        if self.before_cell_tokens is not None:
            return sum(
                max(0, self.read_end(p) - max(self.first_needed(p), self.unread_sinks)) for p in range(start, end)
            )
        return self._read_before(end) - self._read_before(start)

    def _read_before(self, n: int) -> int:
        if self.chunk_tokens is not None:
            whole, rest = divmod(n, self.chunk_tokens)
            return whole * _ramp(self.chunk_tokens, self.chunk_tokens) + _ramp(rest, self.chunk_tokens)
        if self.window_tokens is None:
            return _ramp(n, max(n, 0))
        return _ramp(n, self.window_tokens) + _ramp(n - self.window_tokens, self.sinks)

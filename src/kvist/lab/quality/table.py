"""The record as a table, for a terminal and for a page. A column is one line of ``COLUMNS``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from kvist.lab.quality.rows import QualityRow
from kvist.units import format_bytes


@dataclass(frozen=True, slots=True)
class Column:
    """``show`` gives one cell. ``narrow``: it also stands in a terminal, where all would not fit. ``wraps``: there it
    may take two lines.
    """

    head: str
    show: Callable[[QualityRow], str]
    left: bool = False
    narrow: bool = True
    wraps: bool = False


def _nats(value: float) -> str:
    """Two digits that count, however small: ``.0018``, ``2e-12``."""
    if value < 5e-6:
        return f"{value:.0e}"
    return f"{value:.2g}" if value >= 0.1 else f"{value:.5f}".rstrip("0") if value < 1e-3 else f"{value:.4f}"


def _bits(row: QualityRow) -> str:
    k, v = row.size.bits_k, row.size.bits_v
    return f"{k:g}" if k == v else f"{k:g}/{v:g}"


def _share(row: QualityRow) -> str:
    return "refused" if row.share_tokens is None else f"every {row.share_tokens}"


def _shannon(row: QualityRow) -> str:
    fields = row.fields()
    return "" if row.noise else f"{fields['k_over_shannon']:.2g}/{fields['v_over_shannon']:.2g}"


COLUMNS: Final = (
    Column("K/V codec", lambda r: "noise floor" if r.noise else r.spec, left=True),
    Column("exact", lambda r: "" if r.noise else r.protection.replace(",", ", "), left=True, wraps=True),
    Column("bits", _bits, narrow=False),
    Column("B/token", lambda r: f"{r.size.bytes_per_token:,.0f}"),
    Column("at 8k", lambda r: format_bytes(r.size.bytes_at_8k), narrow=False),
    Column("KL", lambda r: _nats(r.quality.kl_mean)),
    Column("p99", lambda r: _nats(r.quality.kl_p99), narrow=False),
    Column("max", lambda r: _nats(r.quality.kl_max), narrow=False),
    Column("top-1 %", lambda r: f"{r.quality.same_top1:.1%}".rstrip("%")),
    Column("decided %", lambda r: f"{r.quality.decided_top1:.1%}".rstrip("%"), narrow=False),
    Column("d ln PPL", lambda r: f"{r.quality.delta_ln_ppl:+.4f} ± {r.quality.delta_ln_ppl_se:.4f}"),
    Column("packed %", lambda r: f"{r.cost.packed_reads:.0%}".rstrip("%"), narrow=False),
    Column("D/Shannon", _shannon, narrow=False),
    Column("encode us", lambda r: "" if r.noise else f"{r.cost.encode_us_per_token:.0f}", narrow=False),
    Column("shared", lambda r: "" if r.noise else _share(r), narrow=False),
)
CAPTION: Final = "KL in nats to the same model with f32 K and V; B/token: packed, scales counted"
NOTES: Final = (
    "KL in nats to the same model with f32 K and V, teacher-forced. exact: which keys stay so. B/token: of a packed "
    "token, scales counted; at 8k: of one sequence, its exact rows in f16. decided: top-1 where the model prefers its "
    "best token by more than 0.1 nat. d ln PPL: paired, with its standard error. packed: share of what was read. "
    "D/Shannon: squared error of K and of V over the least for Gaussian rows of the same energy. encode: microseconds "
    "a token in plain torch, not in a kernel. shared: where a shared prefix may end. noise floor: the exact model "
    "again in other chunks."
)


def markdown(rows: Sequence[QualityRow]) -> str:
    """One table for each text and length, and below it KL by position where there is more than one bucket."""
    parts = []
    for mine in by_text(rows):
        parts += [f"## {title(mine[0])}", "", *_lines(mine, COLUMNS), ""]
        buckets = tuple(mine[0].quality.kl_by_position)
        if len(buckets) > 1:
            columns = [*COLUMNS[:2], *(_bucket(name) for name in buckets)]
            parts += ["KL by position of the query:", "", *_lines(mine, columns), ""]
    return "\n".join([*parts, NOTES, ""])


def by_text(rows: Sequence[QualityRow]) -> list[list[QualityRow]]:
    """Rows of each text and length, in the order they were measured."""
    out: dict[tuple[str, int, int], list[QualityRow]] = {}
    for row in rows:
        out.setdefault((row.text, row.start_tokens, row.length_tokens), []).append(row)
    return list(out.values())


def title(row: QualityRow) -> str:
    """Which text, and the model's own perplexity on it."""
    where = f" from token {row.start_tokens:,}" if row.start_tokens else ""
    return f"{row.text}, {row.length_tokens:,} tokens{where} (exact PPL {row.quality.exact_ppl:.2f})"


def _bucket(name: str) -> Column:
    return Column(name, lambda row: _nats(row.quality.kl_by_position[name]))


def _lines(rows: Sequence[QualityRow], columns: Sequence[Column]) -> list[str]:
    heads = [column.head for column in columns]
    rule = [":---" if column.left else "---:" for column in columns]
    cells = [[column.show(row) for column in columns] for row in rows]
    return ["| " + " | ".join(one) + " |" for one in (heads, rule, *cells)]

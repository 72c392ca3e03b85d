"""The table behind ``kvist model PATH``: ``describe`` gives the data (for ``--json``), ``render`` draws it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from kvist.cli.model_facts import describe, ranges
from kvist.spec.format import ELEMENTS, INT8T
from kvist.spec.layout import CacheLayout
from kvist.spec.model import ModelSpec
from kvist.units import format_bytes

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

__all__ = ["describe", "light_table", "render"]

_BAR: Final = 12


def light_table(title: str, *columns: str, left: tuple[str, ...] = ()) -> Table:
    """A light table whose columns are right-aligned unless named in ``left``."""
    from rich import box
    from rich.table import Table

    table = Table(
        title=f"\n{title}",
        title_justify="left",
        title_style="bold",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
    )
    for column in columns:
        table.add_column(column, justify="left" if column in left else "right", overflow="fold")
    return table


def count_text(n: int) -> str:
    """``134515008`` -> ``134.5M``."""
    for size, unit in ((10**12, "T"), (10**9, "B"), (10**6, "M")):
        if n >= size:
            return f"{n / size:.4g}{unit}"
    return f"{n:,}"


def _headline(d: dict[str, Any]) -> RenderableType:
    from rich.text import Text

    line = Text(d["name"] or d["architecture"], style="bold")
    facts = [d["architecture"], f"{d['layers']} layers"]
    if d["weights"]:
        total, active = d["weights"]["total"], d["weights"]["active"]
        facts.append(
            f"{count_text(total)} weights" + (f", {count_text(active)} of them active" if active < total else "")
        )
    if d["weight_bytes"]:
        facts.append(f"{format_bytes(d['weight_bytes'])} of files")
    if d["context_tokens"]:
        facts.append(f"context {d['context_tokens']:,}")
    if d["vocab"]:
        facts.append(f"vocabulary {d['vocab']:,}")
    return line.append("  " + " · ".join(facts), style="not bold dim")


def _costs(d: dict[str, Any]) -> RenderableType:
    lengths = list(next(iter(d["sequence_bytes"].values())))
    heads = [f"{int(n):,} tokens" + (" (full)" if int(n) == d["context_tokens"] else "") for n in lengths]
    later = d["bytes_per_later_token"] if d["bytes_per_later_token"] != d["bytes_per_token"] else {}
    more = ["windows full"] if later else []
    table = light_table("What one sequence costs", "format", "bytes / token", *more, *heads, left=("format",))
    for name, sizes in d["sequence_bytes"].items():
        rates = [f"{d['bytes_per_token'][name]:,}", *([f"{later[name]:,}"] if later else [])]
        table.add_row(name, *rates, *(format_bytes(sizes[n]) for n in lengths))
    if d["state_bytes"]:
        table.caption = f"{format_bytes(d['state_bytes'])} of each is state, whatever the length"
    return table


def _layers(d: dict[str, Any]) -> RenderableType:
    names = ("layers", "n", "sees", "q heads", "keeps", "bytes / token", "share")
    table = light_table(f"Layers, in {d['format']}", *names, left=("layers", "sees", "keeps", "share"))
    longest = list(next(iter(d["sequence_bytes"].values())))[-1]
    table.caption = f"share: of a sequence of {int(longest):,} tokens"
    total = sum(run["sequence_bytes"] for run in d["runs"]) or 1
    for run in d["runs"]:
        share = run["sequence_bytes"] / total
        bar = "█" * round(share * _BAR) or ("▏" if share else "")
        table.add_row(
            run["span"],
            str(run["count"]),
            run["sees"],
            str(run["q_heads"] or ""),
            run["keeps"],
            f"{run['bytes_per_token']:,}" if run["bytes_per_token"] else "",
            f"{bar:<{_BAR}} {share:>4.0%}" if share else "",
        )
    return table


def _groups(d: dict[str, Any]) -> RenderableType:
    title = f"Groups: blocks of {format_bytes(d['block_bytes'])} ({d['block_bytes']:,} bytes)"
    names = ("group", "layers", "places", "keeps", "tokens / block", "padding")
    table = light_table(title, *names, left=("layers", "keeps"))
    for group in d["groups"]:
        padding = f"{group['padding_percent']:.1f} %" if group["padding_bytes"] else "none"
        places = f"{len(group['layers'])} of {group['places']}" if len(group["layers"]) < group["places"] else ""
        table.add_row(
            str(group["id"]),
            group["span"],
            places or str(group["places"]),
            group["keeps"],
            f"{group['tokens_per_block']:,}",
            padding,
        )
    return table


def _tile(stream: dict[str, Any], rows: int) -> str:
    """Order of a tile's numbers: see ``spec/layout.py``."""
    dim, by_slot, element = stream["dim"], stream["name"] == "v", ELEMENTS[stream["element"]]
    if element.in_cells:
        codes = f"{rows // 2} x {dim} x 2" if by_slot else f"{rows // 16} x {dim // 2} x 16 x 2"
        return f"{codes} codes of {element.bits} bits, {rows} scales f16"
    if stream["element"] == INT8T.name:
        numbers = f"{rows // 2} x {dim} x 2" if by_slot else f"{rows // 16} x {dim // 2} x 16 x 2"
        return f"{numbers} int8t, {rows} scales f16"
    return (f"{rows} x {dim}" if by_slot else f"{rows // 16} x {dim} x 16") + f" {stream['element']}"


def _block_map(d: dict[str, Any]) -> RenderableType:
    """Where the streams of the first layer's first head lie, for every geometry that a block can have."""
    names = ("groups", "layer record", "head record", "stream", "tile", "offset", "bytes")
    table = light_table(
        "Inside a block: \\[layer]\\[head]\\[stream]\\[tile]", *names, left=("groups", "stream", "tile")
    )
    shapes: dict[str, list[dict[str, Any]]] = {}
    for group in d["groups"]:
        shapes.setdefault(f"{group['streams']}{group['kv_heads']}", []).append(group)
    for groups in shapes.values():
        first = groups[0]
        for i, stream in enumerate(first["streams"]):
            lead = (ranges([g["id"] for g in groups]), f"{first['record_bytes']:,}", f"{first['head_bytes']:,}")
            table.add_row(
                *(lead if i == 0 else ("", "", "")),
                stream["name"],
                _tile(stream, first["rows_per_block"]),
                f"+{stream['offset_bytes']:,}",
                f"{stream['bytes']:,}",
            )
    return table


def render(spec: ModelSpec, layout: CacheLayout, console: Console, kinds: Mapping[str, int] | None = None) -> None:
    """Draw the description. ``kinds``: bytes of each kind of matrix that loading makes of the files at hand."""
    from rich.markup import escape
    from rich.table import Table

    d = describe(spec, layout, kinds)
    console.print(_headline(d))
    console.print(_costs(d))
    console.print(_layers(d))
    if d["groups"]:
        console.print(_groups(d))
        console.print(_block_map(d))
    console.print()
    lines = [("cut", d["rollback"]), ("share", d["sharing"])]
    if d["loaded_bytes"]:
        parts = ", ".join(f"{kind} {format_bytes(n)}" for kind, n in d["loaded_bytes"].items())
        lines.insert(0, ("weights", f"{parts} in memory (--dtype packed)"))
    if d["state_blocks"]:
        lines.append(("state", f"{d['state_blocks']} block{'s' * (d['state_blocks'] > 1)} a sequence"))
    if not d["runnable"]:
        why = "; ".join(d["unsupported"]) or "only the shape of its cache is known"
        lines.append(("run", f"planned, not run: {why}"))
    lines += [("note", note) for note in d["notes"]]
    facts = Table.grid(padding=(0, 2))
    for head, text in lines:
        facts.add_row(f"[bold]{head:>7}[/]", escape(text))
    console.print(facts)

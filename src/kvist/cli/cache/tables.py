"""What ``stat`` and ``ls`` draw. Names that people chose are printed without what a terminal would obey."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from kvist.cli.cache.chains import TOKEN_BYTES, Chain
from kvist.cli.cache.facts import Facts, Share
from kvist.ids import RecordId
from kvist.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.table import Table
    from rich.text import Text

SHORT_ID = 12
SHORT_ORIGIN = 8
BAR_CELLS = 40
FIRST_TOKENS = 8


def clean(name: str) -> str:
    """A name as one line of printable characters; ``-`` for none."""
    return "".join(char if char.isprintable() else "?" for char in name) or "-"


def counted(n: int, what: str) -> str:
    """``1 record``, ``2,000 records``."""
    return f"{n:,} {what}" + ("" if n == 1 else "s")


def facts_table(facts: Facts) -> Table:
    """A line for each fact of a place."""
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(f"{facts.kind} tier in {clean(facts.place.shown)}"), title_justify="left", show_header=False
    )
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _rows(facts):
        table.add_row(name, Text(value))
    return table


def _rows(facts: Facts) -> list[tuple[str, str]]:
    usage, place, capacity = facts.usage, facts.place, facts.capacity_bytes
    bound = "no bound of its own" if capacity is None else format_bytes(capacity)
    if place.folder and place.size_bytes is None:
        bound += " (what a folder without a size may take)"
    rows = [
        ("condition", facts.condition + (f": {facts.reason}" if facts.reason else "")),
        ("records", f"{usage.records:,}"),
        ("used", format_bytes(usage.used_bytes)),
        ("capacity", bound),
    ]
    if facts.on_disk_bytes is not None and facts.free_bytes is not None:
        rows += [
            ("on disk", f"{format_bytes(facts.on_disk_bytes)}, index and free slots included"),
            ("reserve", f"{format_bytes(place.reserve_bytes)} stay free ({format_bytes(facts.free_bytes)} are)"),
            ("sealed", _sealed(facts)),
        ]
    return [
        *rows,
        ("foreign files", f"{usage.foreign_files:,}"),
        ("damaged", f"{counted(usage.damaged_records, 'record')} found and dropped so far"),
        ("evicted", f"{counted(usage.evicted_records, 'record')} so far"),
    ]


def _sealed(facts: Facts) -> str:
    """Whether there are keys, and what lies there that does not go by them."""
    sealed, plain = facts.sealed_records, facts.plain_records
    if facts.place.sealed:
        said = "yes: each tenant's records with a key of his own"
        if plain:
            said += f". {counted(plain, 'record')} of before lie plain beside {sealed:,} sealed: no server uses them"
        return said
    return (
        f"no. But {counted(sealed, 'record')} are sealed, and there are no keys: no server uses them"
        if sealed
        else "no"
    )


def usage_bar(facts: Facts, *, ascii_only: bool) -> Text | None:
    """Used of capacity; None where there is no bound."""
    from rich.text import Text

    if not facts.capacity_bytes:
        return None
    share = facts.usage.used_bytes / facts.capacity_bytes
    n = min(BAR_CELLS, max(int(facts.usage.used_bytes > 0), round(share * BAR_CELLS)))
    full, free = ("#", ".") if ascii_only else ("█", "░")
    line = Text(full * n, "green" if share <= 1 else "bold red")
    return line.append(free * (BAR_CELLS - n), "dim").append(
        f" {share:.1%} of {format_bytes(facts.capacity_bytes)}", ""
    )


def shares_table(what: str, shares: Sequence[Share]) -> Table:
    """Origins or tenants with what is theirs."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title_justify="left")
    table.add_column(what, overflow="fold")
    for column in ("records", "bytes"):
        table.add_column(column, justify="right", no_wrap=True)
    for share in shares:
        table.add_row(Text(clean(share.name)), f"{share.records:,}", format_bytes(share.data_bytes))
    return table


def chains_table(
    chains: Sequence[Chain], order: Mapping[RecordId, int], firsts: Sequence[str] | None, sealed: bool
) -> Table:
    """A line for each chain. ``order``: its place by last use, 1 the latest; ``firsts``: its first tokens."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("id", no_wrap=True, min_width=SHORT_ID)
    table.add_column("tenant", overflow="ellipsis", no_wrap=True)
    for column in ("records", "tokens", "bytes", "use", "hits"):
        table.add_column(column, justify="right", no_wrap=True, min_width=len(column))
    last = "origin" if firsts is None else "first tokens"
    table.add_column(last, overflow="fold", min_width=len(last))
    for n, chain in enumerate(chains):
        label = chain.last[0].label
        cells: list[str | Text] = [
            chain.id.hex()[:SHORT_ID],
            Text(clean(label.tenant)),
            f"{chain.records:,}" + ("" if chain.whole else "*"),
            "sealed" if sealed else f"{chain.tokens:,}",
            format_bytes(chain.data_bytes),
            str(order[chain.id]) if chain.used else "-",
            f"{chain.hits:,}" if chain.used else "-",
            label.origin.hex()[:SHORT_ORIGIN] if firsts is None else firsts[n],
        ]
        table.add_row(*cells)
    return table


def token_ids(packed: bytes, most: int) -> list[int]:
    """The first ids of a label's tokens."""
    n = min(most, len(packed) // TOKEN_BYTES)
    return list(struct.unpack_from(f"<{n}i", packed))

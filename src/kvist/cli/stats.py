"""What the pool holds and what the cache saved, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvist.units import format_bytes

if TYPE_CHECKING:
    from kvist.runtime.llm import LLM


def print_stats(llm: LLM) -> None:
    """Pool, hits and work so far."""
    from rich.console import Console
    from rich.table import Table

    cache = llm.engine.scheduler.cache
    size = llm.built.layout.block_bytes
    counters = cache.counters
    pool = Table(title=f"pool of {cache.total_blocks} blocks, {format_bytes(size)} each", title_justify="left")
    for column in ("", "blocks", "bytes"):
        pool.add_column(column, justify="left" if not column else "right")
    for name, blocks in (
        ("free", cache.free_blocks),
        ("cached, can be evicted", cache.cached_blocks),
        ("held by running sequences", cache.live_blocks),
        ("total", cache.total_blocks),
    ):
        pool.add_row(name, str(blocks), format_bytes(blocks * size))
    asked, hit = counters.query_tokens, counters.hit_tokens
    share = f" ({hit / asked:.0%})" if asked else ""
    work = Table(title="since the start", title_justify="left", show_header=False)
    work.add_column()
    work.add_column(justify="right")
    for name, value in (
        ("prompt tokens asked", f"{asked}"),
        ("of these found in the cache", f"{hit}{share}"),
        ("blocks copied for partial hits", f"{counters.copied_blocks}"),
        ("blocks evicted", f"{counters.evicted_blocks}"),
    ):
        work.add_row(name, value)
    console = Console()
    console.print(pool)
    console.print(work)

"""The console that answers are drawn on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


@contextmanager
def screen() -> Iterator[Console]:
    """Standard output. Away from a terminal lines lose the blanks that fill tables up to their width."""
    from rich.console import Console

    console = Console()
    if console.is_terminal:
        yield console
        return
    with console.capture() as held:
        yield console
    for line in held.get().removesuffix("\n").split("\n"):
        print(line.rstrip())

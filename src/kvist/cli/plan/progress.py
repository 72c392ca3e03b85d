"""A progress bar on standard error, where a person looks; where a program listens, lines or nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Steps:
    """``tell(done, total, what)`` moves the bar."""

    tell: Callable[[int, int, str], None]

    def counted(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items, each moving the bar when the next one is asked for."""
        known = list(items)
        for i, item in enumerate(known):
            self.tell(i, len(known), "")
            yield item
        self.tell(len(known), len(known), "")


def _line(title: str, done: int, of: int, what: str) -> None:
    print(f"{title}: {done} of {of}" + (f", {what}" if what else ""), file=sys.stderr, flush=True)


@contextmanager
def progress(title: str, total: int | None = None, *, lines: bool = False) -> Iterator[Steps]:
    """A bar that goes away when it is done. Away from a terminal it is silent, or tells each step with ``lines``."""
    if not sys.stderr.isatty():
        yield Steps(lambda done, of, what: _line(title, done, of, what) if lines else None)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)

        def tell(done: int, of: int, what: str) -> None:
            bar.update(task, completed=done, total=of, description=f"{title} {what}".strip())

        yield Steps(tell)

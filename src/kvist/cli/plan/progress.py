"""A progress bar on standard error, where a person looks; nothing where a program listens."""

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


@contextmanager
def progress(title: str, total: int | None = None) -> Iterator[Steps]:
    """A bar that goes away when it is done; silent unless standard error is a terminal."""
    if not sys.stderr.isatty():
        yield Steps(lambda done, total, what: None)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)

        def tell(done: int, of: int, what: str) -> None:
            bar.update(task, completed=done, total=of, description=f"{title} {what}".strip())

        yield Steps(tell)

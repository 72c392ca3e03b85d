"""Loading a model with a progress bar, from the options that commands share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from kvist.cli.options import Settings

if TYPE_CHECKING:
    from kvist.runtime.build import BuildOptions
    from kvist.runtime.llm import LLM


def build_options(settings: Settings) -> BuildOptions:
    """How to run the model, from the settings of a command."""
    from kvist.runtime.build import BuildOptions

    return BuildOptions(
        dtype=settings.dtype,
        attention=settings.attention,
        ops="reference" if settings.attention == "reference" else "best",
        numerics=settings.numerics,
        threads=settings.threads,
        poison=settings.poison,
        engine=settings.engine,
    )


def load_llm(settings: Settings, *, quiet: bool) -> LLM:
    """The model that the settings name; the packaged one when they name none."""
    from kvist.runtime.llm import load

    options = build_options(settings)
    if settings.attention != "reference" and not quiet:
        _say_if_slow()
    with _progress(quiet) as on_tensor:
        return load(settings.model, options, on_tensor=on_tensor)


def _say_if_slow() -> None:
    from kvist.kernels.native_module import absent_reason

    reason = absent_reason()
    if reason:
        print(f"note: using the slower reference kernels: {reason}", file=sys.stderr)


Progress = Callable[[int, int], None]


def _progress(quiet: bool) -> AbstractContextManager[Progress | None]:
    return nullcontext() if quiet or not sys.stderr.isatty() else _bar()


@contextmanager
def progress_bar() -> Iterator[Callable[[float], None]]:
    """A bar on a terminal, nothing elsewhere; moved by the part that is done, in [0, 1]."""
    with _progress(False) as move:
        yield (lambda part: None) if move is None else (lambda part: move(round(part * 1000), 1000))


@contextmanager
def _bar() -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("loading weights"), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("weights", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)

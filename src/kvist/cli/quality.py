"""``kvist lab quality``: what a way to write K and V does to a model's predictions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TextIO

import typer

from kvist.cli import options as opt
from kvist.errors import BadValue

if TYPE_CHECKING:
    from kvist.lab.quality.ask import QualityAsk, Text
    from kvist.lab.quality.rows import QualityRow
    from kvist.lab.rig import Model

RECORD: Final = "quality.jsonl"
TABLE: Final = "quality.md"
PLOT: Final = "quality.png"
HELP: Final = "KL, top-1 and perplexity of K and V codecs against the exact cache, teacher-forced."

Specs = Annotated[
    list[str], typer.Argument(help="Codecs of K and V: lm4, ms4/lm4, ...", metavar="SPEC", show_default=False)
]
Texts = Annotated[list[Path], typer.Option("--text", help="A UTF-8 text file (repeatable).", show_default=False)]
Lengths = Annotated[str, typer.Option(help="Tokens of each text, separated by commas.", metavar="INT,...")]
Start = Annotated[str, typer.Option(help="Tokens at the start of each file that are left out.", metavar="INT")]
Protect = Annotated[
    list[str] | None,
    typer.Option(
        help="Which keys stay exact: none, recent=32,sinks=4, or cell=64,sinks=4 as when serving (the default); "
        "repeatable.",
        metavar="RULE",
        show_default=False,
    ),
]
Calibrate = Annotated[
    Path | None,
    typer.Option(help="Another text, to learn means from (sm and ms need them).", show_default=False),
]
CalibrateTokens = Annotated[str, typer.Option(help="Tokens of it.", metavar="INT")]
Out = Annotated[
    Path | None,
    typer.Option(help=f"Keep the record ({RECORD}), a table ({TABLE}) and a plot ({PLOT}) here.", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="The record's lines on standard output, nothing else.")]


def command(
    ctx: typer.Context,
    specs: Specs,
    text: Texts,
    model: opt.Model = None,
    length: Lengths = "512",
    start: Start = "0",
    protect: Protect = None,
    calibrate: Calibrate = None,
    calibrate_tokens: CalibrateTokens = "2048",
    out: Out = None,
    as_json: AsJson = False,
    threads: opt.Threads = None,
    config: opt.Config = None,
) -> None:
    """Every codec under every rule, on the first tokens of every text."""
    from kvist.lab.quality.ask import QualityAsk
    from kvist.lab.quality.protect import SERVING, Protection
    from kvist.lab.record import opened

    settings = opt.resolve(ctx.params)
    _set_threads(settings.threads)
    ask = QualityAsk(
        methods=_methods(specs),
        lengths=[_count("length", part, 2) for part in length.split(",")],
        protections=[Protection.parse(rule) for rule in protect or []] or [SERVING],
    )
    asked = _Asked(
        settings.model, ask, text, _count("start", start), calibrate, _count("calibrate-tokens", calibrate_tokens, 2)
    )
    asked.check()
    if out is None:
        _run(asked, None, as_json)
        return
    with opened(out, RECORD) as file:
        _run(asked, file, as_json)


def _count(name: str, text: str, least: int = 0) -> int:
    try:
        count = int(text)
    except ValueError:
        count = -1
    if count < least:
        raise BadValue(name, text, f"a whole number >= {least}")
    return count


def _set_threads(threads: int) -> None:
    from kvist.runtime.build import MOST_THREADS

    if not 0 <= threads <= MOST_THREADS:
        raise BadValue("threads", threads, f"0 (as many as torch finds good) or a count up to {MOST_THREADS}")
    if threads:
        import torch

        torch.set_num_threads(threads)


def _methods(specs: list[str]) -> list[Any]:
    from kvist.kernels.codec import registry
    from kvist.lab.quality.method import Method

    return [Method(spec, *registry.parse(spec)) for spec in dict.fromkeys(specs)]


@dataclass(frozen=True, slots=True)
class _Asked:
    """All that was asked, with files still unread."""

    model: str | None
    ask: QualityAsk
    files: list[Path]
    start_tokens: int
    calibrate: Path | None
    calibrate_tokens: int

    @property
    def path(self) -> Path:
        """Of the model."""
        from kvist.runtime.packaged import packaged_model
        from kvist.spec.read import locate

        return locate(Path(self.model) if self.model is not None else packaged_model())

    def check(self) -> None:
        """Before anything heavy. Raises ``BadValue``, ``UsageError`` or ``ModelError``."""
        from kvist.spec.read import read_spec

        spec = read_spec(self.path)
        self.ask.check(spec, calibrated=self.calibrate is not None)
        if self.calibrate is None:
            return
        if any(self.calibrate.resolve() == file.resolve() for file in self.files):
            raise BadValue("calibrate", str(self.calibrate), "another text than those that are measured")
        if self.calibrate_tokens > spec.context_tokens:
            raise BadValue("calibrate-tokens", self.calibrate_tokens, f"at most {spec.context_tokens}")

    def texts(self) -> tuple[list[Text], Text | None]:
        """The texts to measure, and the one to calibrate on if that is needed. Raises ``UsageError``."""
        from kvist.lab.quality.ask import Text
        from kvist.runtime.build import read_text_side

        tokenizer, _ = read_text_side(self.path)
        longest = max(self.ask.lengths)
        texts = [
            Text.read(file, tokenizer, start_tokens=self.start_tokens, length_tokens=longest)
            for file in dict.fromkeys(self.files)
        ]
        if self.calibrate is None or not any(method.needs_mean for method in self.ask.methods):
            return texts, None
        return texts, Text.read(self.calibrate, tokenizer, start_tokens=0, length_tokens=self.calibrate_tokens)


def _run(asked: _Asked, file: TextIO | None, as_json: bool) -> None:
    from dataclasses import replace

    import torch

    from kvist.cli.plan.progress import progress
    from kvist.lab.quality.rows import line, setting
    from kvist.lab.quality.run import Runner
    from kvist.lab.rig import Model

    texts, other = asked.texts()
    model = Model.load(asked.path, "f32")
    rows = []
    if file is not None:
        file.truncate(0)  # only now: a model that cannot be loaded leaves an older record alone
    with progress("measuring") as steps:
        ask, learnt = _calibrated(asked, model, other, steps.tell)
        common = setting(model, torch.get_num_threads(), learnt)
        for row in Runner(model, replace(ask, texts=texts), steps.tell).rows():
            rows.append(row)
            text = line(common, row)
            if file is not None:
                file.write(text + "\n")
                file.flush()
            if as_json:
                print(text, flush=True)
    if not as_json:
        _show(model.name, rows)
    _close(model.name, rows, None if file is None else Path(file.name), as_json)


def _calibrated(
    asked: _Asked, model: Model, other: Text | None, tell: Callable[[int, int, str], None]
) -> tuple[QualityAsk, str]:
    """The ask with means that a text gave, and that text in words for the record."""
    if other is None:
        return asked.ask, ""
    from kvist.lab.quality.learn import calibrate
    from kvist.spec.digest import weights_digest

    tell(0, 1, f"means of {other.name}")
    found = calibrate(model, weights_digest(asked.path), other.tokens, asked.ask.pace)
    return asked.ask.given(found), f"{other.name}, {found.tokens} tokens, {found.digest.hex()[:8]}"


def _show(model: str, rows: list[QualityRow]) -> None:
    from rich.console import Console
    from rich.table import Table

    from kvist.lab.quality.table import CAPTION, COLUMNS, by_text, title

    columns = [column for column in COLUMNS if column.narrow]
    for mine in by_text(rows):
        table = Table(title=f"{model}: {title(mine[0])}", title_justify="left", caption=CAPTION, caption_justify="left")
        for column in columns:
            table.add_column(column.head, justify="left" if column.left else "right", no_wrap=not column.wraps)
        for row in mine:
            table.add_row(*(column.show(row) for column in columns))
        Console().print(table)


def _close(model: str, rows: list[QualityRow], record: Path | None, as_json: bool) -> None:
    """The table, the plot, and what was kept where. Notes go to standard error."""
    from kvist.lab.quality.plot import can_plot, plot
    from kvist.lab.quality.table import markdown

    if record is None:
        note = "nothing was kept: --out DIR writes the record, a table and a plot"
    else:
        table, picture = record.with_name(TABLE), record.with_name(PLOT)
        table.write_text(f"# Quality of {model}\n\n{markdown(rows)}", encoding="utf-8")
        note = f"kept in {record} and {table}"
        if can_plot():
            plot(rows, f"{model}: bytes against KL", picture)
            note += f", drawn in {picture}"
        else:
            note += "; no plot: matplotlib is not installed (pip install 'kvist[plot]')"
    if not as_json:
        print(f"note: {note}", file=sys.stderr)

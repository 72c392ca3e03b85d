"""``kvist bench``: measure any OpenAI-compatible server, and compare two measurements."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kvist.errors import UsageError

if TYPE_CHECKING:
    from kvist.bench.report import Report

app = typer.Typer(help="Measure any OpenAI-compatible server.", no_args_is_help=True)
KEYS: Final = ["KVIST_API_KEY", "OPENAI_API_KEY"]
KNOBS: Final = (
    "prompts", "groups", "prefix_tokens", "suffix_tokens", "output_tokens", "clients", "rounds", "range_ratio",
    "subagents", "subagent_tokens", "think_s", "order", "trace", "speedup", "block_tokens",
)  # fmt: skip
"""Flags that belong to workloads; one that a workload does not have is refused."""


def _count(help: str) -> Any:
    return typer.Option(help=help, show_default=False, metavar="INT", rich_help_panel="Workload")


def _knob(help: str, metavar: str) -> Any:
    return typer.Option(help=help, show_default=False, metavar=metavar, rich_help_panel="Workload")


Count = int | None
Url = Annotated[str, typer.Option(help="Address of the server, with or without /v1.", envvar="KVIST_BENCH_URL")]
Model = Annotated[str | None, typer.Option(help="Model to name (default: the first of /v1/models).")]
Api = Annotated[str, typer.Option(help="auto, completions or chat.", metavar="NAME")]
Form = Annotated[str, typer.Option(help="Prompts as ids or text; auto: ids where accepted.", metavar="NAME")]
Vocab = Annotated[Count, typer.Option(help="Number of token ids, where the server does not tell.", metavar="INT")]
ApiKey = Annotated[str | None, typer.Option(help="Bearer token.", envvar=KEYS, show_envvar=True)]
Name = Annotated[str, typer.Option(help="See kvist bench workloads.", metavar="NAME", rich_help_panel="Workload")]
Scale = Annotated[float, typer.Option(help="Multiplies the preset's sizes.", rich_help_panel="Workload")]
Seed = Annotated[int, typer.Option(help="Same seed, same requests.", rich_help_panel="Workload")]
Prompts = Annotated[Count, _count("Requests (of a group; of the whole for random and trace).")]
Groups = Annotated[Count, _count("Groups that share a prefix.")]
PrefixTokens = Annotated[Count, _count("Tokens shared in front.")]
SuffixTokens = Annotated[Count, _count("Tokens of a request's own (of a turn, of a tool result).")]
OutputTokens = Annotated[Count, _count("Tokens to answer.")]
Clients = Annotated[Count, _count("Conversations or agents.")]
Rounds = Annotated[Count, _count("Turns of a conversation, tool calls of an agent.")]
Subagents = Annotated[Count, _count("Cold prompts after each tool call.")]
SubagentTokens = Annotated[Count, _count("Longest cold prompt.")]
RangeRatio = Annotated[float | None, _knob("Lengths within n (1 +- ratio).", "FLOAT")]
Think = Annotated[float | None, _knob("Seconds before a next turn.", "FLOAT")]
Order = Annotated[str | None, _knob("grouped, round-robin or shuffled.", "NAME")]
TraceFile = Annotated[str | None, _knob("JSON lines (also .gz, .xz), as Mooncake writes them.", "FILE")]
Speedup = Annotated[float | None, _knob("Times as fast as recorded.", "FLOAT")]
BlockTokens = Annotated[Count, _count("Tokens that a hash id of the trace stands for.")]
Concurrency = Annotated[Count, typer.Option(help="Requests kept in flight.", metavar="INT", rich_help_panel="Load")]
Rate = Annotated[float | None, typer.Option(help="Poisson arrivals a second.", rich_help_panel="Load")]
MaxConcurrency = Annotated[Count, typer.Option(help="Bound of a rate or trace.", metavar="INT", rich_help_panel="Load")]
Warmup = Annotated[int, typer.Option(help="Requests before, of another seed, not counted.", rich_help_panel="Load")]
Calibrate = Annotated[int, typer.Option(help="Cold prompts before, to read TTFT by.", rich_help_panel="Load")]
Flush = Annotated[bool, typer.Option("--flush", help="Empty the server's cache first.", rich_help_panel="Load")]
Temperature = Annotated[float, typer.Option(help="Of sampling.", rich_help_panel="Load")]
Timeout = Annotated[float, typer.Option("--timeout", help="Seconds for a request.", rich_help_panel="Load")]
Wait = Annotated[float, typer.Option("--wait", help="Seconds to wait for the server.", rich_help_panel="Load")]
StopAtEos = Annotated[bool, typer.Option("--stop-at-eos", help="Let answers end early.", rich_help_panel="Load")]
SloText = Annotated[str | None, typer.Option("--slo", help="ttft=2s,tpot=100ms (also itl, e2e).", metavar="LIST")]
AsJson = Annotated[str | None, typer.Option("--json", help="JSON into FILE, or - (nothing else).", metavar="FILE|-")]
Details = Annotated[bool, typer.Option("--details", help="Every request in the JSON.")]
Save = Annotated[Path | None, typer.Option(help="Report and every request as JSON, for compare.", metavar="FILE")]
Plot = Annotated[Path | None, typer.Option(help="Draw TTFT and hits (.png, .svg).", metavar="FILE")]


@app.callback()
def main() -> None:
    """Measure any OpenAI-compatible server."""


@app.command("serve", help="Send a workload to a server; report latency, throughput and cache hits.")
def serve(
    ctx: typer.Context,
    url: Url = "http://127.0.0.1:8000",
    model: Model = None,
    api: Api = "auto",
    form: Form = "auto",
    vocab: Vocab = None,
    api_key: ApiKey = None,
    workload: Name = "generated-shared-prefix",
    scale: Scale = 1.0,
    seed: Seed = 0,
    prompts: Prompts = None,
    groups: Groups = None,
    prefix_tokens: PrefixTokens = None,
    suffix_tokens: SuffixTokens = None,
    output_tokens: OutputTokens = None,
    clients: Clients = None,
    rounds: Rounds = None,
    range_ratio: RangeRatio = None,
    subagents: Subagents = None,
    subagent_tokens: SubagentTokens = None,
    think_s: Think = None,
    order: Order = None,
    trace: TraceFile = None,
    speedup: Speedup = None,
    block_tokens: BlockTokens = None,
    concurrency: Concurrency = None,
    rate: Rate = None,
    max_concurrency: MaxConcurrency = None,
    warmup: Warmup = 0,
    calibrate: Calibrate = 8,
    flush: Flush = False,
    temperature: Temperature = 0.0,
    timeout_s: Timeout = 600.0,
    wait_s: Wait = 0.0,
    stop_at_eos: StopAtEos = False,
    slo: SloText = None,
    as_json: AsJson = None,
    details: Details = False,
    save: Save = None,
    plot: Plot = None,
) -> int:
    """0: all answered; 1: one failed (in any stage), or it cannot be measured; 2: a wrong call; 130: interrupted."""
    from kvist.bench import plot as drawing
    from kvist.bench.options import BenchOptions
    from kvist.bench.run import run
    from kvist.cli.plan.progress import progress

    asked = dict(ctx.params)
    knobs = {name: asked[name] for name in KNOBS if asked[name] is not None}
    source = ctx.get_parameter_source("workload")
    if trace is not None and source is not None and source.name == "DEFAULT":
        asked["workload"] = "trace"
    for name in (*KNOBS, "as_json", "details", "save", "plot"):
        del asked[name]
    options = BenchOptions(**asked, knobs=knobs)
    options.load_workload()
    for file in (save, plot, None if as_json in (None, "-") else Path(str(as_json))):
        if file is not None:
            _check_writable(file)
    if plot is not None:
        drawing.check(plot)
    with progress("measuring") as steps:
        report = run(options, steps.tell)
    if as_json != "-":
        _show(report)
    _keep(report, as_json, details, save)
    if plot is not None:
        drawing.plot(report, plot)
    return report.exit_code


def _check_writable(file: Path) -> None:
    folder = file.parent
    if file.is_dir() or not folder.is_dir() or not os.access(file if file.exists() else folder, os.W_OK):
        raise UsageError(f"{file} cannot be written", remedy="name a file in a folder that exists and is yours")


def _show(report: Report) -> None:
    from kvist.bench.table import tables
    from kvist.cli.plan.screen import screen

    with screen() as console:
        for table in tables(report):
            console.print(table)
    stops = (f"stopped: {report.stopped}",) if report.stopped else ()
    for line in (*stops, *(f"note: {note}" for note in report.notes)):
        print(line, file=sys.stderr)
    if report.interrupted:
        print("interrupted: this is what was measured so far", file=sys.stderr)


def _keep(report: Report, as_json: str | None, details: bool, save: Path | None) -> None:
    if as_json is not None:
        text = json.dumps(report.to_json(details=details), ensure_ascii=False, indent=1)
        if as_json == "-":
            print(text)
        else:
            Path(as_json).write_text(text + "\n", encoding="utf-8")
    if save is not None:
        save.write_text(json.dumps(report.to_json(details=True), ensure_ascii=False) + "\n", encoding="utf-8")


@app.command("compare", help="Two saved runs: B over A.")
def compare(
    a: Annotated[Path, typer.Argument(help="The run that is 1.", metavar="A.json")],
    b: Annotated[Path, typer.Argument(help="The run that is compared with it.", metavar="B.json")],
    as_json: Annotated[bool, typer.Option("--json", help="JSON on standard output, nothing else.")] = False,
) -> None:
    """Ratios, and what else differed between the runs."""
    from rich.table import Table

    from kvist.bench.compare import compare, read
    from kvist.cli.plan.screen import screen

    found = compare(read(a), read(b))
    if as_json:
        print(json.dumps(found.to_json(), ensure_ascii=False))
        return
    table = Table(title=f"A = {a}, B = {b}", title_justify="left")
    for head in ("", "A", "B", "B / A", "better is"):
        table.add_column(head, justify="right" if head in ("A", "B", "B / A") else "left")
    for row in found.rows:
        table.add_row(row.name, *("-" if v is None else f"{v:.4g}" for v in (row.a, row.b, row.ratio)), row.better)
    with screen() as console:
        console.print(table)
    for difference in found.differences:
        print(f"differs: {difference}", file=sys.stderr)


@app.command("workloads", help="The workloads and their knobs.")
def workloads() -> None:
    """Names, what each is, and defaults."""
    from kvist.bench.workload import registry

    for name in registry.names():
        knobs = ", ".join(f"{knob}={value}" for knob, value in registry.knobs(name).items() if knob in KNOBS)
        print(f"{name}: {registry.about(name)}\n  {knobs}")


@app.command("schema", help="The JSON schema of a report.")
def schema() -> None:
    """On standard output."""
    from kvist.bench.schema import schema

    print(json.dumps(schema(), indent=1))

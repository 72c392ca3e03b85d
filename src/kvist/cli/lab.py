"""``kvist lab``: measure formulas and methods against a real model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kvist.cli import options as opt
from kvist.cli import quality
from kvist.errors import BadValue
from kvist.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from kvist.lab.record import Setting, SweepRow
    from kvist.runtime.llm import LLM

RECORD: Final = "sweep.jsonl"
PLOT: Final = "sweep.png"
ModelArgument = Annotated[
    str | None,
    typer.Argument(help="A GGUF file or a Hugging Face folder (default: the packaged SmolLM2).", show_default=False),
]
Lengths = Annotated[str, typer.Option(help="Prompt tokens, separated by commas.", metavar="INT,...")]
Batch = Annotated[str, typer.Option(help="Sequences side by side.", metavar="INT")]
CacheModes = Annotated[str, typer.Option(help="on, off, or both.", metavar="on,off")]
Tokens = Annotated[
    str, typer.Option(help="Tokens generated per sequence (4 at most without the cache).", metavar="INT")
]
Out = Annotated[
    Path | None,
    typer.Option(help=f"Keep the record ({RECORD}) and a plot ({PLOT}) in this folder.", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="The record's lines on standard output, nothing else.")]
app = typer.Typer(help="Measure formulas and methods against a real model.", no_args_is_help=True)
app.command("quality", help=quality.HELP)(quality.command)


@app.callback()
def main() -> None:
    """Measure formulas and methods against a real model."""


@app.command("sweep", help="TTFT, TPOT and bytes of the cache over context lengths, with the cache and without.")
def sweep(
    ctx: typer.Context,
    model: ModelArgument = None,
    lengths: Lengths = "128,512,1024",
    batch: Batch = "1",
    cache: CacheModes = "on,off",
    tokens: Tokens = "16",
    out: Out = None,
    as_json: AsJson = False,
    dtype: opt.Dtype = None,
    attention: opt.Attention = None,
    numerics: opt.Numerics = None,
    threads: opt.Threads = None,
    kv_format: opt.KvFormat = None,
    kv_memory: opt.KvMemory = None,
    kv_blocks: opt.KvBlocks = None,
    block_tokens: opt.BlockTokens = None,
    token_budget: opt.TokenBudget = None,
    max_sequences: opt.MaxSequences = None,
    chunk_tokens: opt.ChunkTokens = None,
    context_tokens: opt.ContextTokens = None,
    config: opt.Config = None,
) -> None:
    """Every length with the cache, and with every token recomputing all before it."""
    from dataclasses import replace

    from kvist.cli.loading import load_llm
    from kvist.lab.ask import SweepAsk, pool_for
    from kvist.lab.record import opened
    from kvist.runtime.packaged import packaged_model
    from kvist.spec.read import locate, read_spec

    settings = opt.resolve(ctx.params)
    ask = SweepAsk(
        lengths=tuple(_whole("lengths", part) for part in lengths.split(",")),
        batch=_whole("batch", batch),
        cache=tuple(part.strip() for part in cache.split(",")),
        tokens=_whole("tokens", tokens),
    )
    spec = read_spec(locate(settings.model if settings.model is not None else packaged_model()))
    ask.check(spec, settings.engine.sched)
    pool = pool_for(ask, spec, settings.engine.cache)
    settings = replace(settings, engine=replace(settings.engine, cache=pool))
    if out is None:
        _run(load_llm(settings, quiet=as_json), ask, None, as_json)
        return
    with opened(out, RECORD) as file:
        _run(load_llm(settings, quiet=as_json), ask, file, as_json)


def _whole(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise BadValue(name, text, "a whole number") from None


def _run(llm: LLM, ask: Any, file: Any, as_json: bool) -> None:
    import torch

    from kvist.cli.plan.progress import progress
    from kvist.lab.record import Setting, line
    from kvist.lab.sweep import sweep

    built = llm.built
    layout = built.layout
    setting = Setting(
        model=built.path.name,
        spec=built.spec,
        dtype=built.dtype,
        kv_format=layout.format.name,
        block_tokens=layout.groups[0].tokens_per_block if layout.groups else 0,
        threads=torch.get_num_threads(),
    )
    common, rows = setting.fields(), []
    if file is not None:
        file.truncate(0)  # only now: a model that cannot be loaded leaves an older record alone
    with progress("sweeping") as steps:
        for row in sweep(llm, ask, steps.tell):
            rows.append(row)
            text = line(common, row)
            if file is not None:
                file.write(text + "\n")
                file.flush()
            if as_json:
                print(text, flush=True)
    if not as_json:
        _show(setting, rows)
    _close(setting, rows, None if file is None else Path(file.name), as_json)


def _show(setting: Setting, rows: list[SweepRow]) -> None:
    from rich.console import Console
    from rich.table import Table

    title = f"{setting.model}, {setting.dtype} weights, {setting.kv_format} KV, batch {rows[0].batch}"
    table = Table(title=title, title_justify="left")
    for head in ("tokens", "cache", "TTFT", "TPOT", "KV held", "formula", "kept", "FLOPs"):
        table.add_column(head, justify="left" if head == "cache" else "right", no_wrap=True)
    for r in rows:
        table.add_row(
            str(r.seq_tokens),
            r.cache,
            format_seconds(r.ttft_s),
            format_seconds(r.tpot_s),
            format_bytes(r.kv_bytes_held),
            "equal" if r.equal else f"{r.kv_bytes_formula} B",
            format_bytes(r.kv_bytes_kept),
            "" if r.cache == "on" else f"x{r.flops_times_cached:.3g}",
        )
    table.caption = "kept: what stays between two tokens; FLOPs: times those with the cache"
    table.caption_justify = "left"
    Console().print(table)


def _close(setting: Setting, rows: list[SweepRow], record: Path | None, as_json: bool) -> None:
    """The plot, and what was kept where. Notes go to standard error."""
    from kvist.cost.measured import BUSY
    from kvist.lab.sweep_plot import can_plot, plot

    notes = []
    busy = max(r.others for r in rows)
    if busy > BUSY:
        notes.append(f"other processes took up to {busy:.0%} of the processor: times are too long")
    if record is None:
        notes.append("nothing was kept: --out DIR writes the record and a plot")
    elif can_plot():
        picture = record.with_name(PLOT)
        plot(rows, f"{setting.model}, {setting.kv_format} KV, batch {rows[0].batch}", picture)
        notes.append(f"kept in {record} and {picture}")
    else:
        notes.append(f"kept in {record}; no plot: matplotlib is not installed (pip install 'kvist[plot]')")
    if not as_json:
        print("\n".join(f"note: {note}" for note in notes), file=sys.stderr)

"""``kvist plan``: what fits, how fast, and why, on hardware you may not own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kvist.cli import options as opt
from kvist.cli.plan import options as ask

EPILOG = (
    "Options that say what is planned are also environment variables (KVIST_CONTEXT=32k) and keys of a TOML file. "
    "32k tokens are 32,768. WHAT is users, context, devices or format. "
    "Exit code 1: it does not fit, or misses --max-ttft or --max-tpot."
)


def _show(flag: str, text: str, panel: str = ask.SHOW_PANEL, metavar: str | None = None) -> Any:
    return typer.Option(flag, help=text, rich_help_panel=panel, metavar=metavar, show_default=False)


def command(
    ctx: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(help=ask.PLAN["model"].help, metavar="MODEL", show_default=False),
    ] = None,
    device: ask.Device = None,
    count: ask.Count = None,
    memory_fraction: ask.MemoryFraction = None,
    tp: ask.Tp = None,
    pp: ask.Pp = None,
    dp: ask.Dp = None,
    ep: ask.Ep = None,
    cp: ask.Cp = None,
    attention_dp: ask.AttentionDp = None,
    context: ask.Context = None,
    output: ask.Output = None,
    users: ask.Users = None,
    hit_rate: ask.HitRate = None,
    engine: ask.Engine = None,
    kv_format: ask.KvFormat = None,
    weights: ask.Weights = None,
    batched_tokens: ask.BatchedTokens = None,
    sequences: ask.Sequences = None,
    block_tokens: ask.BlockTokens = None,
    draft_layers: ask.DraftLayers = None,
    draft_tokens: ask.DraftTokens = None,
    knobs: ask.Knobs = None,
    shape_only: ask.ShapeOnly = None,
    online: ask.Online = None,
    config: opt.Config = None,
    explain: Annotated[bool, _show("--explain", "the derivation, with this model's numbers")] = False,
    as_json: Annotated[bool, _show("--json", "one JSON object (see --schema), nothing else")] = False,
    plot: Annotated[Path | None, _show("--plot", "draw into a .png, .svg or .html file", metavar="FILE")] = None,
    compare: Annotated[
        str | None, _show("--compare", 'a second plan with changed flags: "--kv-format fp8"', metavar="FLAGS")
    ] = None,
    what: Annotated[
        str | None,
        _show(
            "--what",
            "turn it round: how many users, how long a context, how few devices, which cache format",
            metavar="WHAT",
        ),
    ] = None,
    max_ttft: ask.MaxTtft = None,
    max_tpot: ask.MaxTpot = None,
    offload: Annotated[
        bool, _show("--offload", "keep, offload or recompute idle sequences: what pays, tier by tier")
    ] = False,
    split: Annotated[bool, _show("--split", "prefill and decode on devices of their own, or together")] = False,
    hit_rates: Annotated[bool, _show("--hit-rates", "users and first tokens from a hit rate of 0 to 95 %")] = False,
    measure: Annotated[bool, _show("--measure", "time this machine first, and keep it for --device here")] = False,
    devices: Annotated[bool, _show("--devices", "list the known devices", ask.LISTS_PANEL)] = False,
    models: Annotated[bool, _show("--models", "list the bundled models", ask.LISTS_PANEL)] = False,
    check: Annotated[
        Path | None, _show("--check", "replay what engines printed, case by case", ask.LISTS_PANEL, "CASES")
    ] = None,
    configs: Annotated[
        Path | None, _show("--configs", "with --check: a folder of configs, org__name.json", ask.LISTS_PANEL, "DIR")
    ] = None,
    log: Annotated[Path | None, _show("--log", "explain the start of an engine's log", ask.LISTS_PANEL, "FILE")] = None,
    schema: Annotated[bool, _show("--schema", "print the JSON Schema of --json", ask.LISTS_PANEL)] = False,
) -> None:
    """Memory, users, context and latency of a model on a device, with the verdict first."""
    from kvist.cli.plan.run import run

    code = run(ctx.params)
    if code:
        raise typer.Exit(code)

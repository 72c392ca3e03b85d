"""``kvist model``: what a model's cache is made of, before anything is loaded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from kvist.cli import options as opt


def command(
    ctx: typer.Context,
    path: Annotated[
        Path | None,
        typer.Argument(
            help="A GGUF file, a folder or a config.json (default: the packaged SmolLM2).", show_default=False
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as JSON.")] = False,
    shape_only: Annotated[
        bool, typer.Option("--shape-only", help="Accept a config that gives just the cache's shape.")
    ] = False,
    kv_format: opt.KvFormat = None,
    block_tokens: opt.BlockTokens = None,
    config: opt.Config = None,
) -> None:
    """Layers, groups, bytes per token, and what a block holds."""
    from kvist.cli.model import describe, render
    from kvist.errors import CorruptFile, MissingField
    from kvist.planner.weights.facts import weights_at
    from kvist.runtime.packaged import packaged_model
    from kvist.spec.format import KVFormat
    from kvist.spec.hf import read_shape
    from kvist.spec.layout import plan_layout
    from kvist.spec.read import locate, read_spec

    cache = opt.resolve(ctx.params).engine.cache
    place = path if path is not None else packaged_model()
    try:
        spec = read_shape(place) if shape_only else read_spec(place)
    except MissingField as error:
        hint = "add the fields" if shape_only else "add the fields, or take --shape-only for the cache's shape alone"
        raise MissingField(error.fields, source=str(place), remedy=hint) from error
    layout = plan_layout(spec, KVFormat.parse(cache.format), block_tokens=cache.block_tokens)
    try:
        facts = weights_at(locate(place), spec)
    except CorruptFile as error:  # a folder half fetched: its config still says all the rest
        facts, spec = None, replace(spec, notes=(*spec.notes, f"weights: {error}"))
    kinds = facts.kinds if facts else {}
    if as_json:
        print(json.dumps(describe(spec, layout, kinds), ensure_ascii=False))
        return
    from rich.console import Console

    render(spec, layout, Console(), kinds)

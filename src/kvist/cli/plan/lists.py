"""What ``kvist plan`` does without a plan: the catalogues, a check of cases, a log, the schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvist.errors import UsageError
from kvist.units import GIB, format_bytes

if TYPE_CHECKING:
    from rich.table import Table


def _table(title: str, left: tuple[str, ...], right: tuple[str, ...]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False
    )
    for name in left:
        table.add_column(name, overflow="fold")
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def show_schema() -> int:
    """Print the published schema."""
    from kvist.planner.report import SCHEMA

    print(SCHEMA.read_text(encoding="utf-8"), end="")
    return 0


def show_devices(*, as_json: bool) -> int:
    """Every known device: memory, bandwidth, rates, links, with sources in the JSON."""
    from dataclasses import asdict

    from kvist.cost.catalogue import devices

    if as_json:
        print(json.dumps({"devices": [asdict(device) for device in devices()]}, ensure_ascii=False))
        return 0
    from rich.console import Console

    table = _table(
        f"{len(devices())} devices", ("device",), ("memory", "GB/s", "16-bit", "fp8", "link GB/s", "host GB/s")
    )
    for d in devices():
        wide, narrow = d.flops.get("bf16", d.flops.get("f16", 0.0)), d.flops.get("fp8", 0.0)
        table.add_row(
            d.name,
            f"{d.memory_bytes / GIB:,.0f} GiB",
            f"{d.bandwidth_bytes_per_s / 1e9:,.0f}",
            f"{wide / 1e12:,.4g}" if wide else "",
            f"{narrow / 1e12:,.4g}" if narrow else "",
            f"{d.link_bytes_per_s / 1e9:,.0f}" if d.link_bytes_per_s else "",
            f"{d.host_bytes_per_s / 1e9:,.0f}" if d.host_bytes_per_s else "",
        )
    table.caption = "rates in dense TFLOP/s; names and aliases are found whatever the case; --json gives sources"
    table.caption_justify = "left"
    Console().print(table)
    return 0


def show_models(*, as_json: bool) -> int:
    """Every bundled model, with what a token of its cache costs."""
    from kvist.planner.models.catalogue import names, spec_named
    from kvist.spec.format import KVFormat

    rows: list[dict[str, Any]] = []
    for name in names():
        entry = spec_named(name)
        rows.append(
            {
                "name": name,
                "architecture": entry.spec.architecture,
                "layers": len(entry.spec.layers),
                "context_tokens": entry.spec.context_tokens or None,
                "bytes_per_token_f16": entry.spec.kv_bytes_per_token(KVFormat()),
                "weights_format": entry.weights_format,
                "evidence": entry.evidence,
                "source": entry.source,
                "date": entry.date,
            }
        )
    if as_json:
        print(json.dumps({"models": rows}, ensure_ascii=False))
        return 0
    from rich.console import Console

    table = _table(f"{len(rows)} models", (), ())
    table.add_column("model", overflow="fold", min_width=38)
    table.add_column("context", justify="right")
    table.add_column("a token, f16", justify="right")
    table.add_column("weights", overflow="fold")
    for row in rows:
        context = f"{row['context_tokens']:,}" if row["context_tokens"] else ""
        weights = row["weights_format"] or "not known"
        table.add_row(row["name"], context, format_bytes(row["bytes_per_token_f16"]), weights)
    Console().print(table)
    return 0


def check(cases: Path, configs: Path | None, *, as_json: bool) -> int:
    """Replay cases; 1 when a number that must come out right is off or unanswered.

    Raises ``UsageError`` for a file in which nothing can be judged: passing such a file would say nothing.
    """
    from kvist.cli.plan.progress import progress
    from kvist.planner.check.replay import check_cases, load_cases
    from kvist.planner.models.catalogue import spec_described

    if configs is None:
        raise UsageError(
            "--check needs the models' configs", remedy="add --configs DIR, a folder of org__name.json files"
        )
    loaded = load_cases(cases)
    if not any(case.judged for case in loaded):
        classes = ", ".join(sorted({case.check_class for case in loaded}))
        held = f"only cases of class {classes}, which are not judged" if loaded else "no case at all"
        raise UsageError(f"{cases} holds {held}", remedy="add cases whose check_class is exact or budget")
    with progress("checking cases", len(loaded)) as step:
        report = check_cases(step.counted(loaded), configs, fallback=spec_described)
    if as_json:
        print(json.dumps(report.as_dict(), ensure_ascii=False, allow_nan=False))
    else:
        from rich.console import Console

        from kvist.cli.plan.check_table import render

        render(report, Console())
    return 1 if report.failed else 0

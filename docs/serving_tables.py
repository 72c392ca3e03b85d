"""The measured table of the serving guide, from results/."""

import json
from pathlib import Path

RESULTS = Path(__file__).parents[1] / "results"


def _newest(what: str) -> tuple[dict, str] | None:
    found = sorted(RESULTS.glob(f"*-serving-{what}-*.json"), key=lambda p: json.loads(p.read_text())["machine"]["at"])
    return (json.loads(found[-1].read_text()), found[-1].name) if found else None


def _median(rows: list[dict], name: str) -> float:
    values = sorted(row[name] for row in rows)
    return values[len(values) // 2]


def _warm(record: dict) -> list[tuple[str, str]]:
    warm, zero = record["warm"], record["zero_reuse"]
    cold_s, warm_s = _median(warm, "cold_s"), _median(warm, "warm_s")
    return [
        (
            f"first token of a {record['prompt']:,}-token prompt, {record['cached']:,} of them cached",
            f"{_median(warm, 'ratio'):.0f}x sooner ({warm_s * 1e3:.0f} ms against {cold_s * 1e3:,.0f} ms)",
        ),
        ("requests that share nothing, prefix cache on against off", f"{_median(zero, 'cost'):+.1%} time"),
    ]


def _stall(record: dict) -> list[tuple[str, str]]:
    rows = []
    for context, m in record["median"].items():
        who = f"{record['streams']} running answers that began with {int(context):,} tokens"
        rows += [
            (
                f"longest gap of {who}, while a {record['prompt']:,}-token prompt comes in",
                f"{m['stall']:.1f}x a step before it ({m['longest_gap_ms']:.0f} ms against"
                f" {m['step_before_ms']:.1f} ms, where the longest is {m['longest_gap_before_ms']:.0f} ms)",
            ),
            ("what the prompt pays for that: its first token, against alone", f"{m['slowdown']:.1f}x later"),
        ]
    return rows


def _overhead(record: dict) -> list[tuple[str, str]]:
    m = record["median"]
    return [
        (
            f"HTTP, scheduling and streaming at {record['concurrency']} at a time, without a model",
            f"{m['ms_per_request']:.2f} ms a request, {m['ms_per_token']:.3f} ms a streamed token",
        )
    ]


def _soak(record: dict) -> list[tuple[str, str]]:
    return [
        (
            f"{record['requests']:,} requests with every outcome, 16 at a time",
            f"nothing left open; {record['rss_slope_bytes_per_request']:.0f} bytes of memory a request over"
            f" {record['tiny']:,} more",
        )
    ]


def serving_table() -> str:
    """One line a claim, with the command that measures it."""
    lines = ["| what | measured | by |", "|---|---|---|"]
    notes = []
    for what, rows in (("warm", _warm), ("stall", _stall), ("overhead", _overhead), ("soak", _soak)):
        found = _newest(what)
        if found is None:
            continue
        record, file = found
        for claim, value in rows(record):
            lines.append(f"| {claim} | {value} | [`benchmarks.serving.{what}`](../results/{file}) |")
        notes.append(record["machine"])
    if not notes:
        return "*(no measurement yet: `make bench`)*"
    machine = notes[-1]
    lines += [
        "",
        "SmolLM2-135M, weights packed as in the file, f16 KV, on"
        f" {machine['cpu']}, {machine['cores']} cores; medians of rounds.",
    ]
    return "\n".join(lines)

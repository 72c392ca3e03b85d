"""Generated parts of docs/planner.md: what the planner was held against, from the newest records in results/."""

import json
from pathlib import Path

RESULTS = Path(__file__).parents[1] / "results"


def _newest(what: str) -> tuple[dict, str] | None:
    found = sorted(RESULTS.glob(f"*-{what}-*.json"), key=lambda p: json.loads(p.read_text())["machine"]["at"])
    return (json.loads(found[-1].read_text()), found[-1].name) if found else None


def check_table() -> str:
    """Printed numbers that came out right, by engine."""
    newest = _newest("planner-check")
    if newest is None:
        return "*(not measured yet: `python -m benchmarks.planner_check`)*"
    record, file = newest
    lines = ["| engine | printed numbers | right | median error | worst error |", "|---|---|---|---|---|"]
    for row in [*record["by_engine"], record["total"]]:
        if row["judged"]:
            numbers = f"{row['median_percent']:.4f} % | {row['worst_percent']:.2f} %"
            lines.append(f"| {row['name']} | {row['judged']} | {row['passed']} | {numbers} |")
    lines += [
        "",
        "Right: within 0.5 % (a memory budget: 1 %), or within what the printed digits were rounded to. The worst is a"
        " log that shows one rank's memory while the engine counts with the smallest rank's; its row says so."
        f" [Record](../results/{file}).",
    ]
    return "\n".join(lines)


def accuracy_table() -> str:
    """First and later tokens on the machine that was measured."""
    newest = _newest("planner-accuracy")
    if newest is None:
        return "*(not measured yet: `python -m benchmarks.planner_accuracy`)*"
    record, file = newest
    machine, summary, measured = record["machine"], record["summary"], record["measured_machine"]
    weights, points = measured["origin"]["weights"], measured["points"]
    lines = ["| error of | median | mean of absolute | worst | within 15 % |", "|---|---|---|---|---|"]
    names = {
        "ttft_error": "first token",
        "tpot_error": "next token",
        "tpot_error_at_speed_of_the_moment": "next token, at the memory's speed of the moment",
    }
    for key, name in names.items():
        if key in summary:
            s = summary[key]
            numbers = f"{s['median']:+.1%} | {s['mean_absolute']:.1%} | {s['worst']:+.1%}"
            lines.append(f"| {name} | {numbers} | {s['within_15_percent']} of {summary['points']} |")
    lines += [
        "",
        f"SmolLM2-135M, {weights} weights, on {machine['cpu']}, {machine['threads']} threads: context 128 to 7,500"
        f" x batch 1, 4, 16 x KV formats, predicted from {len(points)} points of which none is on that grid."
        f" `{machine['command']}`, commit {machine['commit']}, [record](../results/{file}).",
    ]
    return "\n".join(lines)


def peers_table() -> str:
    """Two other planners on the same configs."""
    newest = _newest("planner-peers")
    if newest is None:
        return "*(not measured yet: `python -m benchmarks.planner_peers`)*"
    record, file = newest
    n = len(record["rows"])
    lines = [
        "| planner | configs answered | equal to kvist | right where an engine's log decides |",
        "|---|---|---|---|",
        f"| kvist | {record['answered']['kvist']} of {n} | | {record['decided']} of {record['decided']} |",
    ]
    for peer in record["peers"]:
        name = peer.partition("==")[0]
        decided = f"{record['right'][name]} of {record['answered_of_decided'][name]} answered"
        lines.append(f"| {peer} | {record['answered'][name]} of {n} | {record['equal'][name]} | {decided} |")
    lines += ["", f"Bytes of one sequence at {record['tokens']:,} tokens. [Record](../results/{file})."]
    return "\n".join(lines)

"""The comparison with other engines and the quality table, from results/."""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
FIRST_PAGE = (
    "decode at 128",
    "decode at 2,048",
    "decode at 7,500",
    "prefill of 2,048",
    "16 x (2,048 shared + 64), prefix cached",
)
NOTHING = "*(no measurement yet: `make bench`)*"
sys.path.insert(0, str(ROOT))  # the tables are the benchmarks' own


def newest(what: str) -> tuple[dict, str] | None:
    """The newest record of its kind, and its file's name."""
    found = sorted(RESULTS.glob(f"*-{what}-[0-9]*.json"), key=lambda p: json.loads(p.read_text())["machine"]["at"])
    found = [p for p in found if "planner" not in p.name]
    return (json.loads(found[-1].read_text()), found[-1].name) if found else None


def records() -> list[tuple[dict, str]]:
    """The newest records of the comparison: of decoding, of prefill, of bursts."""
    return [pair for what in ("peers", "peers-more", "peers-batch") if (pair := newest(what)) is not None]


def peers_table() -> str:
    """kvist's best row and the best peer's for each piece of work, and the plot.

    Pieces that were measured in a run of their own stand in a table of their own.
    """
    from benchmarks.peers.plot import FILE
    from benchmarks.peers.table import markdown

    found = records()
    if not found:
        return NOTHING
    parts = [markdown(record, f"[JSON](../results/{name})") for record, name in found]
    if FILE.exists():
        parts.append(f"![Decode speed against context](../{FILE.relative_to(ROOT).as_posix()})")
    return "\n\n".join(parts)


def peers_short() -> str:
    """The few rows of it that stand on the first page; empty where nothing was measured."""
    from benchmarks.peers.plot import FILE
    from benchmarks.peers.table import HEAD, rows, source

    lines, sources = list(HEAD), []
    for record, name in records():
        mine = [row for row in rows(record, FIRST_PAGE) if row.split("|")[1] not in {x.split("|")[1] for x in lines}]
        if mine:
            lines += mine
            sources.append(source(record, f"[JSON](results/{name})"))
    if not sources:
        return ""
    more = f"[All of it{', with the plot' if FILE.exists() else ''}](docs/peers.md)."
    return "\n".join([*lines, "", *sources, more])


def quality_table() -> str:
    """Every row of the quality harness."""
    found = newest("quality")
    if found is None:
        return NOTHING
    record, name = found
    lines = ["| engine | mean KL | p99 KL | same best token, decided | required |", "|---|---|---|---|---|"]
    for r in record["rows"]:
        kept = ("; ".join(r["misses"]) or "kept") if r["ours"] else ""
        side = f"**{r['side']}**" if r["ours"] else r["side"]
        lines.append(f"| {side} | {r['kl_mean']:.6f} | {r['kl_p99']:.5f} | {r['top1']:.2%} | {kept} |")
    first, machine = record["rows"][0], record["machine"]
    lines += [
        "",
        f"{first['positions']:,} positions of {len(record['texts'])} texts, {first['decided']:,} of them decided:"
        f" `{machine['command']}` on {machine['cpu']}, {machine['isa']}, commit {machine['commit']},"
        f" [JSON](../results/{name}).",
    ]
    return "\n".join(lines)

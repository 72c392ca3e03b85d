"""Decode speed against context, every engine's best row, with kvist's floor: ``docs/plots/decode.svg``."""

import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docs" / "plots" / "decode.svg"


def series(record):
    """({name: [(context, tok/s)]} of each engine's best row at each context, kvist's floors the same way)."""
    best, floors = {}, {}
    for piece in record["pieces"]:
        if piece["kind"] != "decode":
            continue
        for row in piece["rows"]:
            name = f"kvist, {row['kv']} KV" if row["ours"] else row["engine"]
            line = best.setdefault(name, {})
            line[piece["context"]] = max(row["median"], line.get(piece["context"], 0.0))
            if row["ours"]:
                floors.setdefault(f"floor, {row['kv']} KV", {})[piece["context"]] = row["floor"]
    return _sorted(best), _sorted(floors)


def _sorted(lines):
    return {name: sorted(points.items()) for name, points in lines.items()}


def draw(record, file=FILE):
    """The file drawn, or None where there is nothing to draw or nothing to draw with."""
    best, floors = series(record)
    if max((len(p) for p in best.values()), default=0) < 2:
        return None
    if find_spec("matplotlib") is None:
        print("no plot: matplotlib is not installed (pip install 'kvist[plot]')", file=sys.stderr)
        return None
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.hashsalt"] = "kvist"
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for name, points in best.items():
        mine = name.startswith("kvist")
        axes.plot(
            *zip(*points, strict=True), marker="o", label=name, linewidth=2.4 if mine else 1.2, zorder=3 if mine else 2
        )
    for name, points in floors.items():
        axes.plot(*zip(*points, strict=True), linestyle="--", color="grey", linewidth=1, label=name)
        axes.annotate(name, points[-1], fontsize=7, color="grey", ha="right", va="bottom")
    machine = record["machine"]
    axes.set_xlabel("tokens of context")
    axes.set_ylabel("tokens a second, one sequence")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    axes.set_title(f"{record['model']}, {machine['cpu']}, {machine['threads']} threads", fontsize=9)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, metadata={"Date": None})
    return file

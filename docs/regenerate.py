"""``make docs``: write the generated parts of the documents. ``--check`` exits 1 when one is stale."""

import json
import re
import sys
from pathlib import Path

from kernels_tables import kernels_tables
from peers_tables import peers_short, peers_table, quality_table
from planner_tables import accuracy_table, check_table
from planner_tables import peers_table as planner_peers_table
from serving_tables import serving_table
from tier_tables import tier_tables

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- generated: {} -->", "<!-- end -->"


def measured_table() -> str:
    """The newest comparison with all peers in results/, or with transformers alone where there is none."""
    if short := peers_short():
        return short

    def measured_at(path: Path) -> str:
        return json.loads(path.read_text())["machine"]["at"]

    found = sorted((ROOT / "results").glob("*-transformers-*.json"), key=measured_at)
    if not found:
        return "*(no measurement yet: `make bench`)*"
    record = json.loads(found[-1].read_text())
    machine = record["machine"]
    lines = [
        "| SmolLM2-135M, fp32 weights | kvist (f16 KV) | transformers | ratio | floor | share of floor |",
        "|---|---|---|---|---|---|",
    ]
    for row in record["rows"]:
        if row["what"] not in ("decode", "prefill"):
            continue
        mine = next(v for k, v in row.items() if k.startswith("kvist"))["median"]
        peer = next(v for k, v in row.items() if k.startswith("transformers"))["median"]
        what = (
            f"decode at {row['context_tokens']:,} tokens"
            if row["what"] == "decode"
            else f"prefill of {row['prompt_tokens']:,}"
        )
        floor = f"{row['floor']:.1f} | {mine / row['floor']:.0%}" if "floor" in row else " | "
        lines.append(f"| {what}, tok/s | **{mine:.1f}** | {peer:.1f} | {mine / peer:.1f}x | {floor} |")
    lines += [
        "",
        f"Medians, both sides interleaved in one run: `{machine['command']}` on {machine['cpu']},"
        f" {machine['threads']} threads, commit {machine['commit']}, [JSON](results/{found[-1].name})."
        f" The floor is the time to read weights and KV once at the measured"
        f" {machine['read_bandwidth_bytes_per_s'] / 1e9:.0f} GB/s.",
    ]
    return "\n".join(lines)


def shelf_table() -> str:
    """Every variant on every shelf."""
    from kvist.spec.shelves import VARIANTS

    lines = ["| shelf | variant | what it does | exact |", "|---|---|---|---|"]
    lines += [f"| `{v.shelf}` | `{v.name}` | {v.summary} | {'yes' if v.exact else 'no'} |" for v in VARIANTS]
    return "\n".join(lines)


def option_table() -> str:
    """Every option: flag, environment variable, TOML key."""
    from kvist.cli.options import ALL

    return _options(ALL)


def tier_option_table() -> str:
    """Every option of the tiers."""
    from kvist.config import OPTIONS

    return _options({name: option for name, option in OPTIONS.items() if option.section == "tiers"})


def plan_option_table() -> str:
    """Every option of the planner."""
    from kvist.cli.plan.options import PLAN

    return _options(PLAN)


def serve_option_table() -> str:
    """Every option of the server."""
    from kvist.cli.serve.options import SERVE

    return _options(SERVE)


def alias_table() -> str:
    """Names known from other servers."""
    from kvist.cli.serve.options import ALIASES

    lines = ["| known as | here |", "|---|---|"]
    lines += [f"| `--{a.replace('_', '-')}` | `--{name.replace('_', '-')}` |" for a, name in ALIASES.items()]
    return "\n".join(lines)


def _options(table: dict) -> str:
    lines = ["| flag | environment | TOML key | expects | what it does |", "|---|---|---|---|---|"]
    for name, option in table.items():
        flag = f"`--{name.replace('_', '-')}`"
        lines.append(f"| {flag} | `KVIST_{name.upper()}` | `{name}` | {option.expected} | {option.help} |")
    return "\n".join(lines)


def devices() -> str:
    """Every device of the catalogue."""
    from devices_table import devices_table

    return devices_table()


def bundled_models() -> str:
    """Every bundled model."""
    from catalogue_table import catalogue_table

    return catalogue_table()


def metrics() -> str:
    """Every metric of the server."""
    from kvist.server.observe.series import metrics_table

    return metrics_table()


PARTS = {
    "README.md": {"measured": measured_table},
    "docs/planner.md": {
        "planner-check": check_table,
        "planner-accuracy": accuracy_table,
        "planner-peers": planner_peers_table,
    },
    "docs/peers.md": {"peers": peers_table, "quality": quality_table},
    "docs/kernels.md": {"kernels": kernels_tables},
    "docs/devices.md": {"devices": devices},
    "docs/catalogue.md": {"catalogue": bundled_models},
    "docs/serving.md": {"serving": serving_table},
    "docs/metrics.md": {"metrics": metrics},
    "docs/tiers.md": {"tier-options": tier_option_table, "tier-measured": tier_tables},
    "docs/reference.md": {
        "serve-options": serve_option_table,
        "serve-aliases": alias_table,
        "options": option_table,
        "plan-options": plan_option_table,
        "shelves": shelf_table,
    },
}


def fresh(text: str, parts: dict) -> str:
    """The page with every generated part written anew."""
    for name, make in parts.items():
        begin = BEGIN.format(name)
        pattern = re.compile(re.escape(begin) + r"\n.*?" + re.escape(END), re.S)
        assert pattern.search(text), f"no place for {name}"
        text = pattern.sub(lambda _: f"{begin}\n{make()}\n{END}", text)  # noqa: B023
    return text


def main() -> int:
    stale = []
    for file, parts in PARTS.items():
        page = ROOT / file
        old = page.read_text()
        new = fresh(old, parts)
        if new != old:
            stale.append(file)
            if "--check" not in sys.argv:
                page.write_text(new)
    print(("stale: " if "--check" in sys.argv else "wrote: ") + (", ".join(stale) or "nothing"))
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())

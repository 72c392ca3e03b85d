"""``python -m benchmarks.planner_peers CONFIGS_DIR``: bytes of one sequence at 32,768 tokens, by kvist and two peers.

The peers (kvfit 0.3, hf-mem 0.5, from PyPI) are installed in a virtual environment of their own under build/ and asked
for the same configs through the functions behind their command lines. Rows: every config, who answers, what, and where
they differ. Writes results/.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import venv
from collections import Counter
from pathlib import Path

from benchmarks.machine import describe, save

PEERS = ("kvfit==0.3", "hf-mem==0.5")
TOKENS = 32_768
CLOSE = 0.005
ROOT = Path(__file__).parents[1]

ASK_PEERS = """
import json, sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
from hf_mem.safetensors.kv_cache import compute_safetensors_kv_cache_size
from kvfit.architectures import estimate_cache
folder, tokens = Path(sys.argv[1]), int(sys.argv[2])

def kvfit(raw):
    return estimate_cache(raw, context_tokens=tokens, kv_bytes=2.0).total_bytes

def hf_mem(raw):
    names = raw.get("architectures") or []
    if not any("ForCausalLM" in n or "ForConditionalGeneration" in n for n in names):
        return None
    config = raw
    if any("ForConditionalGeneration" in n for n in names) and "text_config" in raw:
        config = raw["text_config"]
    if not all(k in config for k in ("hidden_size", "num_hidden_layers", "num_attention_heads")):
        return None
    return compute_safetensors_kv_cache_size(config=config, cache_dtype="BF16", max_model_len=tokens)

out = {}
for path in sorted(folder.glob("*.json")):
    raw = json.loads(path.read_text())
    row = {}
    for name, ask in (("kvfit", kvfit), ("hf-mem", hf_mem)):
        try:
            row[name] = ask(raw)
        except Exception as error:
            row[name] = None
            row[name + " error"] = f"{type(error).__name__}: {error}"[:200]
    out[path.stem] = row
print(json.dumps(out))
"""


def peers(folder: Path) -> dict[str, dict]:
    """What the peers say of every config in the folder."""
    place = ROOT / "build" / "peers"
    python = place / "bin" / "python"
    if not python.exists():
        venv.create(place, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PEERS], check=True)
    command = [python, "-c", ASK_PEERS, str(folder), str(TOKENS)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def own(path: Path) -> float | None:
    """kvist's bytes: rows in bf16 with windows capped, recurrent state in f32, its filters in bf16. None: refused."""
    from kvist.errors import KvistError
    from kvist.spec.format import KVFormat
    from kvist.spec.hf import read_config, read_shape

    try:
        raw = json.loads(path.read_text())
        spec = read_shape(raw) if raw.get("_minimal") else read_config(raw)
    except KvistError:
        return None
    filters = sum(getattr(x.mixer, "conv_elements", 0) for x in spec.layers)
    return spec.kv_bytes(TOKENS, KVFormat.planned("bf16")) + 4 * (spec.state_elements - filters) + 2 * filters


def printed(cases: Path, folder: Path) -> dict[str, float]:
    """Configs whose sum an engine's own log confirms, by the replay of known cases: config name -> error in percent."""
    from kvist.planner.check.replay import check_cases, load_cases
    from kvist.planner.models.catalogue import spec_described

    found: dict[str, float] = {}
    for row in check_cases(load_cases(cases), folder, fallback=spec_described).rows:
        if row.check_class == "exact" and row.error_percent is not None and row.config:
            name = Path(row.config).stem
            found[name] = max(found.get(name, 0.0), abs(row.error_percent))
    return found


def close(a: float | None, b: float | None) -> bool:
    return a is not None and b is not None and abs(a - b) <= CLOSE * max(a, b)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("configs", type=Path, help="a folder of config.json files (ORG__NAME.json)")
    parser.add_argument("--cases", type=Path, help="cases that engines printed: they decide who is right")
    args = parser.parse_args()
    asked = peers(args.configs)
    confirmed = printed(args.cases, args.configs) if args.cases else {}
    rows, answers, agrees = [], Counter(), Counter()
    for path in sorted(args.configs.glob("*.json")):
        if '"_minimal"' in path.read_text():  # a few fields, which only kvist reads: no fair question
            continue
        row = {"config": path.stem, "kvist": own(path), **asked[path.stem], "printed error %": confirmed.get(path.stem)}
        rows.append(row)
        for name in ("kvist", "kvfit", "hf-mem"):
            answers[name] += row[name] is not None
            agrees[name] += close(row["kvist"], row[name])
    print(f"{'config':58} {'kvist':>14} {'kvfit':>8} {'hf-mem':>8}  engine's log")
    for row in rows:
        cells = [_cell(row, name) for name in ("kvfit", "hf-mem")]
        log = "" if row["printed error %"] is None else f"agrees with kvist to {row['printed error %']:.3f} %"
        if log or cells != ["=", "="]:
            mine = "refused" if row["kvist"] is None else f"{row['kvist']:,.0f}"
            print(f"{row['config'][:58]:58} {mine:>14} {cells[0]:>8} {cells[1]:>8}  {log}")
    missed = [r["config"] for r in rows if r["kvist"] is None and (r["kvfit"] is not None or r["hf-mem"] is not None)]
    decided = [r for r in rows if r["printed error %"] is not None]
    right = {n: sum(close(r["kvist"], r[n]) for r in decided) for n in ("kvfit", "hf-mem")}
    answered = {n: sum(r[n] is not None for r in decided) for n in right}
    print(f"\n{len(rows)} configs. Answered: {dict(answers)}. Equal to kvist within {CLOSE:.1%}: {dict(agrees)}.")
    who = ", ".join(f"{n} answers {answered[n]} of them and is right on {right[n]}" for n in right)
    print(f"{len(decided)} configs whose sum an engine's log confirms for kvist: {who}.")
    print(f"Configs that a peer answers and kvist does not: {missed or 'none'}.")
    command = f"python -m benchmarks.planner_peers {args.configs}" + (f" --cases {args.cases}" if args.cases else "")
    record = {
        "machine": describe(command),
        "tokens": TOKENS,
        "peers": PEERS,
        "answered": answers,
        "equal": agrees,
        "decided": len(decided),
        "right": right,
        "answered_of_decided": answered,
        "missed": missed,
        "rows": rows,
    }
    print(f"written: {save('peers', 'planner', record)}")
    return 1 if missed else 0


def _cell(row: dict, name: str) -> str:
    if row[name] is None:
        return "refused" if f"{name} error" not in row or "Unsupported" in row[f"{name} error"] else "crashed"
    if row["kvist"] is None:
        return "answers"
    return "=" if close(row["kvist"], row[name]) else f"x {row[name] / row['kvist']:.2f}"


if __name__ == "__main__":
    sys.exit(main())

"""Write the bundled catalogue of models anew, from folders of configs. Run by hand.

    python docs/regenerate_catalogue.py FOLDER [FOLDER...] [--date 2026-11-29]

A folder holds ``org__name.json`` files (Hugging Face configs; ``"_minimal": true`` for a few fields only;
``_evidence``, ``_architecture``, ``_elements`` and ``_notes`` say what a config cannot), perhaps an
``org__name.hf_quant_config.json`` beside one, and a ``sources.md`` whose tables say where each came from. Only derived
numbers go into ``models.json``. Entries that no folder has are kept with the date and source they have; of two files
for one model the one in the later folder counts, and a full config before a minimal one.
"""

import argparse
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))

from kvist.planner.models.catalogue import DATA, FORMAT  # noqa: E402
from kvist.planner.models.towers import tower_elements  # noqa: E402
from kvist.planner.weights.facts import weight_format_of  # noqa: E402
from kvist.spec.hf import read_config, read_shape  # noqa: E402
from kvist.spec.model import ModelSpec  # noqa: E402
from kvist.spec.pack import pack, unpack  # noqa: E402


def sources(folder: Path) -> dict[str, str]:
    """Where each file came from, by file name: the second column of the tables, and the third if there is one."""
    page = folder / "sources.md"
    rows = re.findall(r"^\| ([^|]+\.json) \|(.+)\|$", page.read_text(), re.M) if page.is_file() else []
    joined = {name.strip(): ", ".join(cell.strip() for cell in cells.split("|")) for name, cells in rows}
    shorter = {name: re.sub(r" \(GitHub;[^)]*\)", "", text) for name, text in joined.items()}
    return {name: re.sub(r"gh-file-index:\d+", "a public file on GitHub", text) for name, text in shorter.items()}


def entry(path: Path, source: str, date: str) -> dict:
    """One model: its spec packed, its weights' format, where it is published and where the numbers were read."""
    config = json.loads(path.read_bytes())
    minimal, beside = config.get("_minimal", False), path.with_suffix(".hf_quant_config.json")
    name = path.stem.replace("__", "/", 1)
    spec = read_shape(config) if minimal else read_config(config)
    quantised = json.loads(beside.read_bytes()) if beside.is_file() else None
    evidence = config.get("_evidence", "log" if minimal else "config")
    spec = replace(
        spec,
        architecture=config.get("_architecture", spec.architecture),
        notes=(*spec.notes, *config.get("_notes", ())),
    )
    made = {
        "name": name,
        "source": f"huggingface.co/{name}; {source}" if "huggingface.co" not in source else source,
        "date": date,
        "weights": weight_format_of(config, quantised, spec).text,
        "evidence": evidence,
        "tower": tower_elements(config),
        "elements": config.get("_elements", 0),
        "spec": replace(spec, name="", weight_bytes=0),
    }
    if evidence == "log":
        note = f"derived from numbers that a program printed ({source})"
        made["spec"] = replace(made["spec"], notes=(*made["spec"].notes, note))
    return made


def gathered(folders: list[Path], date: str) -> dict[str, dict]:
    """Entries of all folders by name; second copies (``name.other.json``) left out."""
    found: dict[str, dict] = {}
    for folder in folders:
        where = sources(folder)
        for path in sorted(folder.glob("*__*.json")):
            if re.search(r"\.[a-z][a-z_-]*$", path.stem):
                continue
            one = entry(path, where.get(path.name, "no source noted"), date)
            old = found.get(one["name"])
            if old is None or old["spec"].shape_only or not one["spec"].shape_only:
                found[one["name"]] = one
    return found


def kept(found: dict[str, dict]) -> dict[str, dict]:
    """What the present catalogue has and the folders have not."""
    if not DATA.is_file():
        return {}
    data = json.loads(DATA.read_bytes())
    out: dict[str, dict] = {}
    for model in data["models"]:
        for one in (model, *model.get("also", ())):
            if one["name"] not in found:
                whole = {"date": data["date"], **{k: v for k, v in model.items() if k != "also"}, **one}
                whole["spec"] = unpack(model["spec"])
                out[one["name"]] = {"evidence": "config", "tower": 0, "elements": 0, **whole}
    return out


def grouped(entries: dict[str, dict], date: str) -> list[dict]:
    """One row for each distinct spec: the widest weights first, the others under ``also``."""
    rows: dict[ModelSpec, list[dict]] = {}
    for one in entries.values():
        rows.setdefault(one["spec"], []).append(one)
    out = []
    for spec, same in rows.items():
        same.sort(key=lambda one: (one["weights"] not in ("bf16", "f16", "f32"), not published_by(one), one["name"]))
        first = short(same[0], date)
        more = [{k: v for k, v in short(one, date).items() if k == "name" or first.get(k) != v} for one in same[1:]]
        out.append({**first, **({"also": more} if more else {}), "spec": pack(spec)})
    return sorted(out, key=lambda row: row["name"].lower())


def published_by(one: dict) -> bool:
    """True unless the name says that somebody packed another's weights."""
    return not re.search(r"-(FP8|NVFP4|INT4|AWQ|GPTQ)\b", one["name"], re.I)


def short(one: dict, date: str) -> dict:
    """An entry without its spec and without what goes without saying."""
    kept = {k: one[k] for k in ("name", "source", "weights")}
    usual = {"date": date, "evidence": "config", "tower": 0, "elements": 0}
    return kept | {key: one[key] for key, value in usual.items() if one[key] != value}


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("folders", nargs="+", type=Path)
    asked.add_argument("--date", default="2026-11-29")
    given = asked.parse_args()
    found = gathered(given.folders, given.date)
    rows = grouped(kept(found) | found, given.date)
    lines = [json.dumps(row, separators=(",", ":"), ensure_ascii=False) for row in rows]
    text = f'{{"format":{FORMAT},"date":"{given.date}","models":[\n' + ",\n".join(lines) + "\n]}\n"
    DATA.write_text(text)
    print(f"{len(rows)} models under {sum(1 + len(row.get('also', ())) for row in rows)} names, {len(text):,} bytes")


if __name__ == "__main__":
    main()

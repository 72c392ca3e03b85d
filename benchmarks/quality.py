"""How far kvist's rows, and llama.cpp's on the same file, are from the dequantised model in 32 bits, over real texts.

    python -m benchmarks.quality [--texts FOLDER] [--quick] [--check]

Teacher-forced: every engine reads the same token ids, and its distribution for each next token is compared with the
reference's: kvist with f32 weights and f32 KV, numerics invariant. transformers in f32 stands in the table as a
control of that reference, where it is installed. Twenty texts of 512 tokens, all positions; four of 3,072, the last
512 positions. Required of kvist's rows (``--check`` ends with code 1 otherwise): mean KL of at most 0.005 nats and not
above llama.cpp's best row; the same best token at 99 % of the decided positions, those where the reference's best token
leads by more than 0.1 nats.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.machine import Others, describe, save
from benchmarks.peers.divergence import compare, summary
from benchmarks.peers.run import end, start, waiting
from benchmarks.peers.sides import MAKERS, ours, peers

TEXTS = Path(__file__).parents[2] / "shared" / "data" / "texts"
SHORT, LONG, LAST = 512, 3072, 512
MOST_KL, LEAST_TOP1 = 0.005, 0.99
PLACES = (0.1, 0.55)
"""Where in each file a text begins, as a share of it."""


def texts(folder, encode, n_short, n_long):
    """(name, token ids, positions compared) of every text. Raises ``FileNotFoundError`` without files."""
    files = sorted(folder.glob("*.txt"))
    if not files:
        raise FileNotFoundError(f"no texts in {folder}: give a folder of .txt files with --texts")
    found = [_text(f, place, SHORT, encode) for place in PLACES for f in files][:n_short]
    return [(n, ids, len(ids)) for n, ids in found] + [
        (name, ids, LAST) for name, ids in [_text(f, 0.3, LONG, encode) for f in files[:n_long]]
    ]


def _text(file, place, tokens, encode):
    """From the first whole line behind ``place``. Raises ``ValueError`` for a file that ends too early."""
    data = file.read_bytes()
    begin = data.find(b"\n", int(len(data) * place)) + 1
    ids = encode(data[begin : begin + tokens * 8].decode(errors="ignore"))[:tokens]
    if len(ids) < tokens:
        raise ValueError(f"{file} has only {len(ids)} tokens from {place:.0%} on, not {tokens}")
    return f"{file.stem} at {place:.0%}, {tokens} tokens", ids


def options(argv):
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--texts", type=Path, default=TEXTS)
    ap.add_argument(
        "--quick", action="store_true", help="three short texts; nothing is written unless --json says where"
    )
    ap.add_argument("--check", action="store_true", help="code 1 when one of kvist's rows misses what is required")
    ap.add_argument("--kvist", default="", help="kvist's rows, weights/kv[/numerics] with commas (the best there is)")
    ap.add_argument("--json", metavar="FILE", help="where the record goes, instead of results/")
    ap.add_argument("--model", help="a GGUF file (the packaged one)")
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--without", default="", help="peers to leave out, with commas")
    for name in MAKERS:
        ap.add_argument(f"--{name}", metavar="PYTHON", help=f"the python that has {name}")
    given = ap.parse_args(argv)
    given.wait = waiting(argparse.Namespace(wait="auto"))
    return given


def rows_of(given):
    """kvist's rows, then llama.cpp's with flash attention, then transformers as the control."""
    named = {n: getattr(given, n) for n in ("llamacpp", "transformers") if getattr(given, n)}
    found, absent = peers(named, [n for n in ("llamacpp", "transformers") if n not in given.without.split(",")])
    kept = [s for s in found if s.worker == "hf_transformers" or (s.options["flash"] and not s.only_shared)]
    return [*ours(given.kvist), *kept], absent


def run(work, reference, running, tick):
    """Figures by side, over all texts."""
    parts = {side: [] for side in running}
    with tempfile.TemporaryDirectory() as folder:
        true, got = str(Path(folder) / "reference.npy"), str(Path(folder) / "row.npy")
        for _, ids, last in work:
            reference.ask(op="logits", ids=ids, last=last, path=true)
            right = np.load(true, mmap_mode="r")
            for side, worker in running.items():
                worker.ask(op="logits", ids=ids, last=last, path=got)
                parts[side].append(compare(right, np.load(got, mmap_mode="r")))
                tick()
    return {s: summary(*(np.concatenate(x) for x in zip(*p, strict=True))) for s, p in parts.items()}


def judged(figures):
    """The record's rows; kvist's say whether they keep what is required, and why not."""
    llama = [f["kl_mean"] for s, f in figures.items() if s.worker == "llamacpp"]
    rows = []
    for side, f in figures.items():
        row = {"side": side.name, "ours": side.ours, **f}
        if side.ours:
            row["misses"] = misses(f, min(llama) if llama else None)
        rows.append(row)
    return rows


def misses(figures, llama_kl):
    """What is required and not kept, as sentences."""
    out = []
    if figures["kl_mean"] > MOST_KL:
        out.append(f"mean KL {figures['kl_mean']:.5f} is above {MOST_KL}")
    if llama_kl is not None and figures["kl_mean"] > llama_kl:
        out.append(f"mean KL {figures['kl_mean']:.5f} is above llama.cpp's {llama_kl:.5f}")
    if not figures["top1"] >= LEAST_TOP1:
        out.append(f"the same best token at {figures['top1']:.2%} of decided positions, below {LEAST_TOP1:.0%}")
    return out


def table(record):
    first = record["rows"][0]
    out = Table(
        title=f"{record['model']}: {len(record['texts'])} texts, {first['positions']:,} positions,"
        f" {first['decided']:,} of them decided",
        title_justify="left",
    )
    for head in ("engine", "mean KL", "p99 KL", "worst KL", "same best token, decided", "all", "required"):
        out.add_column(head, justify="left" if head in ("engine", "required") else "right")
    for r in record["rows"]:
        kept = ("; ".join(r["misses"]) or "kept") if r["ours"] else ""
        out.add_row(
            r["side"], f"{r['kl_mean']:.6f}", f"{r['kl_p99']:.5f}", f"{r['kl_max']:.4f}", f"{r['top1']:.2%}",
            f"{r['top1_all']:.2%}", kept, style="bold" if r["ours"] else None,
        )  # fmt: skip
    return out


def main(argv=None):
    given = options(argv)
    errors = Console(stderr=True)
    from kvist.runtime.packaged import packaged_model
    from kvist.text.from_gguf import from_gguf

    if not given.texts.is_dir():
        errors.print(f"skipped: {given.texts} is absent; give a folder of .txt files with --texts", markup=False)
        return 0
    model = Path(given.model or packaged_model())
    torch.set_num_threads(given.threads)
    work = texts(given.texts, from_gguf(model).encode, *((3, 0) if given.quick else (20, 4)))
    machine = describe(" ".join(["python -m benchmarks.quality", *(sys.argv[1:] if argv is None else argv)]))
    sides, absent = rows_of(given)
    for line in absent:
        errors.print(f"left out: {line}", markup=False)
    running = start([*ours("f32/f32/invariant"), *sides], model, given, errors)
    meter = Others(running.values())
    try:
        reference, *rest = running
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=errors, transient=True) as bar:
            task = bar.add_task("texts read", total=len(work) * len(rest))
            figures = run(work, running[reference], {s: running[s] for s in rest}, lambda: bar.advance(task))
        about = {side.name: worker.about for side, worker in running.items()}
    finally:
        end(running)
    machine |= {"other_processes_cpu_share": meter.share(), "omp_wait": given.wait}
    record = {
        "machine": machine, "model": model.name, "reference": reference.name, "texts": [n for n, _, _ in work],
        "sides": about, "absent": absent, "rows": judged(figures),
    }  # fmt: skip
    Console().print(table(record))
    if given.json:
        Path(given.json).write_text(json.dumps(record, indent=1) + "\n")
    elif not given.quick:
        Console().print(f"written to {save('quality', 'smollm2-135m', record)}")
    return int(given.check and any(r.get("misses") for r in record["rows"]))


if __name__ == "__main__":
    sys.exit(main())

"""The disk tier beside fio: the same block size, the same filesystem, direct I/O, in turns; medians of the rounds.

    python -m benchmarks.tiers.disk                    # results/<machine>-disk-tiers-disk-<version>.json
    python -m benchmarks.tiers.disk --quick            # less data, fewer rounds, nothing saved

fio (``apt-get install fio``) runs libaio at the queue depths given and is taken at its best; writes end with a sync on
both sides. kvist reserves, writes, syncs and publishes each batch, and verifies each record that it reads. It is given
all records in one call, as fio is given one job; and again in calls of 16 MiB, each synced, as the mover gives them.
"""

import argparse
import hashlib
import json
import mmap
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.machine import Others, describe, save
from kvist.ids import RecordId
from kvist.tier.base import Label, Record
from kvist.tier.disk.store import DiskTier

MIB = 1 << 20
SMOLLM2_BLOCK = 32 * 30 * 3 * 2 * 64 * 2
"""32 tokens of SmolLM2-135M in 16 bits: what kvist keeps by default."""

CALL_BYTES = 16 * MIB
"""What the mover gives a tier at a time."""

Row = dict[str, object]


def ids(n: int) -> list[RecordId]:
    return [RecordId(hashlib.blake2b(b"%d" % i, digest_size=16).digest() + b"\0\0") for i in range(n)]


def memory(n: int) -> memoryview:
    """Page-aligned, touched, of random content."""
    view = memoryview(mmap.mmap(-1, n))
    view[:] = os.urandom(MIB) * (n // MIB) + os.urandom(n % MIB)
    return view


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def fio(folder: Path, how: str, block: int, total: int, depth: int) -> Row:
    command = [
        "fio", "--name=kvist", f"--filename={folder / 'fio'}", f"--rw={how}", f"--bs={block}",
        f"--size={total // block * block}", "--direct=1", "--ioengine=libaio", f"--iodepth={depth}",
        "--output-format=json", *(["--fdatasync=0", "--end_fsync=1"] if how == "write" else []),
    ]  # fmt: skip
    job = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["jobs"][0]
    side = job[how]
    seconds = job["job_runtime"] / 1e3
    return {"mb_s": side["io_bytes"] / 1e6 / seconds, "cpu_s_gb": seconds * (job["usr_cpu"] + job["sys_cpu"]) / 100
            / (side["io_bytes"] / 1e9)}  # fmt: skip


def kvist_write(tier: DiskTier, names: list[RecordId], source: list[memoryview], batch: int) -> Row:
    records = [
        Record(Label(id, names[i - 1] if i else RecordId(b""), b"o" * 16, i, "", bytes(64)), source[i % len(source)])
        for i, id in enumerate(names)
    ]
    start, cpu = time.perf_counter(), cpu_s()
    for at in range(0, len(records), batch):
        assert set(tier.put_many(records[at : at + batch], timeout_s=60)) == {"stored"}, tier.usage()
    return rate(len(records) * source[0].nbytes, start, cpu)


def kvist_read(tier: DiskTier, names: list[RecordId], target: list[memoryview], batch: int) -> Row:
    start, cpu = time.perf_counter(), cpu_s()
    for at in range(0, len(names), batch):
        part = names[at : at + batch]
        got = tier.get_many_into(part, target[: len(part)], timeout_s=60)
        assert all(g == "hit" for g, _ in got)
    return rate(len(names) * target[0].nbytes, start, cpu)


def rate(n_bytes: int, start: float, cpu: float) -> Row:
    return {"mb_s": n_bytes / 1e6 / (time.perf_counter() - start), "cpu_s_gb": (cpu_s() - cpu) / (n_bytes / 1e9)}


def throughput(place: Path, block: int, total: int, rounds: int, batch: int, depths: list[int]) -> list[Row]:
    """One block size: every round does all of them, one after another, in a folder of its own."""
    n = total // block
    names = ids(n)
    whole = memory(block * batch)
    parts = [whole[i * block : (i + 1) * block] for i in range(batch)]
    seen: dict[str, list[Row]] = {}
    for turn in range(rounds):
        for depth in depths:
            (place / "fio").unlink(missing_ok=True)
            seen.setdefault(f"fio write depth {depth}", []).append(fio(place, "write", block, total, depth))
        (place / "fio").unlink()
        with_name = place / f"c{turn}"
        tier = DiskTier.open(with_name, capacity_bytes=2 * total + 64 * MIB)
        seen.setdefault("kvist write", []).append(kvist_write(tier, names, parts, batch))
        tier.delete(ids=names)
        few = max(1, CALL_BYTES // block)
        seen.setdefault("kvist write, 16 MiB a call", []).append(kvist_write(tier, names, parts, few))
        fio(place, "write", block, total, depths[-1])
        for depth in depths:
            seen.setdefault(f"fio read depth {depth}", []).append(fio(place, "read", block, total, depth))
        seen.setdefault("kvist read", []).append(kvist_read(tier, names, parts, batch))
        seen.setdefault("kvist read, 16 MiB a call", []).append(kvist_read(tier, names, parts, few))
        tier.close()
        shutil.rmtree(with_name)
    rows: list[Row] = []
    for how in ("write", "read"):
        best = max((statistics.median(r["mb_s"] for r in seen[f"fio {how} depth {d}"]), d) for d in depths)
        for name in (f"fio {how} depth {best[1]}", f"kvist {how}", f"kvist {how}, 16 MiB a call"):
            ours = seen[name]
            ratio = statistics.median(r["mb_s"] / max(seen[f"fio {how} depth {d}"][i]["mb_s"] for d in depths)
                                      for i, r in enumerate(ours))  # fmt: skip
            rows.append(
                {
                    "what": name, "block_bytes": block, "total_bytes": n * block, "rounds": rounds,
                    "mb_s": statistics.median(r["mb_s"] for r in ours),
                    "mb_s_all": [round(r["mb_s"], 1) for r in ours],
                    "of_fio": statistics.median(r["mb_s"] for r in ours) / best[0], "of_fio_by_round": ratio,
                    "cpu_s_gb": statistics.median(r["cpu_s_gb"] for r in ours),
                }
            )  # fmt: skip
    return rows


def find(place: Path, n: int) -> list[Row]:
    """How long it takes to ask for 128 ids, all there or none, with ``n`` small records in the folder."""
    tier = DiskTier.open(place / "find", capacity_bytes=n * 16_384 + 64 * MIB, sync=False)
    names = ids(n + 128)
    kvist_write(tier, names[:n], [memory(4096)], 1024)
    rows: list[Row] = []
    for what, asked in (("found", names[n // 2 : n // 2 + 128]), ("not found", names[n:])):
        took = []
        for _ in range(500):
            start = time.perf_counter()
            there = tier.exists_many(asked)
            took.append(time.perf_counter() - start)
            assert set(there) == {what == "found"}
        rows.append(
            {"what": f"find 128 ids, {what}", "records": n, "us": statistics.median(took) * 1e6,
             "p99_us": sorted(took)[int(0.99 * len(took))] * 1e6}
        )  # fmt: skip
    tier.close()
    start = time.perf_counter()
    DiskTier.open(place / "find", capacity_bytes=n * 16_384 + 64 * MIB).close()
    rows.append({"what": "open and close", "records": n, "ms": (time.perf_counter() - start) * 1e3})
    return rows


def show(row: Row) -> str:
    return "  ".join(f"{k}={v:.3g}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where (default: a temporary folder on the project's disk)")
    parser.add_argument("--quick", action="store_true", help="less data, fewer rounds, nothing saved")
    parser.add_argument("--blocks", type=int, nargs="*", default=[SMOLLM2_BLOCK // 2, SMOLLM2_BLOCK, MIB, 4 * MIB])
    args = parser.parse_args()
    if not shutil.which("fio"):
        sys.exit("fio is not installed: apt-get install fio")
    total, rounds = (128 * MIB, 3) if args.quick else (512 * MIB, 7)
    machine = describe(" ".join(["python -m benchmarks.tiers.disk", *sys.argv[1:]]))
    machine["fio"] = subprocess.run(["fio", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    meter = Others()
    rows: list[Row] = []
    parent = args.folder or Path(__file__).parents[2] / "build"
    parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent) as place:
        for block in args.blocks:
            batch = total // block
            for row in throughput(Path(place), block, total, rounds, batch, [1, 4, 16]):
                print(show(row), flush=True)
                rows.append(row)
        for row in find(Path(place), 2000 if args.quick else 20_000):
            print(show(row), flush=True)
            rows.append(row)
    machine["other_processes_cpu_share"] = meter.share()
    print(f"others took {machine['other_processes_cpu_share']:.0%} of the processor")
    if not args.quick:
        print(f"written to {save('tier-disk', 'records', {'machine': machine, 'rows': rows})}")


if __name__ == "__main__":
    main()

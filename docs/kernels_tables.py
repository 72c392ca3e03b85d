"""The measured part of docs/kernels.md, from the newest record of ``benchmarks.kernels`` in results/."""

from peers_tables import newest

SHAPES = {"576x3072": "576 x 3,072 (a layer's largest)", "576x49152": "576 x 49,152 (the head)"}


def kernels_tables() -> str:
    """Attention by one row and by a chunk, products by one row and by many."""
    found = newest("kernels")
    if found is None:
        return "*(not measured yet: `python -m benchmarks.kernels`)*"
    record, name = found
    m = record["machine"]
    return "\n".join(
        [
            *_decode(record["rows"]),
            "",
            *_chunk(record["rows"]),
            "",
            *_products(record["rows"]),
            "",
            f"`{m['command']}` on {m['cpu']}, {m['isa']}, commit {m['commit']}, [JSON](../results/{name}): medians of"
            f" at least five, while other processes took {m['other_processes_cpu_share']:.0%} of the processor. Shares"
            f" are of the bandwidth measured beside each figure ({m['read_gb_s_2']:.0f} GB/s by two threads at the"
            f" start). f32 multiply-adds of two threads: {m['peak_gflop_s_2']:.0f} GFLOP/s.",
        ]
    )


def _decode(rows: list[dict]) -> list[str]:
    out = ["| attention of one new token, 30 layers | threads | ms | K and V, GB/s | share of read bandwidth |"]
    out.append("|---|---|---|---|---|")
    for r in rows:
        if r["what"].startswith("decode"):
            many = f"{r['sequences']} sequences of " if r["sequences"] > 1 else ""
            out.append(
                f"| {r['kv']}, {many}{r['context']:,} tokens | {r['threads']} | {r['ms']:.2f} | {r['gb_s']:.1f}"
                f" | {r['of_bandwidth']:.0%} |"
            )
    return out


def _chunk(rows: list[dict]) -> list[str]:
    out = ["| attention of 512 rows, 30 layers | threads | ms | GFLOP/s | of the f32 peak |", "|---|---|---|---|---|"]
    out += [
        f"| {r['kv']}, ending at {r['end']:,} | {r['threads']} | {r['ms']:.0f} | {r['gflop_s']:.0f}"
        f" | {r['of_peak']:.0%} |"
        for r in rows
        if r["what"].startswith("prefill")
    ]
    return out


def _products(rows: list[dict]) -> list[str]:
    out = ["| product, two threads | weights | 1 row, us | share of read bandwidth | 256 rows, us | GFLOP/s |"]
    out.append("|---|---|---|---|---|---|")
    at = {(r["shape"], r["weights"], r["rows"]): r for r in rows if r["what"] == "linear"}
    for (shape, kind, n), one in at.items():
        if n == 1 and shape in SHAPES:
            many = at[shape, kind, 256]
            library = f" (library {many['library_us']:,.0f})" if "library_us" in many else ""
            out.append(
                f"| {SHAPES[shape]} | {kind} | {one['us']:,.0f} | {one['of_bandwidth']:.0%}"
                f" | {many['us']:,.0f}{library} | {many['gflop_s']:,.0f} |"
            )
    return out

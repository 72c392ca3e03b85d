"""The measured part of docs/tiers.md, from the newest records of ``benchmarks/tiers``."""

from peers_tables import newest


def tier_tables() -> str:
    """A restart, what tiers cost, and the disk tier beside fio; what was not measured is left out."""
    parts = [make(*found) for what, make in PARTS.items() if (found := newest(what)) is not None]
    return "\n\n".join(parts) or "*(not measured yet: `python -m benchmarks.tiers.restart`, `.overhead`, `.disk`)*"


def _restart(record: dict, name: str) -> str:
    out = [
        "| prompt, tokens | engine | first token, cold | after a restart (fastest to slowest) | cold / restart |",
        "|---|---|---|---|---|",
    ]
    for piece in record["pieces"]:
        for engine, row in piece["rows"].items():
            spread = f"{row['restart_min_s'] * 1e3:.0f} to {row['restart_max_s'] * 1e3:.0f}"
            out.append(
                f"| {piece['tokens']:,} | {engine} | {row['cold_s']:.2f} s | {row['restart_s'] * 1e3:.0f} ms ({spread})"
                f" | {row['gain']:.1f}x |"
            )
    rows = [row for piece in record["pieces"] for row in piece["rows"].values()]
    whole = all(row["page_cache_dropped"] == ["all"] for row in rows)
    cache = "the page cache dropped" if whole else "the files' pages dropped from the cache"
    how = f"Medians of {record['rounds']} rounds on {record['model']}; {cache} before each."
    return _closed(out, record, name, how)


def _overhead(record: dict, name: str) -> str:
    out = [
        "| work | without tiers | with a disk tier | slower by (median of pairs) | pairs |",
        "|---|---|---|---|---|",
    ]
    for piece in record["pieces"]:
        low, high = piece["slowdowns"][0], piece["slowdowns"][-1]
        out.append(
            f"| {piece['what']} | {piece['plain_s'] * 1e3:.0f} ms | {piece['disk_s'] * 1e3:.0f} ms"
            f" | {piece['slowdown']:+.1%} | {low:+.1%} to {high:+.1%} |"
        )
    return _closed(out, record, name, f"{record['pairs']} interleaved pairs.")


def _disk(record: dict, name: str) -> str:
    out = ["| block | what | MB/s | of fio's | CPU s/GB |", "|---|---|---|---|---|"]
    for row in record["rows"]:
        if "mb_s" in row:
            size = f"{row['block_bytes'] / 1024:,.0f} KiB"
            out.append(f"| {size} | {row['what']} | {row['mb_s']:,.0f} | {row['of_fio']:.2f} | {row['cpu_s_gb']:.2f} |")
    return _closed(out, record, name, "Medians; fio (libaio, direct) at its best depth, on the same file system.")


def _closed(out: list[str], record: dict, name: str, how: str) -> str:
    m = record["machine"]
    source = f"`{m['command']}` on {m['cpu']}, commit {m['commit']}, [JSON](../results/{name})."
    return "\n".join([*out, "", f"{how} {source}"])


PARTS = {"tier-restart": _restart, "tier-overhead": _overhead, "tier-disk": _disk}

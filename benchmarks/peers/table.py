"""The record as a table to read: for a terminal, and for the documents."""

from rich.table import Table

from benchmarks.peers.measure import DISTURBED

HEADS = ("work", "engine", "tok/s", "spread", "floor", "of floor", "kvist / best peer")


def lines(record):
    """(cells of ``HEADS``, whether it is the best peer, whether it is kvist's) for each row, best first."""
    for piece in record["pieces"]:
        first = piece["what"]
        for row in sorted(piece["rows"], key=lambda r: -r["median"]):
            disturbed = "~" if row["others_share"] > DISTURBED else ""
            cells = (
                first,
                row["side"],
                f"{row['median']:,.1f}{disturbed}",
                f"{row['spread']:.0%}",
                f"{row['floor']:,.1f}" if "floor" in row else "",
                f"{row['share_of_floor']:.0%}" if "floor" in row else "",
                f"{row['ratio']:.2f}x" if "ratio" in row else "",
            )
            yield cells, row["side"] == piece.get("best_peer"), row["ours"]
            first = ""
        for side, why in piece["failed"].items():
            yield (first, side, "failed", "", "", "", why), False, False
            first = ""


def table(record):
    """For a terminal."""
    machine = record["machine"]
    out = Table(
        title=f"{record['model']}, {machine['threads']} threads, read {machine['read_bytes_per_s'] / 1e9:.1f} GB/s,"
        f" f32 {machine['f32_flops_per_s'] / 1e9:.0f} GFLOP/s",
        caption="~ other processes took over a tenth of the processor; bold: kvist; underlined: the best peer",
        title_justify="left",
        caption_justify="left",
    )
    for head in HEADS:
        out.add_column(head, justify="left" if head in ("work", "engine") else "right")
    for cells, best, ours in lines(record):
        style = "bold" if ours else "underline" if best else None
        if cells[0] and out.row_count:
            out.add_section()
        out.add_row(*cells, style=style)
    return out


def summary(record):
    """One line for each piece of work: (what, kvist's best row, best peer's row)."""
    for piece in record["pieces"]:
        mine = [r for r in piece["rows"] if r["ours"]]
        theirs = [r for r in piece["rows"] if r["side"] == piece.get("best_peer")]
        if mine:
            yield piece["what"], max(mine, key=lambda r: r["median"]), theirs[0] if theirs else None


def markdown(record, link, only=()):
    """For the documents: kvist's best row and the best peer's, each piece of work (of those named, if any are)."""
    return "\n".join([*HEAD, *rows(record, only), "", source(record, link)])


HEAD = (
    "| work | kvist, tok/s | weights, KV, numerics | best peer, tok/s | which | ratio | floor, tok/s | of floor |",
    "|---|---|---|---|---|---|---|---|",
)


def rows(record, only=()):
    """The lines of that table."""
    for what, mine, theirs in summary(record):
        if only and what not in only:
            continue
        row = f"{mine['weights']}, {mine['kv']}, {mine['numerics']}"
        peer = f"{theirs['median']:,.1f} | {theirs['side']} | {mine['ratio']:.2f}x" if theirs else " | | "
        floor = f"{mine['floor']:,.1f} | {mine['share_of_floor']:.0%}"
        yield f"| {what} | **{mine['median']:,.1f}** | {row} | {peer} | {floor} |"


def source(record, link):
    """How its numbers came about."""
    m = record["machine"]
    return (
        f"Medians of {record['reps']} repetitions, all engines interleaved in one run on {record['model']}:"
        f" `{m['command']}` on {m['cpu']}, {m['threads']} threads, {m['isa']}, commit {m['commit']}, {link}."
        f" The floor is the larger of bytes at {m['read_bytes_per_s'] / 1e9:.0f} GB/s and multiply-adds at"
        f" {m['f32_flops_per_s'] / 1e9:.0f} GFLOP/s (f32; four times that for packed weights), both measured in the"
        f" same run. Other processes took {m['other_processes_cpu_share']:.0%} of the processor."
    )

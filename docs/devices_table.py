"""The tables of ``docs/devices.md``: every known device, its figures and where they come from."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from kvist.cost.catalogue import KINDS, devices  # noqa: E402

HEADINGS = {
    "gpu": "GPUs",
    "npu": "Other accelerators",
    "soc": "One memory for CPU and GPU",
    "cpu": "CPUs, one socket",
}
COLUMNS = {
    "device": "", "maker": "", "year": ":", "memory": ":", "usable": ":", "GB/s": ":", "f32": ":", "16 bits": ":",
    "8 bits": ":", "4 bits": ":", "FLOP/byte": ":", "link": "", "link GB/s": ":", "host GB/s": ":",
}  # fmt: skip
HEAD = (
    "| " + " | ".join(COLUMNS) + " |",
    "|" + "|".join(f"---{align}" for align in COLUMNS.values()) + "|",
)


def _rate(known, *names):
    """The highest of the device's rates of these names, in TFLOPS; empty without one."""
    rates = [known.flops[name] / 1e12 for name in names if name in known.flops]
    if not rates:
        return ""
    return f"{max(rates):,.0f}" if max(rates) >= 100 else f"{max(rates):.3g}"


def _gb_s(rate_bytes_per_s):
    if not rate_bytes_per_s:
        return ""
    return f"{rate_bytes_per_s / 1e9:,.0f}" if rate_bytes_per_s >= 1e11 else f"{rate_bytes_per_s / 1e9:.4g}"


def _gib(n_bytes):
    return f"{n_bytes / 2**30:.4g}" if n_bytes else ""


def _row(known):
    half = known.flops_for("bf16")
    cells = [
        known.name, known.maker, str(known.year), _gib(known.memory_bytes), _gib(known.usable_bytes),
        _gb_s(known.bandwidth_bytes_per_s), _rate(known, "f32"), _rate(known, "f16", "bf16"),
        _rate(known, "fp8", "int8"), _rate(known, "fp4", "int4"), f"{half / known.bandwidth_bytes_per_s:.0f}",
        known.link, _gb_s(known.link_bytes_per_s), _gb_s(known.host_bytes_per_s),
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def _sources(known):
    """The device's notes and sources, one bullet."""
    parts = []
    for source in known.sources:
        url, _, rest = source.partition(" ")
        parts.append(f"<{url}> {rest}")
    notes = f" {known.notes}" if known.notes else ""
    return f"* **{known.name}**.{notes} Sources: {'; '.join(parts)}."


def devices_table() -> str:
    """One table per kind of device, then each device's notes and sources."""
    lines = []
    for kind in KINDS:
        lines += [f"### {HEADINGS[kind]}", "", *HEAD]
        lines += [_row(known) for known in devices() if known.kind == kind]
        lines.append("")
    lines += ["### Notes and sources", ""]
    lines += [_sources(known) for known in devices()]
    return "\n".join(lines)

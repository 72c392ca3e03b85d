"""Known devices: read once from ``devices.toml``, found by name or alias, refused with the nearest names."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from typing import Any, Literal

from kvist.cost.device import Device
from kvist.errors import BadValue
from kvist.units import GIB

Kind = Literal["gpu", "npu", "soc", "cpu"]

KINDS: tuple[Kind, ...] = ("gpu", "npu", "soc", "cpu")
"""The tables of the file, in its order."""

_FILE = Path(__file__).with_name("devices.toml")
_MAKERS = frozenset(
    "nvidia amd intel google aws apple huawei geforce tesla instinct radeon r tm cpu gpu processor".split()
)
"""Words that say nothing: drivers put them before or after the name."""


@cache
def devices() -> tuple[Device, ...]:
    """Every device of the catalogue, in the file's order. Read once per process."""
    table = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    urls = {
        key: f"{url} ({how} {table['accessed']})"
        for how, group in table["sources"].items()
        for key, url in group.items()
    }
    return tuple(_device(kind, row, urls) for kind in KINDS for row in table[kind])


def _device(kind: Kind, row: Mapping[str, Any], urls: Mapping[str, str]) -> Device:
    """One entry, in bytes, bytes per second and operations per second."""
    return Device(
        name=row["name"],
        maker=row["maker"],
        kind=kind,
        memory_bytes=round(row["memory_gib"] * GIB),
        usable_bytes=round(row.get("usable_gib", 0) * GIB),
        bandwidth_bytes_per_s=row["bandwidth_gb_s"] * 1e9,
        flops={name: rate * 1e12 for name, rate in row["tflops"].items()},
        link=row.get("link", ""),
        link_bytes_per_s=row.get("link_gb_s", 0) * 1e9,
        host_bytes_per_s=row.get("host_gb_s", 0) * 1e9,
        year=row["year"],
        aliases=tuple(row.get("aliases", ())),
        sources=tuple(urls[key] for key in row["sources"]),
        notes=row.get("notes", ""),
    )


def known_devices() -> tuple[str, ...]:
    """The names ``device`` takes, aliases left out."""
    return tuple(known.name for known in devices())


def device(name: str) -> Device:
    """The device called ``name``, whatever the case, spaces, hyphens and the maker's name before it.

    ``H100``, ``h100-sxm``, ``NVIDIA H100 80GB HBM3`` and ``rtx4090`` are all found. Raises ``BadValue`` for a name
    that fits several devices (it lists them) or none (it lists the nearest).
    """
    wanted = _normal(name)
    found = _index().get(wanted)
    if found is not None:
        return found
    begun = _distinct(known.name for key, known in _index().items() if wanted and key.startswith(wanted))
    if len(begun) > 1:
        raise BadValue("device", name, f"the name of one device (it fits {len(begun)})", remedy=_either(begun))
    raise BadValue(
        "device", name, f"one of the {len(devices())} known devices", remedy=_either(begun or _nearest(wanted))
    )


@cache
def _index() -> Mapping[str, Device]:
    """Every normalised name and alias."""
    return {_normal(text): known for known in devices() for text in (known.name, *known.aliases)}


def _normal(name: str) -> str:
    """Letters and digits of a name, in lower case, without words that name only a maker or a brand."""
    words = [word for word in re.findall(r"[a-z0-9]+", name.lower()) if word not in _MAKERS]
    return "".join(words)


def _nearest(wanted: str) -> tuple[str, ...]:
    """The three names, or names with an alias, most like ``wanted``."""
    matcher = SequenceMatcher(b=wanted)

    def likeness(key: str) -> float:
        matcher.set_seq1(key)
        return matcher.ratio()

    ranked = sorted(_index().items(), key=lambda item: (-likeness(item[0]), item[1].name))
    return _distinct(known.name for _, known in ranked)[:3]


def _distinct(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _either(names: tuple[str, ...]) -> str:
    """What to do: name one of these; a long list is cut and says so."""
    shown = ", ".join(names[:8])
    return f"name one of: {shown}" + (f" and {len(names) - 8} more" if len(names) > 8 else "")

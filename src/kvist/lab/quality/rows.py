"""One line of the record: a method, a rule, a text, a length. JSON lines, written as they are measured."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from kvist.lab import host
from kvist.lab.quality.metrics import Quality
from kvist.lab.quality.size import Size, over_shannon
from kvist.lab.rig import Model

VERSION = 1


@dataclass(frozen=True, slots=True)
class Cost:
    """``encode_us_per_token``: all layers, in the codec's plain torch form (not a kernel's). ``k_distortion``,
    ``v_distortion``: squared error over squared rows of what was packed, the mean over layers and heads.
    ``packed_reads``: the share of (query, key) pairs, of K and of V, that were read packed. ``others``: the share of
    the processor that other processes took meanwhile.
    """

    encode_us_per_token: float
    k_distortion: float
    v_distortion: float
    packed_reads: float
    pass_s: float
    others: float


@dataclass(frozen=True, slots=True)
class QualityRow:
    """``share_tokens``: a shared prefix may end at multiples of this; None: sharing is refused. ``start_tokens``: where
    in its file the text begins. ``noise``: not a method, but the exact model again with other chunk sizes, below
    whose KL nothing means anything.
    """

    spec: str
    k: str
    v: str
    protection: str
    text: str
    start_tokens: int
    length_tokens: int
    share_tokens: int | None
    size: Size
    quality: Quality
    cost: Cost
    noise: bool = False

    def fields(self) -> dict[str, Any]:
        """Flat, with what follows from the rest."""
        out = asdict(self)
        for part in ("size", "quality", "cost"):
            out |= out.pop(part)
        out["growth"] = "O(T)"
        out["k_over_shannon"] = over_shannon(self.cost.k_distortion, self.size.bits_k)
        out["v_over_shannon"] = over_shannon(self.cost.v_distortion, self.size.bits_v)
        return out


def setting(model: Model, threads: int, calibrated: str) -> dict[str, Any]:
    """What all rows of a run have in common. ``calibrated``: the text that means were learnt from, empty for none."""
    return {
        "version": VERSION,
        "model": model.name,
        "architecture": model.spec.architecture,
        "dtype": model.dtype,
        "calibrated": calibrated,
        "machine": host.cpu_name(),
        "cores": host.cores(),
        "threads": threads,
        "framework": host.versions(),
        "commit": host.commit(),
    }


def line(common: dict[str, Any], row: QualityRow) -> str:
    """One line of JSON."""
    return json.dumps({**common, **row.fields(), "at": host.now()}, ensure_ascii=False)

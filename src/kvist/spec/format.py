"""Number formats of cached K and V.

A format answers in bits, so that the planner, the layout and the store cannot disagree. Scales and other per-group
data are part of the format: ``int8t`` keeps 8-bit integers and one float16 scale for each token and head; ``f32``,
``f16`` and ``bf16`` have none.

``lm4``, ``lm3`` and ``lm2`` keep 4, 3 or 2 bits of each number: rows are rotated by a Hadamard matrix, after which
their numbers are nearly Gaussian, and brought to the levels of the best quantiser for those (Lloyd 1957, Max 1960).
With these a query reads the first ``SINK_TOKENS`` positions and those of its own cell of ``NEAR_TOKENS`` exactly, as
float16: a format *with cells* keeps both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvist.errors import BadValue


@dataclass(frozen=True, slots=True)
class Element:
    """One element type. ``scale_bits`` is spent once for every ``scale_group`` elements along the head dim, which must
    be a multiple of ``dim_step``.

    ``in_cells``: too coarse for a query's own neighbours and for sinks, which are kept exact beside it. ``rotated``: a
    Hadamard matrix comes first.
    """

    name: str
    bits: int
    scale_bits: int = 0
    scale_group: int = 0
    dim_step: int = 1
    in_cells: bool = False
    rotated: bool = False

    def row_bytes(self, dim: int) -> int:
        """Bytes of one token's row of ``dim`` elements for one head, scales included."""
        groups = -(-dim // self.scale_group) if self.scale_group else 0
        return -(-(dim * self.bits + groups * self.scale_bits) // 8)


ROW: Final = 1 << 20
"""A scale group that no head dim exceeds: one scale a row."""

F32: Final = Element("f32", 32)
F16: Final = Element("f16", 16)
BF16: Final = Element("bf16", 16)
INT8T: Final = Element("int8t", 8, 16, ROW, dim_step=2)
LLOYD: Final = tuple(
    Element(f"lm{bits}", bits, 16, ROW, dim_step=16, in_cells=True, rotated=True) for bits in (4, 3, 2)
)

ELEMENTS: Final = {e.name: e for e in (F32, F16, BF16, INT8T, *LLOYD)}
"""What kvist's own cache can hold."""

FOREIGN: Final = {
    e.name: e
    for e in (
        Element("fp8", 8),
        Element("int8", 8),
        Element("int4", 4),
        Element("q8_0", 8, 16, 32),
        Element("q6_0", 6, 16, 32),
        Element("q5_1", 5, 32, 32),
        Element("q5_0", 5, 16, 32),
        Element("q4_1", 4, 32, 32),
        Element("q4_0", 4, 16, 32),
        Element("iq4_nl", 4, 16, 32),
        Element("nvfp4", 4, 8, 16),
        Element("mxfp4", 4, 8, 32),
    )
}
"""What other engines' caches hold: good for arithmetic. Scales kept once per tensor count as nothing."""

OTHER_NAMES: Final = {
    "fp32": "f32", "float32": "f32", "fp16": "f16", "float16": "f16", "half": "f16", "bfloat16": "bf16",
    "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "fp8_inc": "fp8", "f8": "fp8", "float8": "fp8",
}  # fmt: skip
"""Other people's names for the same widths."""


SINK_TOKENS: Final = 4
"""Positions at the start of a sequence that formats with cells keep exact."""

NEAR_TOKENS: Final = 64
"""Positions of one cell: a query reads its own cell exactly, and packed what lies before it."""


@dataclass(frozen=True, slots=True)
class KVFormat:
    """Element type of K and of V."""

    k: Element = F16
    v: Element = F16

    @property
    def name(self) -> str:
        """``f16``, or ``k/v`` when the two differ."""
        return self.k.name if self.k == self.v else f"{self.k.name}/{self.v.name}"

    @property
    def in_cells(self) -> bool:
        """Whether sinks and a query's own cell are kept exact beside packed rows."""
        return self.k.in_cells or self.v.in_cells

    @property
    def exact(self) -> KVFormat:
        """What those are kept as."""
        return KVFormat(F16, F16)

    @staticmethod
    def planned(text: str) -> KVFormat:
        """A format of any engine, for arithmetic: ``'fp8'``, ``'q8_0/q4_0'`` (K/V). Raises ``BadValue``."""
        known = {**ELEMENTS, **FOREIGN}
        k, _, v = text.lower().partition("/")
        names = [OTHER_NAMES.get(part.strip(), part.strip()) for part in (k, v or k)]
        for part in names:
            if part not in known:
                raise BadValue("kv_format", text, f"one of {', '.join(known)}, or K/V as in q8_0/q4_0")
        return KVFormat(known[names[0]], known[names[1]])

    @staticmethod
    def parse(text: str) -> KVFormat:
        """``'f16'`` or ``'f32/f16'`` (K/V). Raises ``BadValue`` naming what exists."""
        k, _, v = text.partition("/")
        for part in (k, v or k):
            if part not in ELEMENTS:
                raise BadValue("kv_format", text, f"one of {', '.join(ELEMENTS)}, or K/V as in f32/f16")
        return KVFormat(ELEMENTS[k], ELEMENTS[v or k])

"""How a weight matrix lies in memory, decided from how a file stores it: one rule for the loader and the planner.

Kinds: ``f32``, ``f16``, ``bf16`` (plain), ``w8`` and ``w4`` (packed: ``kernels/matrix.py``). ``dtype`` is what the user
asks for: ``packed`` keeps what the file has, ``int8`` packs every matrix to ``w8``, ``f32`` and ``bf16`` are plain.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from kvist.units import ceil_div

DTYPES: Final = ("packed", "int8", "f32", "bf16")
LANES: Final = 16
GROUP: Final = 32
RECORD_BYTES: Final = {"w4": 320, "w8": 544}
"""Bytes of 16 outputs by 32 inputs."""

FOUR_BITS: Final = frozenset({"Q4_0", "Q4_1", "Q4_K"})
"""Stored types whose integers go into ``w4`` as they are."""

_ELEMENT_BYTES: Final = {"f32": 4, "f16": 2, "bf16": 2}
_PLAIN: Final = {"F32": "f32", "F64": "f32", "F16": "f16", "BF16": "bf16"}


def packable(inputs: int) -> bool:
    """Whether rows of this many inputs divide into groups."""
    return inputs % GROUP == 0


def matrix_kind(types: Sequence[str], inputs: int, dtype: str, *, plain: bool = False) -> str:
    """The kind of one matrix made of pieces stored as ``types`` (GGUF's names), with ``inputs`` columns.

    ``packed``: pieces of 4 bits make a ``w4``; one piece of any other quantised type makes the whole a ``w8``, so that
    the better piece loses nothing to speak of and a 4-bit piece next to nothing (a step of its new scale is a sixteenth
    of the old one); a piece of floats keeps the whole in floats. ``plain`` matrices (cut up after loading) and those
    with ragged rows stay floats: as stored, or bf16 for what was quantised.
    """
    if dtype in _ELEMENT_BYTES:
        return dtype
    floats = {_PLAIN[t] for t in types if t in _PLAIN}
    if plain or not packable(inputs) or (floats and dtype == "packed"):
        return "f32" if len(floats) > 1 else next(iter(floats), "bf16")
    return "w4" if dtype == "packed" and FOUR_BITS.issuperset(types) else "w8"


def matrix_bytes(kind: str, outputs: int, inputs: int) -> int:
    """What a matrix takes in memory."""
    if kind in RECORD_BYTES:
        return ceil_div(outputs, LANES) * (inputs // GROUP) * RECORD_BYTES[kind]
    return outputs * inputs * _ELEMENT_BYTES[kind]


Stored = Mapping[str, tuple[str, tuple[int, ...]]]
"""Tensors of a file by name: type, and shape with rows first."""

_MERGED: Final = (
    (re.compile(r"(.*)\b(?:attn_[qkv]|self_attn\.[qkv]_proj)\.weight$"), "qkv"),
    (re.compile(r"(.*)\b(?:ffn_(?:gate|up)|mlp\.(?:gate|up)_proj)\.weight$"), "gate_up"),
)
_CUT_UP: Final = re.compile(r"(?:attn_(?:kv|k|v)_b|self_attn\.kv_b_proj)\.weight$")


def loaded_kinds(stored: Stored, dtype: str) -> dict[str, int]:
    """Bytes of each kind, most first, that the loader makes of these tensors.

    Matrices are merged as the decoder wants them; norms and biases are f32.
    """
    total: Counter[str] = Counter()
    merged: dict[tuple[str, str], list[tuple[str, tuple[int, ...]]]] = {}
    for name, (kind, shape) in stored.items():
        if name.startswith("rope_freqs."):
            continue  # becomes part of the rotation's table
        if len(shape) == 1:
            total["f32"] += 4 * shape[0]
            continue
        found = next(((m[1], slot) for pattern, slot in _MERGED if (m := pattern.match(name))), (name, ""))
        merged.setdefault(found, []).append((kind, shape))
    for (name, _), pieces in merged.items():
        types, shapes = zip(*pieces, strict=True)
        inputs, outputs = shapes[0][-1], sum(math.prod(shape[:-1]) for shape in shapes)
        kind = matrix_kind(types, inputs, dtype, plain=_CUT_UP.search(name) is not None)
        total[kind] += matrix_bytes(kind, outputs, inputs)
    return dict(total.most_common())


def kinds_text(kinds: Mapping[str, int], dtype: str) -> str:
    """``w4 + w8 as in the file``: kinds that hold more than a hundredth, most first."""
    named = [kind for kind, n_bytes in kinds.items() if 100 * n_bytes > sum(kinds.values())]
    return " + ".join(named) + (" as in the file" if dtype == "packed" else "")

"""Codecs by name. A module is imported when its variant is asked for, not before.

A name stands for a codec of K and one of V: mostly the same, two kinds for ``kivi``, none for V where a mean of keys
is needed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final

from kvist.errors import BadValue
from kvist.kernels.codec.base import Codec, Side

PRESETS: Final = {"k8v4": "int8t/lm4"}
"""Names for pairs."""


@dataclass(frozen=True, slots=True)
class _Place:
    """``kind`` in ``module`` with its knobs; ``values``: the kind for V if another; ``keys_only``: why V has none."""

    module: str
    kind: str
    knobs: dict[str, Any] = field(default_factory=dict)
    values: str = ""
    keys_only: str = ""


_SHIFTED: Final = "the mean that it leaves out is one of keys, which their softmax cancels"
_TURNED: Final = "the mean that it leaves out turns with the position, and values do not"

_WHERE: Final = {
    "f32": _Place("casts", "Cast", {"name": "f32"}),
    "f16": _Place("casts", "Cast", {"name": "f16"}),
    "bf16": _Place("casts", "Cast", {"name": "bf16"}),
    "int8t": _Place("int8t", "Int8t"),
    "q8_0": _Place("ggml", "Q8_0"),
    "q4_0h": _Place("ggml", "Q4_0", {"rotated": True}),
    "q4_0": _Place("ggml", "Q4_0", {"rotated": False}),
    "int4t_h": _Place("int4t", "Int4tH"),
    "lm4": _Place("lloyd", "Lloyd", {"bits": 4}),
    "lm3": _Place("lloyd", "Lloyd", {"bits": 3}),
    "lm2": _Place("lloyd", "Lloyd", {"bits": 2}),
    "sm4": _Place("mean", "CentredLloyd", {"bits": 4, "turning": False}, keys_only=_SHIFTED),
    "sm3": _Place("mean", "CentredLloyd", {"bits": 3, "turning": False}, keys_only=_SHIFTED),
    "sm2": _Place("mean", "CentredLloyd", {"bits": 2, "turning": False}, keys_only=_SHIFTED),
    "ms4": _Place("mean", "CentredLloyd", {"bits": 4, "turning": True}, keys_only=_TURNED),
    "ms3": _Place("mean", "CentredLloyd", {"bits": 3, "turning": True}, keys_only=_TURNED),
    "kivi4": _Place("kivi", "KiviKeys", {"bits": 4}, values="KiviValues"),
    "kivi2": _Place("kivi", "KiviKeys", {"bits": 2}, values="KiviValues"),
    "fp8_e4m3": _Place("fp8", "Fp8E4M3"),
}


def names(side: Side = "k") -> tuple[str, ...]:
    """Every variant that this side can have."""
    return tuple(name for name, place in _WHERE.items() if side == "k" or not place.keys_only)


def load(name: str, side: Side = "k", **knobs: Any) -> Codec:
    """The codec called ``name`` of one side, its knobs set (``scale=0.04`` for ``fp8_e4m3``).

    Raises ``BadValue`` if there is none, or not for this side, or without such a knob.
    """
    if name not in _WHERE:
        raise BadValue("codec", name, f"one of {', '.join(_WHERE)}")
    place = _WHERE[name]
    if side == "v" and place.keys_only:
        raise BadValue("codec", name, f"for V, one of {', '.join(names('v'))} ({name} is for K: {place.keys_only})")
    kind = getattr(import_module(f"kvist.kernels.codec.{place.module}"), (side == "v" and place.values) or place.kind)
    free = [knob for knob in getattr(kind, "__dataclass_fields__") if knob not in place.knobs]  # noqa: B009
    if unknown := sorted(set(knobs) - set(free)):
        raise BadValue("knob", unknown[0], f"for {name}, {' or '.join(free) or 'none'}")
    codec: Codec = kind(**place.knobs, **knobs)
    return codec


def parse(text: str) -> tuple[Codec, Codec]:
    """(codec of K, codec of V) from ``"ms4/lm4"``, one name for both, or one of ``PRESETS``. Raises ``BadValue``."""
    k, slash, v = PRESETS.get(text, text).partition("/")
    return load(k, "k"), load(v if slash else k, "v")

"""Names of workloads to the files that hold them, imported when asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Final

from kvist.bench.workload.base import Workload
from kvist.errors import BadValue

_FILES: Final = {
    "generated-shared-prefix": ("shared_prefix", "SharedPrefix"),
    "prefix-repetition": ("prefix_repetition", "PrefixRepetition"),
    "multi-turn": ("multi_turn", "MultiTurn"),
    "agent": ("agent", "Agent"),
    "random": ("random_lengths", "RandomLengths"),
    "trace": ("trace", "Trace"),
}


def names() -> tuple[str, ...]:
    """What can be loaded."""
    return tuple(_FILES)


def _kind(name: str) -> Any:
    if name not in _FILES:
        raise BadValue("workload", name, f"one of {', '.join(_FILES)}")
    module, kind = _FILES[name]
    return getattr(importlib.import_module(f"kvist.bench.workload.{module}"), kind)


def knobs(name: str) -> dict[str, Any]:
    """A workload's knobs and what each is by default."""
    return {f.name: f.default for f in fields(_kind(name))}


def about(name: str) -> str:
    """A workload in a few words."""
    return str(_kind(name).about)


def load(name: str, given: Mapping[str, Any] | None = None, scale: float = 1.0) -> Workload:
    """The variant: defaults times ``scale``, then what was given (never scaled).

    Raises ``BadValue`` for a name or a knob there is not, and for values out of range.
    """
    if not scale > 0:
        raise BadValue("scale", scale, "a number > 0")
    kind, given = _kind(name), given or {}
    defaults = knobs(name)
    for knob in given:
        if knob not in defaults:
            raise BadValue(knob, given[knob], f"a knob of {name}: {', '.join(defaults)}")
    shrunk = {k: _times(defaults[k], scale) for k in kind.scaled if k not in given and scale != 1}
    workload: Workload = replace(kind(**given), **shrunk)
    return workload


def _times(value: Any, scale: float) -> Any:
    return value * scale if isinstance(value, float) else max(1, round(value * scale)) if value else value

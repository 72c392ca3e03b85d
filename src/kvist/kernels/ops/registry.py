"""Dense operations by name, fastest first. A module is imported when its variant is asked for, not before."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from kvist.errors import BadValue
from kvist.kernels.ops.base import Ops

_WHERE: Final = {
    "native": ("kvist.kernels.ops.native", "NativeOps"),
    "reference": ("kvist.kernels.ops.reference", "ReferenceOps"),
}


def names() -> tuple[str, ...]:
    """Every variant's name, whether or not it can run here."""
    return tuple(_WHERE)


def load(name: str) -> Ops:
    """The variant called ``name``. Raises ``BadValue`` if there is none, ``ImportError`` if it cannot run here."""
    if name not in _WHERE:
        raise BadValue("ops", name, f"one of {', '.join(_WHERE)}")
    module, kind = _WHERE[name]
    ops: Ops = getattr(import_module(module), kind)()
    return ops


def available() -> tuple[str, ...]:
    """Names that can run here, fastest first. The reference always can."""
    return tuple(name for name in _WHERE if _runs(name))


def best_available() -> Ops:
    """The fastest variant that runs here."""
    return load(available()[0])


def _runs(name: str) -> bool:
    try:
        load(name)
    except ImportError:
        return False
    return True

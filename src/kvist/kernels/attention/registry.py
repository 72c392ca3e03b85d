"""Attention variants by name, fastest first. A module is imported when its variant is asked for, not before."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from kvist.errors import BadValue
from kvist.kernels.attention.base import AttentionKernel, LayerView

_WHERE: Final = {
    "native": ("kvist.kernels.attention.native", "NativeAttention"),
    "reference": ("kvist.kernels.attention.reference", "ReferenceAttention"),
}


def names() -> tuple[str, ...]:
    """Every variant's name, whether or not it can run here."""
    return tuple(_WHERE)


def load(name: str) -> AttentionKernel:
    """The variant called ``name``. Raises ``BadValue`` if there is none, ``ImportError`` if it cannot run here."""
    if name not in _WHERE:
        raise BadValue("attention", name, f"one of {', '.join(_WHERE)}")
    module, kind = _WHERE[name]
    kernel: AttentionKernel = getattr(import_module(module), kind)()
    return kernel


def available() -> tuple[str, ...]:
    """Names that can run here, fastest first. The reference always can."""
    return tuple(name for name in _WHERE if _runs(name))


def best_available(view: LayerView | None = None) -> AttentionKernel:
    """The fastest variant that runs here and, when given, supports ``view``."""
    for name in available():
        kernel = load(name)
        if view is None or kernel.supports(view):
            return kernel
    raise AssertionError("the reference kernel supports every view")


def _runs(name: str) -> bool:
    try:
        load(name)
    except ImportError:
        return False
    return True

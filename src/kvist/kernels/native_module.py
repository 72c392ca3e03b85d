"""Loads ``kvist_native``, or says in one sentence why it is absent and what to do.

The environment variable ``KVIST_ISA`` (portable, avx2, avx512, avx512vnni) forces an instruction set; otherwise the
best one that this processor runs is used.
"""

from __future__ import annotations

import os
from functools import cache
from types import ModuleType
from typing import Any, Final

import torch  # noqa: F401  (first: the native module asks the same OpenMP runtime how many threads to use)

from kvist.errors import BadValue
from kvist.kernels.attention.base import LayerView

REMEDY: Final = "install g++ 11 or newer (Debian: apt-get install g++), then reinstall kvist"
ELEMENT: Final = {"f32": 0, "f16": 1, "bf16": 2, "int8t": 3, "lm4": 4, "lm3": 5, "lm2": 6}
"""Element types of K and V as ``csrc/table.h`` numbers them."""
_KEPT_VIEWS: Final = 4096


def absent_reason() -> str | None:
    """One sentence, or None when the native kernels are there."""
    try:
        import kvist.kernels.kvist_native  # noqa: F401
    except ModuleNotFoundError:
        return f"kvist was installed without its native kernels: {REMEDY}"
    except ImportError as error:
        return f"the native kernels do not load ({error}): {REMEDY}"
    return None


@cache
def load() -> ModuleType:
    """The module, with its instruction set chosen. Raises ``ImportError`` (absent) or ``BadValue`` (KVIST_ISA)."""
    reason = absent_reason()
    if reason:
        raise ImportError(reason)
    from kvist.kernels import kvist_native

    native: ModuleType = kvist_native
    wanted = os.environ.get("KVIST_ISA")
    if wanted:
        if wanted not in native.available():
            raise BadValue("KVIST_ISA", wanted, f"one of {', '.join(native.available())} on this machine")
        native.choose(wanted)
    return native


class Views:
    """Native twins of layer views. Looked up by id, several times faster than by value."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[LayerView, Any]] = {}  # keeping the view keeps its id from being given away

    def of(self, view: LayerView) -> Any:
        """The twin of ``view``. Raises ``BadValue`` where :func:`supports` is false."""
        kept = self._kept.get(id(view))
        return kept[1] if kept else self._add(view)

    def _add(self, view: LayerView) -> Any:
        native = load()
        if not supports(view):
            raise BadValue("layer", view, f"K and V of {', '.join(ELEMENT)}, head dims up to {native.MAX_DIM}")
        twin = native.View(
            view.k_offset_bytes,
            view.v_offset_bytes,
            view.head_bytes,
            view.kv_heads,
            view.key_dim,
            view.value_dim,
            view.tokens_per_block,
            ELEMENT[view.k_element],
            ELEMENT[view.v_element],
        )
        if len(self._kept) >= _KEPT_VIEWS:
            self._kept.clear()
        self._kept[id(view)] = (view, twin)
        return twin


def supports(view: LayerView) -> bool:
    """Every K/V mix of element types with heads of up to 512; not latent layers."""
    return (
        view.v_offset_bytes >= 0
        and view.k_element in ELEMENT
        and view.v_element in ELEMENT
        and max(view.key_dim, view.value_dim) <= load().MAX_DIM
    )

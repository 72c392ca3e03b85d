"""Names of evict policies to the files that hold them, imported when asked for."""

from __future__ import annotations

import importlib
from typing import Final

from kvist.cache.evict.base import EvictPolicy
from kvist.errors import BadValue

_FILES: Final = {
    "auto": ("kvist.cache.evict.auto", "Auto"),
    "lru": ("kvist.cache.evict.lru", "Lru"),
    "interval": ("kvist.cache.evict.interval", "Interval"),
}


def names() -> tuple[str, ...]:
    """What can be loaded."""
    return tuple(_FILES)


def load(name: str) -> EvictPolicy:
    """The variant with its default knobs. Raises ``BadValue`` naming what exists."""
    if name not in _FILES:
        raise BadValue("evict", name, f"one of {', '.join(_FILES)}")
    module, kind = _FILES[name]
    policy: EvictPolicy = getattr(importlib.import_module(module), kind)()
    return policy

"""Names of orders to the files that hold them, imported when asked for."""

from __future__ import annotations

import importlib
from typing import Final

from kvist.errors import BadValue
from kvist.sched.order.base import Order

_FILES: Final = {"fcfs": ("kvist.sched.order.fcfs", "Fcfs"), "prefix": ("kvist.sched.order.prefix", "Prefix")}


def names() -> tuple[str, ...]:
    """What can be loaded."""
    return tuple(_FILES)


def load(name: str) -> Order:
    """The variant with its default knobs. Raises ``BadValue`` naming what exists."""
    if name not in _FILES:
        raise BadValue("order", name, f"one of {', '.join(_FILES)}")
    module, kind = _FILES[name]
    order: Order = getattr(importlib.import_module(module), kind)()
    return order

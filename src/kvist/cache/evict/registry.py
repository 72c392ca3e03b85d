"""Names of evict policies. A variant's file is imported when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from kvist.cache.evict.base import EvictPolicy
from kvist.errors import BadValue

POLICIES: Final = {"lru": "kvist.cache.evict.lru:Lru"}


def evict_policy(name: str) -> EvictPolicy:
    """The policy called ``name`` with its default knobs. Raises ``BadValue`` naming what exists."""
    if name not in POLICIES:
        raise BadValue("evict", name, f"one of {', '.join(POLICIES)}")
    module, _, kind = POLICIES[name].partition(":")
    policy: EvictPolicy = getattr(import_module(module), kind)()
    return policy

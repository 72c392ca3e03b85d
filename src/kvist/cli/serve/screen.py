"""What ``kvist serve`` tells the person who started it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvist.server.capacity import Capacity
from kvist.server.config import ServeConfig
from kvist.server.run import Host
from kvist.server.served import Served
from kvist.server.service import Service
from kvist.spec.weight_kinds import kinds_text
from kvist.units import format_bytes


def say(text: str) -> None:
    """One line on standard error, at once."""
    print(text, file=sys.stderr, flush=True)


def starting(address: str, config: ServeConfig) -> None:
    """Before the model is there."""
    say(f"kvist listens on {address} and loads {config.names[0]} (503 until it is there)")
    if not config.loopback and config.tenants.open:
        say(f"warning: {config.host} can be reached from other machines and no key is needed; set --api-key")


def ready(address: str, service: Service, kept: Mapping[str, Path]) -> None:
    """What was resolved. ``kept``: where what people wrote lies besides the tiers."""
    served, config = service.served, service.config
    capacity = Capacity.of(served)
    facts = served.facts
    weights = facts.get("weights_bytes", 0)
    rows = {
        "model": f"{', '.join(config.names)} ({served.path})",
        "weights": f"{format_bytes(weights)}, {_kinds(facts)}, kernels {'+'.join(facts.get('kernels', []))}",
        "pool": (
            f"{format_bytes(capacity.pool_bytes)} = {capacity.blocks:,} blocks of {served.layout.span_tokens} tokens"
            f" ({served.layout.format.name})"
        ),
        "fits": capacity.sentence(),
        "users": _users(config, served),
        "order": f"{capacity.order}; bound on a step beside running answers: {capacity.itl_slo}",
    }
    rows |= _tiers(served)
    if kept:
        rows["keeps"] = ", ".join(f"{what} in {path}" for what, path in kept.items())
    for name, text in rows.items():
        say(f"  {name:<8}{text}")
    say(f"ready: {address}/v1  (metrics at {address}/metrics)")


def _kinds(facts: Mapping[str, Any]) -> str:
    """How the weights lie in memory."""
    dtype = str(facts.get("dtype", "?"))
    return kinds_text(facts["weight_kinds"], dtype) if "weight_kinds" in facts else dtype


def _tiers(served: Served) -> dict[str, str]:
    """Where blocks lie besides the pool."""
    places, config = served.places, served.config.tiers
    if places is None:
        return {}
    sealed = "sealed" if places.sealed else "not sealed"
    rows = {"tiers": f"{', '.join(places.texts)}; write {config.when}, load {config.load}; {sealed}"}
    for name, usage in zip(places.names, places.usages(), strict=True):
        if usage.condition != "ok":
            rows["tiers"] += f"; {name} is {usage.condition}: {usage.reason}"
    return rows


def _users(config: ServeConfig, served: Served) -> str:
    tenants = config.tenants
    sealed = served.places is not None and served.places.sealed
    if tenants.open:
        return "anyone (no --api-key); one cache for all, --api-key gives each key its own"
    names = ", ".join(f"{t.name} (weight {t.weight:g})" for t in tenants.known)
    shared = "one cache for all" + ("; but the tiers are sealed, and there each has only its own" if sealed else "")
    return f"{names}; {'each its own cache' if tenants.isolate else shared}"


def stopped(host: Host) -> None:
    """At the end."""
    say(f"stopped{f'; {host.cut} answers were cut' if host.cut else ''}")

"""What a server is told at its start, beyond the engine's own config."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from kvist.errors import BadValue
from kvist.server.tenants import Tenants
from kvist.units import MIB

LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """All limits of the server.

    A tenant may have ``max_queue`` answers waiting, running or not read yet; one that would wait more than about
    ``max_wait_s`` is refused too. A body is at most ``max_body_bytes``. A client that does not read for
    ``write_timeout_s`` is cut off; one that takes longer than ``read_timeout_s`` to send its request as well.
    ``drain_s``: how long running answers may still take after SIGTERM. ``max_output_tokens`` is the bound of an answer
    whose request names none (None: up to the context). ``keep_answers``: conversations go on with the token ids that
    were generated; ``append_only``: also where the template would now render them differently.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    names: tuple[str, ...] = ("kvist",)
    tenants: Tenants = field(default_factory=Tenants)
    max_queue: int = 256
    max_wait_s: float = 600.0
    max_body_bytes: int = 4 * MIB
    max_connections: int = 4096
    write_timeout_s: float = 60.0
    read_timeout_s: float = 30.0
    drain_s: float = 30.0
    max_output_tokens: int | None = None
    keep_answers: bool = True
    append_only: bool = False
    history: int = 4096
    """Ended requests that can still be asked about."""
    tenant_metrics: bool = False
    """Metrics name tenants. They are open to all who can reach the server."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise BadValue("port", self.port, "a port in [0, 65535] (0: any free one)")
        if not self.names or not all(self.names):
            raise BadValue("served_model_name", self.names, "at least one name")
        for name in ("max_queue", "max_body_bytes", "max_connections", "history"):
            if getattr(self, name) < 1:
                raise BadValue(name, getattr(self, name), "a count >= 1")
        for name in ("max_wait_s", "write_timeout_s", "read_timeout_s", "drain_s"):
            value = getattr(self, name)
            if not math.isfinite(value) or value <= 0:
                raise BadValue(name, value, "seconds > 0")
        if self.max_output_tokens is not None and self.max_output_tokens < 1:
            raise BadValue("max_output_tokens", self.max_output_tokens, "a count >= 1")

    @property
    def loopback(self) -> bool:
        """True when nobody outside this machine can reach it."""
        return self.host in LOOPBACK

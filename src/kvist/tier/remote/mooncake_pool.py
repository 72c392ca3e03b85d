"""Joining a Mooncake pool: what this process lends, where the master is, and whether it is there at all."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kvist.tier.remote.place import PlaceError

MASTER_S: Final = 2.0
"""How long a master may take to show that it is there."""


@dataclass(frozen=True, slots=True)
class Joining:
    """How to join a pool: what this process lends (``segment_bytes``), how it is reached (``local``), by what."""

    master: str
    metrics: str
    local: str = ""
    segment_bytes: int = 512 << 20
    staging_bytes: int = 32 << 20
    protocol: str = "tcp"
    device: str = ""
    replicas: int = 1


def join(library: Any, how: Joining, staging: Sequence[npt.NDArray[np.uint8]]) -> Any:
    """A store that is a member of the pool, with ``staging`` registered. Raises when there is no master.

    The master is looked for on both its ports first: the library's ``setup`` without one stops the whole interpreter.
    """
    host, _, port = how.master.rpartition(":")
    socket.create_connection((host, int(port)), timeout=MASTER_S).close()
    fetch(how.metrics, "health", MASTER_S)
    store = library.MooncakeDistributedStore()
    local = how.local or _own_address(how.master)
    lent, buffer_bytes = how.segment_bytes, how.staging_bytes
    code = store.setup(local, "P2PHANDSHAKE", lent, buffer_bytes, how.protocol, how.device, how.master)
    if code != 0:
        raise PlaceError(f"the pool cannot be joined (code {code})")
    for memory in staging:
        if (code := store.register_buffer(memory.ctypes.data, memory.nbytes)) != 0:
            raise PlaceError(f"staging memory cannot be registered (code {code})")
    return store


def fetch(metrics: str, path: str, patience_s: float) -> str:
    """What the master's HTTP port answers."""
    with urllib.request.urlopen(f"http://{metrics}/{path}", timeout=patience_s) as reply:
        body: bytes = reply.read()
    return body.decode(errors="replace")


def _own_address(master: str) -> str:
    """The address of this host on the way to the master. No packet is sent."""
    host, _, port = master.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.connect((host, int(port)))
        return str(s.getsockname()[0])

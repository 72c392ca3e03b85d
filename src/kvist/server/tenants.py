"""Who asks: API keys, the names and weights behind them, and the part of the cache that each may see."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from kvist.errors import BadValue

SALT_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Tenant:
    """One user of the server. ``name`` shows in logs and metrics; the key itself never does."""

    name: str
    weight: float = 1.0
    key: str = field(default="", repr=False)
    admin: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.weight <= 1000:
            raise BadValue("api_key", f"{self.name}:...:{self.weight:g}", "a weight in (0, 1000]")


ANYONE: Final = Tenant("default", admin=True)


@dataclass(frozen=True, slots=True)
class Tenants:
    """Everyone who has a key; with no keys at all everyone is ``default`` and may do everything.

    ``isolate``: each sees its own part of the cache only. Tenants with ``admin`` may reset, reload and look at all.
    """

    known: tuple[Tenant, ...] = ()
    isolate: bool = True

    def __post_init__(self) -> None:
        for what, values in (("name", [t.name for t in self.known]), ("key", [t.key for t in self.known])):
            if len(set(values)) < len(values) or not all(values):
                raise BadValue("api_key", "...", f"keys that each have a {what} of their own")

    @staticmethod
    def parse(keys: Iterable[str], *, admin_key: str = "", isolate: bool = True) -> Tenants:
        """From ``KEY``, ``NAME:KEY`` or ``NAME:KEY:WEIGHT``. Raises ``BadValue``, which never shows a key.

        An admin key alone makes nobody else welcome.
        """
        known = [_parse(text, n) for n, text in enumerate(keys, 1)]
        if admin_key:
            known.append(Tenant("admin", key=admin_key, admin=True))
        return Tenants(tuple(known), isolate)

    @property
    def open(self) -> bool:
        """True when no key is needed."""
        return not self.known

    @property
    def weights(self) -> tuple[tuple[str, float], ...]:
        """Name and weight of each."""
        return tuple((t.name, t.weight) for t in self.known)

    def find(self, key: str | None) -> Tenant | None:
        """Whose key this is; None: nobody's. Takes the same time for every wrong key."""
        if self.open:
            return ANYONE
        given = (key or "").encode("utf-8", "surrogatepass")
        found = None
        for tenant in self.known:
            if hmac.compare_digest(given, tenant.key.encode()):
                found = tenant
        return found

    def salt(self, tenant: Tenant, asked: str) -> bytes:
        """Root of the part of the cache that a request may share: the tenant's own, narrowed by the salt it asked for.

        No salt that a client can send reaches another tenant's part. Without isolation the salt alone decides.
        """
        owner = tenant.name if self.isolate else ""
        if not owner and not asked:
            return b""
        parts = [owner.encode(), asked.encode("utf-8", "surrogatepass")]
        state = blake2b(digest_size=SALT_BYTES, person=b"kvist-tenant")
        for part in parts:
            state.update(len(part).to_bytes(8, "little") + part)
        return state.digest()


def _parse(text: str, number: int) -> Tenant:
    parts = text.split(":")
    if len(parts) == 1:
        return Tenant(f"key{number}", key=parts[0])
    name, key, *rest = parts
    if len(rest) > 1:
        raise BadValue("api_key", f"{name}:...", "KEY, NAME:KEY or NAME:KEY:WEIGHT")
    try:
        return Tenant(name, float(rest[0]) if rest else 1.0, key)
    except ValueError:
        raise BadValue("api_key", f"{name}:...:{rest[0]}", "a weight that is a number") from None

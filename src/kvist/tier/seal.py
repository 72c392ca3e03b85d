"""A tier that only who has the keys can read: AES-256-GCM around any other tier, with a key for each tenant.

The inner tier sees keyed ids, sealed bytes and sealed tokens; names of tenants, origins, depths, sizes and which record
follows which stay readable there: eviction, bills and wiping go by them. An id alone does not say whose it is: whoever
asks by id asks a ``view`` of the tenant. The tier itself tries every tenant in turn: for tools, not for requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from kvist.ids import RecordId
from kvist.spec.group import ALIGN_BYTES
from kvist.tier.base import Entry, Got, Label, Put, Record, Tier, Usage
from kvist.tier.keyring import Keyring
from kvist.tier.seal_view import TenantView, opened_entries, opened_entry, usage_of
from kvist.tier.tenant_cipher import SEAL_BYTES, Ciphers


def looks_sealed(entry: Entry) -> bool:
    """Whether an entry of the inner tier is of a sealed record, told without its key: by its size."""
    return entry.data_bytes % ALIGN_BYTES == SEAL_BYTES


class Sealed:
    """Seals what goes into ``tier``. ``close`` closes that one too."""

    def __init__(self, tier: Tier, keyring: Keyring) -> None:
        self.name = tier.name
        self.inner = tier
        self.remote: bool = getattr(tier, "remote", False)
        self.takes_saves: bool = getattr(tier, "takes_saves", True)
        self._keyring = keyring
        self._ciphers = Ciphers(keyring, tier.name)

    def view(self, tenant: str) -> TenantView:
        """The tier as one tenant has it: what others put is not there. Cheap to make; goes with this tier."""
        return TenantView(self.inner, self._ciphers, tenant)

    def wipe(self, tenant: str) -> int:
        """Destroy a tenant's key, then remove his records. Raises ``KvistError`` when the key could not be destroyed.

        Copies of the records that lie elsewhere (a replica, a backup) are noise from then on.
        """
        self._keyring.forget(tenant)
        return self.inner.delete(tenant=tenant)

    def drop_unreadable(self) -> int:
        """Remove what no key opens here: unsealed records, and those of tenants whose key is gone. Says how many.

        A place that others share without sealing loses their records.
        """
        lost = []
        for entry in self.inner.list():
            if opened_entry(entry, self._ciphers) is None:
                if self._ciphers.trouble:
                    return 0
                lost.append(entry.label.id)
        return self.inner.delete(ids=lost) if lost else 0

    def exists_many(self, ids: Sequence[RecordId]) -> list[bool]:
        """Whether any tenant has them."""
        found = [False] * len(ids)
        for view in self._views():
            rest = [n for n, there in enumerate(found) if not there]
            for n, there in zip(rest, view.exists_many([ids[n] for n in rest]), strict=True):
                found[n] = there
        return found

    def get_many_into(
        self, ids: Sequence[RecordId], buffers: Sequence[memoryview], *, timeout_s: float
    ) -> list[tuple[Got, Label | None]]:
        """From whichever tenant has them."""
        end = time.monotonic() + timeout_s
        got: list[tuple[Got, Label | None]] = [("missing", None)] * len(ids)
        for view in self._views():
            rest = [n for n, (how, _) in enumerate(got) if how == "missing"]
            left_s = end - time.monotonic()
            asked = view.get_many_into([ids[n] for n in rest], [buffers[n] for n in rest], timeout_s=left_s)
            for n, answer in zip(rest, asked, strict=True):
                got[n] = answer
        return [("error", None)] * len(ids) if self._ciphers.trouble else got

    def put_many(self, records: Sequence[Record], *, timeout_s: float) -> list[Put]:
        """Each record under the key of its own tenant."""
        end = time.monotonic() + timeout_s
        put: list[Put] = []
        for tenant, run in groupby(records, key=lambda record: record.label.tenant):
            put += self.view(tenant).put_many(list(run), timeout_s=end - time.monotonic())
        return put

    def touch_many(self, ids: Sequence[RecordId]) -> None:
        """For every tenant that has them."""
        for view in self._views():
            view.touch_many(ids)

    def delete(self, *, ids: Sequence[RecordId] = (), tenant: str | None = None, origin: bytes | None = None) -> int:
        """As any tier. A tenant's key stays (``wipe`` destroys it)."""
        if ids:
            return sum(view.delete(ids=ids) for view in self._views())
        return self.inner.delete(tenant=tenant, origin=origin)

    def list(self, *, origin: bytes | None = None, tenant: str | None = None) -> Iterator[Entry]:
        """Every record that a key opens, with its true label."""
        return opened_entries(self.inner.list(origin=origin, tenant=tenant), self._ciphers)

    def strange(self, origin: bytes) -> bool:
        """Whether it has records, and none of this origin, as far as the inner tier can tell."""
        ask: Callable[[bytes], bool] | None = getattr(self.inner, "strange", None)
        return ask is not None and ask(origin)

    def usage(self) -> Usage:
        """The inner tier's. Its condition is ``off`` while the keyring cannot be used."""
        return usage_of(self.inner, self._ciphers)

    def close(self) -> None:
        """Close the inner tier."""
        self.inner.close()

    def _views(self) -> tuple[TenantView, ...]:
        return tuple(self.view(tenant) for tenant in self._ciphers.tenants())

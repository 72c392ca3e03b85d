"""The cache of a conversation, saved to a file and read back: its chain of records, through the tiers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from kvist.cache.cache import Probe
from kvist.errors import PromptTooLong, StateError, UsageError
from kvist.ids import RecordId
from kvist.server.refuse import Refusal
from kvist.server.served import Places, Served
from kvist.server.service import Service
from kvist.server.sessions.shelf import FOLDER_NAME, Shelf, named
from kvist.server.tenants import Tenant
from kvist.server.workers import Workers
from kvist.tier.base import Tier
from kvist.tier.bundle import write_bundle
from kvist.tier.bundle_read import read_about, read_bundle

SEND_S: Final = 5.0
"""How long saving waits until the pool has given to the tiers what it is to give."""

FLUSH_S: Final = 10.0
LABEL_BYTES: Final = 4096
"""What a record takes in a file besides its bytes and tokens, at most."""


class Sessions:
    """Saves and restores. One per server; one file at a time."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._workers = Workers("kvist-session", 1)

    @property
    def folder(self) -> Path | None:
        """Where sessions lie; None: they cannot be saved here."""
        return None if self._why_not() else self._places().folder / FOLDER_NAME  # type: ignore[operator]

    async def save(self, tenant: Tenant, name: str, ids: Sequence[int], salt: str) -> dict[str, Any]:
        """Write what tiers have of the cache of ``ids`` to a file, in place of one of that name. Raises ``Refusal``."""
        shelf, served = self._shelf(tenant), self._service.served
        shelf.path(name)
        if not ids:
            raise Refusal(400, "nothing_to_save", "there are no tokens to save")
        if len(ids) > served.context_tokens:
            what = f"{len(ids)} tokens; the context has {served.context_tokens}"
            raise PromptTooLong(what, needed_tokens=len(ids), limit_tokens=served.context_tokens, remedy="send fewer")
        await self._sent()
        root = self._service.config.tenants.salt(tenant, salt)
        asked = await self._service.call(
            lambda engine: engine.scheduler.cache.restorer.probe(ids, 0, len(ids), salt=root)
        )
        return await self._workers.run(tenant, self._save, served, tenant, shelf, name, asked, len(ids))

    async def restore(self, tenant: Tenant, name: str) -> tuple[bool, dict[str, Any]]:
        """Put what a file has into the tiers; whether one of them has all of it now, and what to say. ``Refusal``."""
        shelf, served = self._shelf(tenant), self._service.served
        shelf.path(name)
        return await self._workers.run(tenant, self._restore, served, tenant, shelf, name)

    async def listed(self, tenant: Tenant) -> list[dict[str, Any]]:
        """The tenant's sessions."""
        return await self._workers.run(tenant, self._shelf(tenant).listed)

    async def delete(self, tenant: Tenant, name: str) -> None:
        """Remove a session."""
        await self._workers.run(tenant, self._shelf(tenant).delete, name)

    def _places(self) -> Places:
        places = self._service.served.places
        assert places is not None
        return places

    def _why_not(self) -> str:
        places = self._service.served.places
        if places is None or places.folder is None or not places.tiers:
            return "sessions lie in the folder of a disk tier, and this server has none"
        if places.sealed:
            return "what this server keeps is sealed, and the file of a session would not be"
        return ""

    def _shelf(self, tenant: Tenant) -> Shelf:
        if why := self._why_not():
            raise Refusal(400, "unsupported", why, remedy="start it with --tier disk:/path?size=10GiB, without a key")
        folder, isolate = self.folder, self._service.config.tenants.isolate
        assert folder is not None
        return Shelf.of(folder, tenant.name if isolate else "")

    async def _sent(self) -> None:
        """Wait until the pool has nothing left that the tiers are to get, as far as that ends soon."""
        until_s = time.monotonic() + SEND_S
        while await self._service.call(lambda engine: engine.scheduler.cache.unsent):
            if time.monotonic() > until_s:
                return
            await asyncio.sleep(0.01)

    # --- on the worker --------------------------------------------------------------------------------------------

    def _save(
        self, served: Served, tenant: Tenant, shelf: Shelf, name: str, asked: Probe, n_tokens: int
    ) -> dict[str, Any]:
        places = served.places
        assert places is not None
        flushed = places.flush(FLUSH_S)
        tier, end = _longest(served, places.tiers, tenant, asked)
        if tier is None:
            what = f"no tier has anything of these {n_tokens} tokens"
            remedy = "send them as a prompt first; blocks go to tiers once they are full (see --tier-min-tokens)"
            raise Refusal(400, "nothing_to_save", what, remedy=remedy)
        ids, block_bytes = _root_first(asked, end), served.layout.block_bytes
        most_bytes = max((u.capacity_bytes or 0 for u in places.usages()), default=0) or None
        about = {
            "kvist": version("kvist"),
            "name": name,
            "model": Path(served.path).name,
            "tokens": end,
            "saved_unix_s": int(time.time()),
        }
        try:
            path = shelf.room_for(name, len(ids) * block_bytes, most_bytes)
            summary = write_bundle(path, tier, ids, about, record_bytes=block_bytes)
        except (OSError, StateError) as error:
            reason = error.remedy if isinstance(error, StateError) else str(error.strerror)
            raise Refusal(503, "session_not_saved", "the session could not be written", remedy=reason) from error
        told = {
            "object": "session",
            "name": name,
            "tokens": end,
            "asked_tokens": n_tokens,
            "records": summary.records,
            "bytes": summary.file_bytes,
            "tier": tier.name,
        }
        return told | _left_out(n_tokens, end, asked.end, flushed=flushed)

    def _restore(self, served: Served, tenant: Tenant, shelf: Shelf, name: str) -> tuple[bool, dict[str, Any]]:
        places, path = served.places, shelf.found(name)
        assert places is not None
        told: dict[str, Any] = {"object": "session", "name": name}
        taken: dict[str, Any] = {}
        whole, reasons = False, []
        try:
            tokens = read_about(path).get("tokens")
            told["tokens"] = tokens if type(tokens) is int else None
            for tier in places.tiers:
                summary = read_bundle(
                    path,
                    _view(tier, tenant),
                    origin=places.origin,
                    record_bytes=served.layout.block_bytes,
                    tenant=tenant.name,
                    max_bytes=_most_bytes(served),
                )
                told["records"] = summary.records
                taken[tier.name] = {"stored": summary.stored, "known": summary.known, "lost": summary.lost}
                whole = whole or not summary.lost
                if summary.lost:
                    reasons.append(f"{tier.name} did not take all: {summary.reason}")
        except UsageError as error:
            raise Refusal(400, "session_refused", named(error, path)) from error
        told |= {"success": whole, "tiers": taken}
        return whole, told | ({"reason": "; ".join(reasons)} if reasons else {})


def _view(tier: Tier, tenant: Tenant) -> Tier:
    """The tier as its owner sees it."""
    view: Tier = tier.view(tenant.name) if hasattr(tier, "view") else tier
    return view


def _longest(served: Served, tiers: Sequence[Tier], tenant: Tenant, asked: Probe) -> tuple[Tier | None, int]:
    """The tier that has most of a prompt, and how many tokens that is."""
    best: tuple[Tier | None, int] = (None, 0)
    for tier in (_view(each, tenant) for each in tiers):
        there = [0 if has else -1 for has in tier.exists_many(asked.records)]
        end = served.engine.scheduler.cache.restorer.reach(asked, there, asked.end)
        if end > best[1]:
            best = tier, end
    return best


def _root_first(asked: Probe, end: int) -> list[RecordId]:
    """Records of the first ``end`` tokens, in order of position."""
    placed = []
    for n, group in enumerate(asked.groups):
        width = asked.end // max(1, len(group))
        placed += [(i * width, n, record) for i, record in enumerate(group[: end // width])]
    return [record for *_, record in sorted(placed)]


def _left_out(n_tokens: int, end: int, whole: int, *, flushed: bool) -> dict[str, str]:
    """What the file does not have, in words."""
    if end == n_tokens:
        return {}
    if end == whole:
        return {"note": f"the last {n_tokens - end} tokens fill no block: they will be computed again"}
    why = "" if flushed else " (it is still on its way)"
    return {"note": f"what follows token {end} is in no tier{why}: {n_tokens - end} tokens will be computed again"}


def _most_bytes(served: Served) -> int:
    """The file of a whole context."""
    context, layout = served.context_tokens, served.layout
    records = sum(context // group.tokens_per_block + 1 for group in layout.groups)
    return records * (layout.block_bytes + LABEL_BYTES + 4 * layout.span_tokens) + (2 << 20)

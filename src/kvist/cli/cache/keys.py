"""``keygen`` and ``rekey``: the key that seals what tiers hold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvist.cli.cache.opening import check_cache, keyring_of
from kvist.cli.cache.place import place_of
from kvist.cli.cache.tables import counted
from kvist.errors import UsageError
from kvist.tier.disk.folder import MARKER


def keygen(params: Mapping[str, Any]) -> None:
    """A new key in a new file that only its owner can read."""
    from kvist.tier.master_key import write_master_key

    file = Path(params["file"]).expanduser()
    if (file.parent / MARKER).exists():
        raise UsageError(f"{file.parent} is a cache", remedy="a key beside what it opens seals nothing")
    write_master_key(file)
    print(f"a new key is in {file}: keep a copy, for without it what it seals is lost")


def rekey(params: Mapping[str, Any]) -> None:
    """Wrap the tenants' keys with another master key."""
    from kvist.tier.master_key import read_master_key

    old, new = (Path(params[name]).expanduser() for name in ("old", "new"))
    place = place_of({**params, "tier_key": str(old)})
    check_cache(place)
    beside = place.keyring is not None and place.keyring.parent == old.parent
    if place.folder is None and beside and not _same(old.parent, new.parent):
        raise UsageError(f"the tenants' keys lie beside {old}", remedy=f"put the new key into {old.parent}")
    master = read_master_key(new)
    keyring = keyring_of(place)
    keyring.rewrap(master)
    tenants = counted(len(keyring.tenants()), "tenant")
    print(f"{keyring.path} opens with {new} now ({tenants}); start its servers again with it")


def _same(a: Path, b: Path) -> bool:
    return a.resolve() == b.resolve()

"""Where blocks live besides the pool: from what the config says to open tiers."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, unquote

from kvist.config import TierConfig
from kvist.errors import BadValue
from kvist.tier.base import Tier
from kvist.tier.master_key import read_master_key
from kvist.tier.registry import open_tier
from kvist.units import GIB, format_bytes

log = logging.getLogger("kvist.tier")

FOLDER_BYTES = 10 * GIB
"""What a place that is only a folder may take."""

KEYRING_NAME = "tenants.keys"

KEY_IN_ENVIRONMENT = "env"
"""Instead of a key file: the key is in the variable that ``tier/master_key.py`` names."""


def place_url(text: str) -> str:
    """A folder by its path is a disk tier of 10 GiB; other texts are as they are."""
    if text.startswith(("/", "~", ".")):
        return f"disk:{quote(text)}?size={FOLDER_BYTES}"
    return text


def folder_of(config: TierConfig) -> Path | None:
    """The folder of the first disk tier: where else what survives a restart may lie."""
    for text in map(place_url, config.places):
        if text.startswith("disk:"):
            return Path(unquote(text.removeprefix("disk:").removeprefix("//").partition("?")[0])).expanduser()
    return None


def open_places(config: TierConfig, block_bytes: int = 0) -> list[Tier]:
    """The tiers, fastest first, sealed where there is a key; each has room for a block of ``block_bytes``.

    Raises ``BadValue`` or ``UsageError``, with none open.
    """
    tiers: list[Tier] = []
    try:
        for text in config.places:
            tier = open_tier(place_url(text))
            if any(tier.name == other.name for other in tiers):
                raise BadValue("tier", text, f"one {tier.name} tier", remedy="give each kind of place once")
            tiers.append(tier)
            room = tier.usage().capacity_bytes
            fixed = not getattr(tier, "remote", False)  # a pool of many machines begins with none and grows
            if fixed and room is not None and room < block_bytes:
                raise BadValue("tier", text, f"room for a block at least: {format_bytes(block_bytes)} and its label")
        return _sealed(tiers, config)
    except BaseException:
        close_places(tiers)
        raise


def _sealed(tiers: list[Tier], config: TierConfig) -> list[Tier]:
    """What leaves this process's memory is sealed; the ``ram`` tier does not."""
    folder = folder_of(config)
    if config.key is None:
        if folder is not None and (folder / KEYRING_NAME).exists():
            what = "the key that seals what lies there (plain records would lie beside sealed ones)"
            raise BadValue("tier_key", None, what, remedy=f"--tier-key FILE, or a folder other than {folder}")
        return tiers
    from kvist.tier.keyring import Keyring
    from kvist.tier.seal import Sealed

    key_file = None if config.key == KEY_IN_ENVIRONMENT else Path(config.key).expanduser()
    folder = folder or (key_file.parent if key_file else None)
    if folder is None:
        raise BadValue("tier_key", config.key, "a key file, or a disk tier", remedy="the tenants' own keys lie there")
    if not (folder / KEYRING_NAME).exists() and any(tier.usage().records for tier in tiers if tier.name != "ram"):
        log.warning("%s has no %s: records that were sealed there before cannot be opened", folder, KEYRING_NAME)
    keyring = Keyring(folder / KEYRING_NAME, read_master_key(key_file))
    return [tier if tier.name == "ram" else Sealed(tier, keyring) for tier in tiers]


def close_places(tiers: Sequence[Tier]) -> None:
    """Let go of all of them."""
    for tier in tiers:
        with suppress(Exception):  # nobody can do anything about it any more
            tier.close()

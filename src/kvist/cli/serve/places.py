"""Where a server keeps blocks besides the pool: real tiers, and tiers on paper."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvist.config import TierConfig
from kvist.errors import BadValue
from kvist.server.served import Places
from kvist.sim.tiers import PaperTier
from kvist.tier.base import Usage
from kvist.tier.registry import redacted, schemes
from kvist.units import parse_bytes

if TYPE_CHECKING:
    from kvist.runtime.build import Built
    from kvist.text.turn_rows import Seal

STOPPED: Final = "the server has stopped"

PAPER_BYTES_PER_S: Final = {"ram": 1e10, "disk": 1e9}
"""What tiers on paper deliver; all others what a network of 1 Gbit/s does."""
NETWORK_BYTES_PER_S: Final = 1.25e8


def real_places(built: Built, config: TierConfig) -> Places | None:
    """The tiers of a model that was built; None without any."""
    from kvist.runtime.places import folder_of, place_url

    carrier = built.carrier
    if carrier is None:
        return None

    def close(timeout_s: float) -> bool:
        written = carrier.close(timeout_s)
        built.executor.close(STOPPED)
        return written

    folder = folder_of(config)
    return Places(
        names=carrier.names,
        texts=tuple(redacted(place_url(text)) for text in config.places),
        usages=carrier.mover.usages,
        flush=carrier.mover.flush,
        close=close,
        tiers=carrier.tiers,
        origin=carrier.origin,
        folder=folder,
        sealed=config.key is not None,
        seal_turns=_seal(config, folder),
    )


def _seal(config: TierConfig, folder: Path | None) -> Seal | None:
    """What hides the answers that are kept beside the disk tier, with the same keys. None: they are not hidden."""
    if config.key is None or folder is None:
        return None
    from kvist.runtime.places import KEY_IN_ENVIRONMENT, KEYRING_NAME
    from kvist.tier.keyring import Keyring
    from kvist.tier.master_key import read_master_key
    from kvist.tier.turn_seal import turn_seal

    key_file = None if config.key == KEY_IN_ENVIRONMENT else Path(config.key).expanduser()
    return turn_seal(Keyring(folder / KEYRING_NAME, read_master_key(key_file)))


def check_places(config: TierConfig) -> None:
    """What is wrong with what was asked for, before a model is loaded; nothing is opened. Raises ``KvistError``."""
    from kvist.runtime.places import KEY_IN_ENVIRONMENT
    from kvist.tier.master_key import read_master_key

    paper_tiers(config, block_bytes=1)
    if config.key is not None:
        read_master_key(None if config.key == KEY_IN_ENVIRONMENT else Path(config.key).expanduser())


def paper_tiers(config: TierConfig, block_bytes: int) -> list[PaperTier]:
    """One place on paper for each that is named, with its size; nothing is opened or written. Raises ``BadValue``."""
    from kvist.runtime.places import place_url

    tiers: list[PaperTier] = []
    for text in map(place_url, config.places):
        scheme, colon, rest = text.partition(":")
        if not colon or scheme not in schemes():
            raise BadValue("tier", redacted(text), f"a place that begins with one of {', '.join(schemes())}")
        rest, _, query = rest.partition("?")
        sizes = [part.removeprefix("size=") for part in query.split("&") if part.startswith("size=")]
        size = rest if scheme == "ram" else (sizes or [""])[0]
        most = parse_bytes(size, name="tier") // block_bytes if size else None
        speed = PAPER_BYTES_PER_S.get(scheme, NETWORK_BYTES_PER_S)
        if any(tier.name == scheme for tier in tiers):
            raise BadValue("tier", redacted(text), f"one {scheme} tier", remedy="give each kind of place once")
        tiers.append(PaperTier(scheme, bytes_per_s=speed, most_records=most))
    return tiers


def paper_places(tiers: Sequence[PaperTier], config: TierConfig, block_bytes: int) -> Places | None:
    """What a server on paper says of them. They hold records while it runs."""
    if not tiers:
        return None

    def usages() -> list[Usage]:
        sizes = [None if t.most_records is None else t.most_records * block_bytes for t in tiers]
        held = [len(tier.records) for tier in tiers]
        return [Usage(n, n * block_bytes, size) for n, size in zip(held, sizes, strict=True)]

    return Places(
        names=tuple(tier.name for tier in tiers),
        texts=tuple(f"{redacted(text)} (on paper)" for text in config.places),
        usages=usages,
        flush=lambda timeout_s: True,
        close=lambda timeout_s: True,
    )

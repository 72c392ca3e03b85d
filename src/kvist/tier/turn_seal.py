"""The tenants' keys for the file of kept answers (``text/turn_file.py``): who is wiped leaves noise there too."""

from __future__ import annotations

from kvist.errors import StateError
from kvist.text.turn_rows import Seal
from kvist.tier.envelope import Damaged
from kvist.tier.keyring import Keyring
from kvist.tier.tenant_cipher import Ciphers


def turn_seal(keyring: Keyring) -> Seal:
    """Seals each owner's rows with his key. Both ways raise ``StateError`` while the keyring cannot be used."""
    ciphers = Ciphers(keyring, "turns")

    def close(owner: str, plain: bytes) -> bytes:
        cipher = ciphers.of(owner, new=True)
        if cipher is None:
            raise StateError(ciphers.trouble or f"no key could be made for {owner!r}")
        return cipher.seal_turns(owner, plain)

    def opened(owner: str, sealed: bytes) -> bytes | None:
        cipher = ciphers.of(owner)
        if cipher is None:
            if ciphers.trouble:
                raise StateError(ciphers.trouble)
            return None
        try:
            return cipher.open_turns(owner, sealed)
        except Damaged:
            return None

    return Seal(close, opened)

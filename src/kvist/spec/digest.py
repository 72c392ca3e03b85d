"""What makes two sets of weights the same: a digest over their bytes, part of every block key's fingerprint."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from kvist.errors import CorruptFile

DIGEST_BYTES: Final = 32
_PERSON: Final = b"kvist.weights.1"


def _content(path: Path) -> bytes:
    """BLAKE2b over a whole file: header (shapes, types, metadata) and tensor bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=DIGEST_BYTES)).digest()


def weights_digest(path: str | Path) -> bytes:
    """Digest of a GGUF or safetensors file, or of all safetensors files in a folder (by name). About 1 s per GB.

    A folder's digest does not depend on the folder's name or place, only on file names and contents. Raises
    ``CorruptFile`` when there is nothing to read.
    """
    path = Path(path)
    try:
        files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
        if not files:
            raise CorruptFile(f"{path} holds no .safetensors file", remedy="point at a model folder or a GGUF file")
        total = hashlib.blake2b(digest_size=DIGEST_BYTES, person=_PERSON)
        for file in files:
            name = file.name.encode() if path.is_dir() else b""
            total.update(len(name).to_bytes(8, "little") + name + _content(file))
        return total.digest()
    except OSError as error:
        raise CorruptFile(f"{path} cannot be read: {error.strerror}", remedy="check the path") from error

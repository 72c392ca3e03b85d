"""Codes of 2, 3, 4 or 8 bits packed into bytes along the last axis.

Code ``i`` of a row takes bits ``[i * bits, (i + 1) * bits)`` of the row's bytes, least significant bit first; a row's
last byte is filled up with zero bits. A row's bytes depend on that row alone.
"""

from __future__ import annotations

from typing import Final

import torch

from kvist.errors import BadValue

WIDTHS: Final = (2, 3, 4, 8)


def packed_bytes(count: int, bits: int) -> int:
    """Bytes of ``count`` codes. Raises ``BadValue`` for another width."""
    if bits not in WIDTHS:
        raise BadValue("bits", bits, f"one of {', '.join(map(str, WIDTHS))}")
    return -(-count * bits // 8)


def pack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """uint8 [..., bytes] from codes uint8 [..., count]. Raises ``BadValue`` for a code that does not fit."""
    size = packed_bytes(codes.shape[-1], bits)
    if codes.dtype != torch.uint8:
        raise BadValue("codes", codes.dtype, "uint8")
    if codes.numel() and int(codes.max()) >= 1 << bits:
        raise BadValue("codes", int(codes.max()), f"below {1 << bits}, what {bits} bits hold")
    stream = _bits_of(codes, bits).flatten(-2)
    stream = torch.nn.functional.pad(stream, (0, 8 * size - stream.shape[-1]))
    return _number_of(stream.reshape(*stream.shape[:-1], size, 8))


def unpack(packed: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """Codes uint8 [..., count] from :func:`pack`'s bytes. Raises ``BadValue`` where these are not as many."""
    size = packed_bytes(count, bits)
    if packed.shape[-1] != size:
        raise BadValue("packed", packed.shape[-1], f"{size} bytes for {count} codes of {bits} bits")
    stream = _bits_of(packed, 8).flatten(-2)[..., : count * bits]
    return _number_of(stream.reshape(*stream.shape[:-1], count, bits))


def _bits_of(x: torch.Tensor, bits: int) -> torch.Tensor:
    """0 or 1, uint8 [..., bits], least significant first."""
    return (x[..., None] >> torch.arange(bits, dtype=torch.uint8)) & 1


def _number_of(x: torch.Tensor) -> torch.Tensor:
    return (x << torch.arange(x.shape[-1], dtype=torch.uint8)).sum(dim=-1, dtype=torch.uint8)

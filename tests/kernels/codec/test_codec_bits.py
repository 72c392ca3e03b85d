"""Codes in bytes and out again: every width, every code, every place (F071)."""

import pytest
import torch

from kvist.errors import BadValue
from kvist.kernels.codec.bits import WIDTHS, pack, packed_bytes, unpack


def packed_by_hand(codes, bits):
    """One long number, code by code, cut into bytes."""
    number = sum(code << (i * bits) for i, code in enumerate(codes))
    return list(number.to_bytes(-(-len(codes) * bits // 8), "little"))


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 8, 9, 16, 31])
@pytest.mark.parametrize("bits", WIDTHS)
def test_f071_every_code_at_every_position(bits, count):
    """Among neighbours of zeros and of ones: nothing leaks."""
    for around in (0, (1 << bits) - 1):
        codes = torch.full((count, 1 << bits, count), around, dtype=torch.uint8)
        for position in range(count):
            codes[position, :, position] = torch.arange(1 << bits)
        packed = pack(codes, bits)
        assert packed.dtype == torch.uint8 and packed.shape == (count, 1 << bits, packed_bytes(count, bits))
        assert torch.equal(unpack(packed, bits, count), codes)


@pytest.mark.parametrize("count", [1, 3, 8, 13])
@pytest.mark.parametrize("bits", WIDTHS)
def test_f071_bytes_are_little_endian_by_bit(bits, count):
    codes = torch.randint(0, 1 << bits, (50, count), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    assert pack(codes, bits).tolist() == [packed_by_hand(row, bits) for row in codes.tolist()]


def test_a_tail_is_filled_with_zeros():
    assert pack(torch.tensor([7, 7, 7], dtype=torch.uint8), 3).tolist() == [0xFF, 0x01]


@pytest.mark.parametrize("bits", [0, 1, 5, 6, 16, -4])
def test_other_widths_are_refused(bits):
    with pytest.raises(BadValue, match="one of 2, 3, 4, 8"):
        pack(torch.zeros(8, dtype=torch.uint8), bits)
    with pytest.raises(BadValue, match="one of 2, 3, 4, 8"):
        unpack(torch.zeros(8, dtype=torch.uint8), bits, 8)


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_codes_that_do_not_fit_are_refused(bits):
    with pytest.raises(BadValue, match=f"codes={1 << bits} "):
        pack(torch.tensor([0, 1 << bits], dtype=torch.uint8), bits)


def test_wrong_types_and_sizes_are_refused():
    with pytest.raises(BadValue, match="uint8"):
        pack(torch.zeros(8, dtype=torch.int32), 4)
    with pytest.raises(BadValue, match="3 bytes for 8 codes of 3 bits"):
        unpack(torch.zeros(4, dtype=torch.uint8), 3, 8)
    assert pack(torch.zeros(0, 8, dtype=torch.uint8), 4).shape == (0, 4)

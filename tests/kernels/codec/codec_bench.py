"""What the tests of codecs share: every codec of either side, and rows with what it needs to know about them."""

import torch

from kvist.kernels.codec import registry
from kvist.kernels.codec.base import Where

EVERY = [(name, side) for side in ("k", "v") for name in registry.names(side)]
HEADS, TOKENS, DIM = 2, 96, 64


def frequencies(dim=DIM):
    return 10000.0 ** -torch.arange(0, 1, 2 / dim)


def where_for(codec, *, start=0, heads=HEADS, dim=DIM, spread=0.25):
    """Positions from ``start`` on, and a mean of that spread for who needs one."""
    chance = torch.Generator().manual_seed(5)
    mean = torch.randn(heads, dim, generator=chance) * spread if codec.needs else None
    return Where(codec.sides[0], start, mean, frequencies(dim))


def normal_rows(heads=HEADS, tokens=TOKENS, dim=DIM, seed=0):
    return torch.randn(heads, tokens, dim, generator=torch.Generator().manual_seed(seed))


def through(codec, x, where):
    return codec.decode(codec.encode(x, where), where)


def assert_same_bits(a, b):
    assert a.dtype == b.dtype and a.shape == b.shape
    assert torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def assert_same_encoding(a, b):
    assert_same_bits(a.codes, b.codes)
    assert len(a.scales) == len(b.scales)
    for one, other in zip(a.scales, b.scales, strict=True):
        assert_same_bits(one, other)

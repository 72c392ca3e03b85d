"""Codecs whose error is smooth (rounding cannot flip a code) and plain loops that say what attention should read."""

from dataclasses import dataclass

import torch
from tiny_engine import parts

from kvist.kernels.codec.base import Encoded
from kvist.lab.quality.method import Method
from kvist.lab.rig import Model


@dataclass(frozen=True)
class Bent:
    """Rows pulled towards the mean of their unit (of one row: towards its largest number) by a part ``bend``."""

    bend: float = 0.1
    unit_tokens: int = 1
    always_packed: bool = False
    needs: str = ""
    sides: tuple = ("k", "v")
    bits: int = 4

    @property
    def name(self):
        return f"bent{self.bend:g}"

    def refuses(self, dim):
        return "" if dim > 1 else "one number is too few"

    def row_bits(self, dim):
        return 4 * dim + 16

    def encode(self, x, where):
        assert x.shape[1] % self.unit_tokens == 0 and where.start % self.unit_tokens == 0
        units = x.unflatten(1, (-1, self.unit_tokens))
        middle = units.mean(dim=2, keepdim=True) if self.unit_tokens > 1 else units.amax(dim=-1, keepdim=True)
        return Encoded((units + self.bend * (middle - units)).flatten(1, 2), ())

    def decode(self, encoded, where):
        return encoded.codes


def method(k, v=None):
    return Method(k.name, k, v or k)


def model(family):
    spec, weights = parts(family)
    return Model(family, spec, weights, "f32")


def tokens(count, seed=3):
    return torch.randint(3, 131, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def reads_packed(rule, codec, m, n):
    """The rule said once more, for one query and one key."""
    if (n // codec.unit_tokens + 1) * codec.unit_tokens - 1 > m:
        return False  # its unit is not whole yet
    if rule.rule == "cell" and codec.always_packed:
        return True
    if n < rule.sinks:
        return False
    if rule.rule == "recent":
        return not n > m - rule.span
    if rule.rule == "cell":
        return not n // rule.span == m // rule.span
    return True

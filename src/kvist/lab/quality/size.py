"""What a method's cache takes, by arithmetic: scales counted, and the rows that stay exact."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvist.kernels.codec.base import Codec
from kvist.lab.quality.method import Method, owners
from kvist.lab.quality.protect import Protection
from kvist.spec.format import KVFormat
from kvist.spec.model import ModelSpec

NOMINAL_TOKENS: Final = 8192
EXACT_BITS: Final = 16
"""Of a number in a row that is kept exact: float16, as a cache would hold it."""


@dataclass(frozen=True, slots=True)
class Size:
    """``bits_k``, ``bits_v``: of one number, its share of the scales included, the mean over layers.

    ``bytes_per_token``: of a packed token, all layers. ``bytes_at_8k``: of a sequence of 8,192 tokens, windows capped,
    with at most ``exact_tokens_at_8k`` of them exact in a layer: the tail instead of packed, sinks beside it.
    """

    bits_k: float
    bits_v: float
    bytes_per_token: float
    exact_tokens_at_8k: int
    bytes_at_8k: float


def size_of(method: Method, protection: Protection, spec: ModelSpec) -> Size:
    """The size of a method's cache under a rule."""
    layers = owners(spec)
    k_bits = sum(layer.kv_heads * method.k.row_bits(layer.key_dim) for layer in layers)
    v_bits = sum(layer.kv_heads * method.v.row_bits(layer.value_dim) for layer in layers)
    at_8k = 0.0
    for layer in layers:
        held = layer.retention.held_tokens(NOMINAL_TOKENS)
        for codec, dim in ((method.k, layer.key_dim), (method.v, layer.value_dim)):
            at_8k += layer.kv_heads * _bits(codec, dim, protection, held) / 8
    return Size(
        bits_k=k_bits / sum(layer.kv_heads * layer.key_dim for layer in layers),
        bits_v=v_bits / sum(layer.kv_heads * layer.value_dim for layer in layers),
        bytes_per_token=(k_bits + v_bits) / 8,
        exact_tokens_at_8k=max(protection.exact_tokens(codec, NOMINAL_TOKENS) for codec in method.codecs),
        bytes_at_8k=at_8k,
    )


def _bits(codec: Codec, dim: int, protection: Protection, held_tokens: int) -> float:
    exact = protection.exact_tokens(codec, held_tokens)
    sinks = 0 if protection.packs_all(codec) else min(protection.sinks, exact)
    return (held_tokens - (exact - sinks)) * codec.row_bits(dim) + exact * dim * EXACT_BITS


def exact_size(spec: ModelSpec) -> Size:
    """The size of the reference's cache: float32."""
    fmt = KVFormat.parse("f32")
    at_8k = sum(layer.kv_bytes(NOMINAL_TOKENS, fmt) for layer in spec.layers)
    return Size(32.0, 32.0, float(spec.kv_bytes_per_token(fmt)), NOMINAL_TOKENS, float(at_8k))


def over_shannon(distortion: float, bits: float) -> float:
    """Relative squared error over ``4 ** -bits``, the least that any code of Gaussian numbers of equal variance and
    mean zero reaches. Below 1 where the numbers are not such: a constant part costs nothing to who knows it.
    """
    return distortion * float(4.0**bits)

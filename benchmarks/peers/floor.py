"""The least time that any program needs on this machine for a piece of work, given what a row reads and multiplies.

For each forward pass: the larger of bytes / read bandwidth and FLOPs / peak rate, as if the two overlapped perfectly
and nothing else existed. Bytes are the weights once, each cached row once (a prefix that sequences share: once for all
of them). FLOPs are two for a multiply-add. Bandwidth and the 32-bit rate are measured in the same run.
"""

from dataclasses import dataclass

PACKED_SPEEDUP = 4.0
"""8-bit multiply-adds an instruction does for one of 32 bits (vpdpbusd against fma; pmaddubsw likewise at best)."""


@dataclass(frozen=True)
class Shape:
    """What one model costs in one choice of weights and KV format."""

    weights_bytes: float
    kv_bytes_per_token: float
    linear_flops_per_token: float
    head_flops_per_row: float
    attention_flops_per_pair: float


@dataclass(frozen=True)
class Machine:
    """Bytes and FLOPs a second. ``speedup``: how much faster than f32 the weights' own arithmetic could be."""

    read_bytes_per_s: float
    f32_flops_per_s: float
    speedup: float = 1.0


def decode_s(shape, machine, context, tokens):
    """Seconds of ``tokens`` steps of one sequence, behind ``context`` tokens."""
    return sum(_step_s(shape, machine, rows=1, held=context + i, pairs=context + i) for i in range(1, tokens + 1))


def prefill_s(shape, machine, tokens):
    """Seconds of a whole prompt in one pass."""
    pairs = tokens * (tokens + 1) / 2
    return _pass_s(shape, machine, tokens=tokens, rows=1, held=tokens, pairs=pairs)


def batch_s(shape, machine, shared, own, n, new, warm):
    """Seconds of ``n`` prompts that arrive together, the shared part computed once or (``warm``) before."""
    first = 0 if warm else shared
    pairs = first * (first + 1) / 2 + n * (own * shared + own * (own + 1) / 2)
    prompts = _pass_s(shape, machine, tokens=first + n * own, rows=n, held=shared + n * own, pairs=pairs)
    return prompts + sum(
        _step_s(shape, machine, rows=n, held=shared + n * (own + i), pairs=n * (shared + own + i))
        for i in range(1, new)
    )


def _step_s(shape, machine, *, rows, held, pairs):
    return _pass_s(shape, machine, tokens=rows, rows=rows, held=held, pairs=pairs)


def _pass_s(shape, machine, *, tokens, rows, held, pairs):
    """One pass: ``tokens`` through the layers, ``rows`` through the head, ``held`` cached rows read, ``pairs`` of
    (query, key)."""
    bytes_moved = shape.weights_bytes + held * shape.kv_bytes_per_token
    linear = tokens * shape.linear_flops_per_token + rows * shape.head_flops_per_row
    flops = linear + pairs * shape.attention_flops_per_pair
    return max(bytes_moved / machine.read_bytes_per_s, flops / (machine.f32_flops_per_s * machine.speedup))

"""What the machine can do at best, for a rig's figures to be held against: reads, multiply-adds, plain products."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Final

import torch

from kvist.kernels.matrix import Matrix
from kvist.kernels.native_module import absent_reason, load
from kvist.kernels.ops.registry import best_available

READ_BYTES: Final = 256 << 20
"""More than any cache holds."""
GEMM_ROWS: Final = (1, 4, 16, 64, 512)
GEMM_SIDES: Final = (1024, 3072)
GEMM_COPIES: Final = 12
"""Weights of about a small model: too many to stay in a cache between passes."""


def isa() -> str:
    """The instruction set of the native kernels; ``none`` without them."""
    return str(load().isa()) if absent_reason() is None else "none"


def read_bandwidth(seconds: float = 0.12) -> float:
    """Bytes a second of a sequential read by as many threads as torch uses, right now."""
    threads = torch.get_num_threads()
    if absent_reason() is None:
        return float(load().read_bandwidth(READ_BYTES, threads, seconds))
    numbers = torch.ones(READ_BYTES // 4)
    return READ_BYTES / _best_s(numbers.sum, seconds)


def multiply_rate(seconds: float = 0.3) -> float:
    """FLOPs a second of multiply-adds that never leave the registers (a large product without native kernels)."""
    if absent_reason() is None:
        return 2 * float(load().multiply_rate(torch.get_num_threads(), seconds))
    a = torch.ones(1024, 1024)
    return 2 * 1024**3 / _best_s(lambda: a @ a, seconds)


def gemm_rates(rows: tuple[int, ...] = GEMM_ROWS, copies: int = GEMM_COPIES) -> tuple[tuple[int, float], ...]:
    """(rows, FLOPs per second) of f32 products as the decoder's linear layers run them, over weights from memory."""
    linear = best_available().linear_fast
    width, out = GEMM_SIDES
    weights = [Matrix.of(torch.full((out, width), 0.01)) for _ in range(copies)]
    rates = []
    for n in rows:
        x, y = torch.ones(n, width), torch.empty(n, out)
        took = statistics.median(_seconds(lambda: [linear(x, w, out=y) for w in weights]) for _ in range(3))  # noqa: B023
        rates.append((n, 2.0 * n * width * out * copies / took))
    return tuple(rates)


def _best_s(work: Callable[[], object], seconds: float) -> float:
    work()
    stop, best = time.perf_counter() + seconds, float("inf")
    while time.perf_counter() < stop or best == float("inf"):
        best = min(best, _seconds(work))
    return best


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start

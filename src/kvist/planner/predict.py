"""What one machine will take for a burst of equal prompts and for the tokens behind them."""

from __future__ import annotations

from typing import Final, NamedTuple

from kvist.cost.measured import MeasuredMachine
from kvist.cost.work import Chunk, Chunks, ModelWork
from kvist.planner.schedule import burst
from kvist.spec.format import KVFormat
from kvist.spec.model import ModelSpec

TOKEN_BUDGET: Final = 512
"""Tokens of a step that the scheduler allows unless told otherwise."""


class Prediction(NamedTuple):
    """Seconds to the first token, mean over the batch, and seconds per token of each sequence after it."""

    ttft_s: float
    tpot_s: float


def predict(
    machine: MeasuredMachine,
    spec: ModelSpec,
    fmt: KVFormat,
    context: int,
    batch: int,
    *,
    budget_tokens: int = TOKEN_BUDGET,
) -> Prediction:
    """``batch`` prompts of ``context`` tokens arrive together, none of it cached; then all decode side by side.

    Raises ``UsageError`` when the machine's record holds no KV format.
    """
    cost = machine.using(fmt)
    work = ModelWork(spec, fmt, machine.widths)

    def seconds(chunks: Chunks) -> float:
        return cost.parts(work.step(chunks)).total_s

    first = burst(seconds, batch, context, 0, budget_tokens)
    return Prediction(first.mean_s, seconds({Chunk(1, context): batch}))

"""Measures methods on texts: an exact pass for each text and length, then one pass for each method and rule."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from kvist.errors import CapacityError, StateError
from kvist.lab.host import Load
from kvist.lab.quality.ask import QualityAsk, Text
from kvist.lab.quality.forward import Pace, Pass
from kvist.lab.quality.method import Method
from kvist.lab.quality.metrics import Predictions, compare, joined, quality
from kvist.lab.quality.protect import NOTHING, Protection
from kvist.lab.quality.rows import Cost, QualityRow
from kvist.lab.quality.size import exact_size, size_of
from kvist.lab.rig import Model
from kvist.units import format_bytes

OTHER_PACE: Final = Pace(chunk_tokens=208, query_rows=40)
"""Of the second exact pass, which shows what rounding alone does."""

OnStep = Callable[[int, int, str], None]
"""(done, total, what is being measured); in tokens."""


class Exact:
    """Logits of the exact pass, float32 [tokens, vocab], whole: in a file that is gone when this is.

    Raises ``CapacityError`` where temporary files have no room for it.
    """

    def __init__(self, tokens: Sequence[int], vocab: int) -> None:
        needed, free = 4 * len(tokens) * vocab, shutil.disk_usage(tempfile.gettempdir()).free
        if needed > free:
            raise CapacityError(
                f"the exact logits of {len(tokens)} tokens take {format_bytes(needed)}, {tempfile.gettempdir()} has "
                f"{format_bytes(free)} left",
                remedy="measure fewer tokens (--length), or name another folder with TMPDIR",
            )
        self._file = tempfile.TemporaryFile(prefix="kvist-lab-")
        self._logits = np.memmap(self._file, dtype=np.float32, mode="w+", shape=(len(tokens), vocab))
        self._following = torch.tensor(tokens[1:], dtype=torch.int64)

    def put(self, start: int, logits: torch.Tensor) -> None:
        """Logits of positions from ``start`` on."""
        self._logits[start : start + len(logits)] = logits.numpy()

    def beside(self, start: int, logits: torch.Tensor) -> Predictions:
        """Another pass's logits compared with these; a text's last position predicts nothing that is known."""
        end = min(start + len(logits), len(self._following))
        exact = torch.from_numpy(self._logits[start:end])
        return compare(exact, logits[: end - start], self._following[start:end])


@dataclass(frozen=True, slots=True)
class _Task:
    """One pass to make; without a method it is the exact one again."""

    method: Method | None
    protection: Protection

    @property
    def name(self) -> str:
        return "exact, again" if self.method is None else f"{self.method.name}, {self.protection.name}"


class Runner:
    """All passes of an ask, in turn. Raises what ``Pass`` does, and ``StateError`` for numbers that are none."""

    def __init__(self, model: Model, ask: QualityAsk, on_step: OnStep | None = None) -> None:
        self._model, self._ask, self._on_step = model, ask, on_step
        tasks = [_Task(method, rule) for method in ask.methods for rule in dict.fromkeys(ask.protections)]
        self._tasks = [_Task(None, NOTHING), *tasks]
        self._lengths = sorted(set(ask.lengths))
        self._total = len(ask.texts) * sum(self._lengths) * (len(self._tasks) + 1)
        self._done = 0

    def rows(self) -> Iterator[QualityRow]:
        """One row for each text, length, method and rule, as they are measured; of each text the noise row first."""
        for text in self._ask.texts:
            for length in self._lengths:
                exact = self._exact(text, length)
                for task in self._tasks:
                    yield self._row(task, text, length, exact)

    def _exact(self, text: Text, length: int) -> Exact:
        out = Exact(text.tokens[:length], self._model.spec.vocab)
        for start, logits in Pass(self._model, text.tokens[:length], pace=self._ask.pace).run():
            self._tell(len(logits), f"{text.name}, {length} tokens, exact")
            out.put(start, logits)
        return out

    def _row(self, task: _Task, text: Text, length: int, exact: Exact) -> QualityRow:
        load, begin = Load.start(), time.perf_counter()
        pace = OTHER_PACE if task.method is None else self._ask.pace
        run = Pass(self._model, text.tokens[:length], task.method, task.protection, pace)
        parts = []
        for start, logits in run.run():
            self._tell(len(logits), f"{text.name}, {length} tokens, {task.name}")
            if not bool(logits.isfinite().all()):
                raise StateError(
                    f"{task.name} gives numbers that are not finite on {text.name}, in tokens {start} to "
                    f"{start + len(logits)}",
                    remedy="a row of K or V is beyond what the codec can write, or the codec is wrong",
                )
            parts.append(exact.beside(start, logits))
        spec, method = self._model.spec, task.method
        return QualityRow(
            spec="f32" if method is None else method.name,
            k="f32" if method is None else method.k.name,
            v="f32" if method is None else method.v.name,
            protection=task.protection.name,
            text=text.name,
            start_tokens=text.start_tokens,
            length_tokens=length,
            share_tokens=1 if method is None else task.protection.share_tokens(method.codecs),
            size=exact_size(spec) if method is None else size_of(method, task.protection, spec),
            quality=quality(joined(parts)),
            cost=_cost(run, length, time.perf_counter() - begin, load.share()),
            noise=method is None,
        )

    def _tell(self, tokens: int, what: str) -> None:
        self._done += tokens
        if self._on_step is not None:
            self._on_step(self._done, self._total, what)


def _cost(run: Pass, length: int, pass_s: float, others: float) -> Cost:
    kept = list(run.layers.values())
    encode_s = sum(layer.k.distortion.encode_s + layer.v.distortion.encode_s for layer in kept)
    return Cost(
        encode_us_per_token=encode_s / length * 1e6,
        k_distortion=sum(layer.k.distortion.relative for layer in kept) / len(kept),
        v_distortion=sum(layer.v.distortion.relative for layer in kept) / len(kept),
        packed_reads=run.reads.packed / run.reads.all,
        pass_s=pass_s,
        others=others,
    )

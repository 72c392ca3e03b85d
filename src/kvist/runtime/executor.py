"""Carries out step plans with a torch decoder over the store."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from kvist.engine.ports import Clock
from kvist.errors import KvistError, StateError, UsageError
from kvist.ids import SeqId
from kvist.model.decoder import Decoder, Steps
from kvist.runtime.grammar import Grammars
from kvist.runtime.inputs import Inputs, build_inputs
from kvist.runtime.mover.mover import Mover
from kvist.runtime.sampler import SamplerState, alone, logprob_of, not_numbers, sample_rows
from kvist.runtime.store import Store
from kvist.runtime.tables import Tables
from kvist.step import Chunk, Failed, PromptLogprobs, Sampled, StepPlan, StepResult
from kvist.transfer import Drop, Find, Load, Save

Errors = dict[SeqId, KvistError]
"""Why a sequence of this step fails, in the order found."""


@dataclass(slots=True)
class Spent:
    """Seconds by part, since the start. Owner: the executor."""

    apply_s: float = 0.0
    inputs_s: float = 0.0
    forward_s: float = 0.0
    sample_s: float = 0.0


class TorchExecutor:
    """Owns the store, its copy of the block tables and each sequence's sampler state.

    Without ``grammars`` a sequence that has a grammar fails, alone. Without ``mover`` a plan that asks for tiers is
    refused.
    """

    def __init__(
        self,
        decoder: Decoder,
        store: Store,
        clock: Clock,
        grammars: Grammars | None = None,
        mover: Mover | None = None,
    ) -> None:
        self._decoder: Decoder | None = decoder
        self._steps, self._layers_reason = decoder.steps, decoder.layers_reason
        self._clock = clock
        self._grammars = grammars
        self._mover = mover
        self._closed = ""
        self.store = store
        self.tables = Tables(len(store.layout.groups))
        self.spent = Spent()
        self._samplers: dict[SeqId, SamplerState] = {}

    def execute(self, plan: StepPlan) -> StepResult:
        """One step, in the order that ``step.py`` gives. Raises ``StateError`` once closed, with nothing applied."""
        if self._decoder is None:
            raise StateError(self._closed, remedy="use the engine that took its place")
        if self._mover is None and (plan.saves or plan.drops or plan.finds or plan.loads):
            raise StateError("a plan asks for tiers and there are none", remedy="build the executor with a mover")
        start = self._clock.now()
        self._apply(plan)
        if any(chunk.drafts for chunk in plan.chunks):
            raise StateError("this executor does not verify drafts yet", remedy="plan without drafts")
        applied = self._clock.now()
        self.spent.apply_s += applied - start
        if not plan.chunks:
            if self._mover is not None and plan.wait_s > 0:
                self._mover.wait(plan.wait_s)
            return self._result(plan, start)
        inputs = build_inputs(self.store.layout, plan.chunks, self.tables)
        ready = self._clock.now()
        with torch.inference_mode():
            logits = self._decoder.forward(inputs.batch).numpy()
        computed = self._clock.now()
        errors: Errors = {}
        sampled = self._sample(plan, inputs, logits, errors)
        scored = self._score_prompts(plan, inputs, logits, errors)
        done = self._clock.now()
        self.spent.inputs_s += ready - applied
        self.spent.forward_s += computed - ready
        self.spent.sample_s += done - computed
        if errors:
            sampled = tuple(s for s in sampled if s.seq not in errors)
            scored = tuple(p for p in scored if p.seq not in errors)
        failed = tuple(Failed(seq, str(e), isinstance(e, UsageError)) for seq, e in errors.items())
        return self._result(plan, start, sampled, scored, failed)

    def _result(
        self,
        plan: StepPlan,
        start: float,
        sampled: tuple[Sampled, ...] = (),
        scored: tuple[PromptLogprobs, ...] = (),
        failed: tuple[Failed, ...] = (),
    ) -> StepResult:
        """With what the mover can answer by now: taken last, so that a step that raises loses no answer."""
        found, loaded, kept, dropped = ((), (), (), ()) if self._mover is None else self._mover.answers()
        seconds = self._clock.now() - start
        return StepResult(
            plan.step, sampled, scored, failed, found, loaded, kept, dropped, seconds=seconds, epoch=plan.epoch
        )

    def close(self, why: str) -> None:
        """Let go of the weights and end the mover. ``execute`` refuses from here on, and says ``why``."""
        self._decoder = None
        if self._mover is not None:
            self._mover.close()
        self._closed = why
        self._samplers.clear()

    @property
    def live_sequences(self) -> int:
        """Sequences whose state is held: 0 when the engine is idle."""
        return max(len(self._samplers), len(self.tables))

    @property
    def steps(self) -> Steps:
        """Steps so far by how they ran: in one native call, or layer by layer."""
        return self._steps

    @property
    def counters(self) -> Mapping[str, int]:
        """``steps`` by name, and the mover's as ``tier_*``, for the engine's numbers."""
        steps = {"native_steps": self._steps.native, "layered_steps": self._steps.by_layer}
        moved = {} if self._mover is None else self._mover.counters
        return steps | {f"tier_{name}": value for name, value in moved.items()}

    @property
    def layers_reason(self) -> str:
        """Why no step runs as one native call; empty when they do."""
        return self._layers_reason

    def _apply(self, plan: StepPlan) -> None:
        for seq in plan.forget:
            self._samplers.pop(seq, None)
            self.tables.forget(seq)
        for change in plan.tables:
            self.tables.apply(change)
        if self._mover is not None:
            self._carry(plan, self._mover)
        for new in plan.new:
            self._samplers[new.seq] = SamplerState.start(new, self._grammars)
        loading = {block for load in plan.loads for block in load.blocks}
        self.store.void(tuple(b for b in plan.fresh if b not in loading) if loading else plan.fresh)
        self.store.copy(plan.copies)

    def _carry(self, plan: StepPlan, mover: Mover) -> None:
        """Begin what goes to and from tiers, before anything of the plan can fail: so that all of it is answered."""
        mover.cancel(plan.cancels)
        for touch in plan.touches:
            mover.touch(touch)
        asks: list[Save | Drop | Find | Load] = [*plan.drops, *plan.saves, *plan.finds, *plan.loads]
        for i, ask in enumerate(asks):
            try:
                mover.begin(ask)
            except BaseException:
                mover.refuse(asks[i:])
                raise

    def _sample(self, plan: StepPlan, inputs: Inputs, logits: np.ndarray, errors: Errors) -> tuple[Sampled, ...]:
        """What could be drawn, in the plan's order; ``errors`` gets the sequences of the other rows."""
        if not plan.samples:
            return ()
        rows = [inputs.logit_row(s.chunk, s.row) for s in plan.samples]
        states = [self._samplers[s.seq] for s in plan.samples]
        picked = logits if rows == list(range(len(logits))) else logits[rows]
        drawn = sample_rows(picked, states, [s.index for s in plan.samples])
        out = []
        for sample, state, got in zip(plan.samples, states, drawn, strict=True):
            if isinstance(got, KvistError):
                errors.setdefault(sample.seq, got)
                continue
            token, logprob = got
            try:
                state.record(token)
            except Exception as error:
                errors.setdefault(sample.seq, alone(error))
                continue
            out.append(Sampled(sample.seq, sample.index, token, logprob))
        return tuple(out)

    def _score_prompts(
        self, plan: StepPlan, inputs: Inputs, logits: np.ndarray, errors: Errors
    ) -> tuple[PromptLogprobs, ...]:
        out = []
        for i, chunk in enumerate(plan.chunks):
            if chunk.prompt_logprobs is None:
                continue
            try:
                out.append(self._score_prompt(i, chunk, chunk.prompt_logprobs, inputs, logits))
            except Exception as error:
                errors.setdefault(chunk.seq, alone(error))
        return tuple(out)

    def _score_prompt(
        self, index: int, chunk: Chunk, alternatives: int, inputs: Inputs, logits: np.ndarray
    ) -> PromptLogprobs:
        """The row at position p says how likely prompt token p + 1 was. Raises ``StateError`` for a NaN."""
        prompt = self._samplers[chunk.seq].prompt
        positions = range(chunk.start, min(chunk.end, len(prompt) - 1))
        items = tuple(
            logprob_of(logits[inputs.logit_row(index, p - chunk.start)], prompt[p + 1], alternatives) for p in positions
        )
        if any(math.isnan(item.logprob) for item in items):
            raise not_numbers()
        return PromptLogprobs(chunk.seq, chunk.start + 1, items)

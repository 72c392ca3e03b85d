"""Carries out step plans with a torch decoder over the store."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from kvist.engine.ports import Clock
from kvist.errors import StateError
from kvist.ids import SeqId
from kvist.model.decoder import Decoder
from kvist.runtime.inputs import Inputs, build_inputs
from kvist.runtime.sampler import SamplerState, logprob_of, sample_rows
from kvist.runtime.store import Store
from kvist.runtime.tables import Tables
from kvist.step import Chunk, PromptLogprobs, Sampled, StepPlan, StepResult


@dataclass(slots=True)
class Spent:
    """Seconds by part, since the start. Owner: the executor."""

    apply_s: float = 0.0
    inputs_s: float = 0.0
    forward_s: float = 0.0
    sample_s: float = 0.0


class TorchExecutor:
    """Owns the store, its copy of the block tables and each sequence's sampler state."""

    def __init__(self, decoder: Decoder, store: Store, clock: Clock) -> None:
        self._decoder = decoder
        self._clock = clock
        self.store = store
        self.tables = Tables(len(store.layout.groups))
        self.spent = Spent()
        self._samplers: dict[SeqId, SamplerState] = {}

    def execute(self, plan: StepPlan) -> StepResult:
        """One step, in the order that ``step.py`` gives."""
        if any(chunk.drafts for chunk in plan.chunks):
            raise StateError("this executor does not verify drafts yet", remedy="plan without drafts")
        start = self._clock.now()
        self._apply(plan)
        applied = self._clock.now()
        self.spent.apply_s += applied - start
        if not plan.chunks:
            return StepResult(plan.step, seconds=applied - start, epoch=plan.epoch)
        inputs = build_inputs(self.store.layout, plan.chunks, self.tables)
        ready = self._clock.now()
        with torch.inference_mode():
            logits = self._decoder.forward(inputs.batch).numpy()
        computed = self._clock.now()
        sampled = self._sample(plan, inputs, logits)
        scored = self._score_prompts(plan, inputs, logits)
        done = self._clock.now()
        self.spent.inputs_s += ready - applied
        self.spent.forward_s += computed - ready
        self.spent.sample_s += done - computed
        return StepResult(plan.step, sampled, scored, seconds=done - start, epoch=plan.epoch)

    @property
    def live_sequences(self) -> int:
        """Sequences whose state is held: 0 when the engine is idle."""
        return max(len(self._samplers), len(self.tables))

    def _apply(self, plan: StepPlan) -> None:
        for seq in plan.forget:
            self._samplers.pop(seq, None)
            self.tables.forget(seq)
        for new in plan.new:
            self._samplers[new.seq] = SamplerState.start(new)
        self.store.void(plan.fresh)
        for change in plan.tables:
            self.tables.apply(change)
        self.store.copy(plan.copies)

    def _sample(self, plan: StepPlan, inputs: Inputs, logits: np.ndarray) -> tuple[Sampled, ...]:
        if not plan.samples:
            return ()
        rows = [inputs.logit_row(s.chunk, s.row) for s in plan.samples]
        states = [self._samplers[s.seq] for s in plan.samples]
        picked = logits if rows == list(range(len(logits))) else logits[rows]
        drawn = sample_rows(picked, states, [s.index for s in plan.samples])
        for state, (token, _) in zip(states, drawn, strict=True):
            state.record(token)
        pairs = zip(plan.samples, drawn, strict=True)
        return tuple(Sampled(s.seq, s.index, token, logprob) for s, (token, logprob) in pairs)

    def _score_prompts(self, plan: StepPlan, inputs: Inputs, logits: np.ndarray) -> tuple[PromptLogprobs, ...]:
        return tuple(
            self._score_prompt(i, chunk, chunk.prompt_logprobs, inputs, logits)
            for i, chunk in enumerate(plan.chunks)
            if chunk.prompt_logprobs is not None
        )

    def _score_prompt(
        self, index: int, chunk: Chunk, alternatives: int, inputs: Inputs, logits: np.ndarray
    ) -> PromptLogprobs:
        """The row at position p says how likely prompt token p + 1 was."""
        prompt = self._samplers[chunk.seq].prompt
        positions = range(chunk.start, min(chunk.end, len(prompt) - 1))
        items = tuple(
            logprob_of(logits[inputs.logit_row(index, p - chunk.start)], prompt[p + 1], alternatives) for p in positions
        )
        return PromptLogprobs(chunk.seq, chunk.start + 1, items)

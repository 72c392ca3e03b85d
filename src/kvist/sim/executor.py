"""The executor on paper: carries out the same plans as the torch one, checks every read, and draws made-up tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvist.cost.table import CostTable
from kvist.ids import SeqId
from kvist.sim.clock import Passing
from kvist.sim.draws import Cell, PaperModel, extend
from kvist.sim.memory import PaperFault, PaperMemory
from kvist.sim.tiers import PaperMover, PaperTier
from kvist.spec.layout import CacheLayout
from kvist.step import Chunk, NewSequence, PromptLogprobs, Sampled, StepPlan, StepResult


class _Known:
    """What the executor remembers of a sequence: its introduction, and the cells of its prompt and drawn tokens."""

    __slots__ = ("cells", "new")

    def __init__(self, new: NewSequence) -> None:
        self.new = new
        self.cells: list[Cell] = []
        extend(self.cells, new.prompt)

    def tokens(self, start: int, end: int) -> tuple[int, ...]:
        return tuple(cell.token for cell in self.cells[start:end])


class PaperExecutor:
    """An ``Executor`` without a model. ``memory`` is None when reads are not checked (fast, for long traces).

    A drawn token is a function of the digest of everything before it. The digest is trusted only after every slot that
    the row may read, per group and through the executor's own tables, was found to hold it: a wrong block is a
    ``PaperFault``, never a wrong answer. Each step costs ``cost`` seconds of ``clock``. ``tiers``: where blocks may
    live besides, ``mover`` what carries them.
    """

    def __init__(
        self,
        layout: CacheLayout,
        *,
        blocks: int,
        clock: Passing,
        cost: CostTable,
        model: PaperModel,
        check: bool,
        tiers: Sequence[PaperTier] = (),
    ) -> None:
        self.memory = PaperMemory(layout, blocks) if check else None
        self._clock = clock
        self._cost = cost
        self._model = model
        self._known: dict[SeqId, _Known] = {}
        self.mover = None
        if tiers:
            self.mover = PaperMover(
                tiers,
                clock,
                block_bytes=layout.block_bytes,
                read=self.memory.read if self.memory else lambda block: [],
                write=self.memory.fill if self.memory else lambda block, cells: None,
            )
        total = sum(len(g.layers) for g in layout.groups) or 1
        self._weights = [(g.retention, len(g.layers) / total) for g in layout.groups]

    def execute(self, plan: StepPlan) -> StepResult:
        """Apply a plan in the order ``step.py`` gives. Raises ``PaperFault``."""
        self._first(plan)
        for seq in plan.forget:
            self._known.pop(seq, None)
        for new in plan.new:
            self._known[new.seq] = _Known(new)
        if self.memory is not None:
            self._move(self.memory, plan)
        if self.mover is not None:
            self.mover.begin(plan.loads)
        histories = [self._history(chunk) for chunk in plan.chunks]
        if self.memory is not None:
            self._compute(self.memory, plan, histories)
        rows = [cells[c.start : c.end] for c, cells in zip(plan.chunks, histories, strict=True)]
        scored = tuple(self._score(c, rows[i]) for i, c in enumerate(plan.chunks) if c.prompt_logprobs is not None)
        sampled = self._draw(plan, rows)
        seconds = self._cost.step_s(plan.computed_tokens, sum(map(self._reads, plan.chunks))) if plan.chunks else 0.0
        self._clock.advance(seconds)
        answers = {} if self.mover is None else self._last(self.mover, plan)
        return StepResult(plan.step, sampled, scored, seconds=seconds, epoch=plan.epoch, **answers)

    def _first(self, plan: StepPlan) -> None:
        if self.mover is not None:
            self.mover.first(plan)
        elif plan.saves or plan.drops or plan.finds or plan.loads:
            raise PaperFault("the plan is about tiers, and there are none")

    def _last(self, mover: PaperMover, plan: StepPlan) -> dict[str, Any]:
        if plan.wait_s:
            mover.wait(plan.wait_s)
        return mover.answers()

    @property
    def counters(self) -> Mapping[str, int]:
        """None: on paper there is one way to carry out a step."""
        return {}

    def known_sequences(self) -> int:
        """Sequences not forgotten yet."""
        return len(self._known)

    def _move(self, memory: PaperMemory, plan: StepPlan) -> None:
        for seq in plan.forget:
            memory.forget(seq)
        for block in plan.fresh:
            memory.poison(block)
        for change in plan.tables:
            memory.change(change)
        for order in plan.copies:
            memory.copy(order)

    def _compute(self, memory: PaperMemory, plan: StepPlan, histories: list[list[Cell]]) -> None:
        """What rows may read of earlier steps is there before anything is written, and all of it afterwards."""
        work = list(zip(plan.chunks, histories, strict=True))
        for chunk, cells in work:
            memory.check(chunk.seq, cells, chunk.start, chunk.start)
        for chunk, cells in work:
            memory.write(chunk.seq, cells, chunk.start, chunk.end)
        for chunk, cells in work:
            memory.check(chunk.seq, cells, chunk.start, chunk.end)

    def _history(self, chunk: Chunk) -> list[Cell]:
        """The cells of a chunk's sequence up to its end, drafts included. The chunk's tokens must be its own."""
        known = self._known[chunk.seq]
        real_end = chunk.end - chunk.drafts
        real = len(chunk.tokens) - chunk.drafts
        if not chunk.tokens or real < 1:
            raise PaperFault(f"sequence {chunk.seq}: a chunk of {real} tokens at {chunk.start}")
        if known.tokens(chunk.start, real_end) != chunk.tokens[:real]:
            raise PaperFault(f"sequence {chunk.seq}: the plan's tokens at {chunk.start} are not its own")
        cells = known.cells
        if chunk.drafts:
            if real_end != len(cells):
                raise PaperFault(f"sequence {chunk.seq}: drafts at {real_end}, its tokens end at {len(cells)}")
            cells = list(cells)
            extend(cells, chunk.tokens[real:])
        return cells

    def _draw(self, plan: StepPlan, rows: list[list[Cell]]) -> tuple[Sampled, ...]:
        out: list[Sampled] = []
        refused: set[SeqId] = set()  # a draft of theirs was not drawn: what follows it does not count
        for sample in plan.samples:
            chunk = plan.chunks[sample.chunk]
            known = self._known[sample.seq]
            cell = rows[sample.chunk][sample.row]
            at = len(known.new.prompt) + sample.index
            token, logprob = self._model.draw(cell, known.new, sample.index)
            out.append(Sampled(sample.seq, sample.index, token, logprob))
            if sample.seq not in refused:
                if at != len(known.cells) or cell != known.cells[-1]:
                    raise PaperFault(f"sequence {sample.seq}: output {sample.index} is drawn from {cell}")
                extend(known.cells, (token,))
            if chunk.tokens[sample.row + 1 : sample.row + 2] != (token,):
                refused.add(sample.seq)
        return tuple(out)

    def _score(self, chunk: Chunk, cells: list[Cell]) -> PromptLogprobs:
        prompt = self._known[chunk.seq].new.prompt
        wanted = chunk.prompt_logprobs or 0
        after = prompt[chunk.start + 1 : chunk.end + 1]
        items = tuple(self._model.score(cell, token, wanted) for cell, token in zip(cells, after, strict=False))
        return PromptLogprobs(chunk.seq, chunk.start + 1, items)

    def _reads(self, chunk: Chunk) -> int:
        return round(sum(weight * retention.kept_tokens(chunk.end) for retention, weight in self._weights))

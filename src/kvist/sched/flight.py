"""From rows to the letter: what a step computes, kept beside the plan until its result comes back."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from kvist.cache.cache import Drained
from kvist.ids import SeqId
from kvist.sched.pace import Load
from kvist.sched.sequence import Sequence
from kvist.step import Chunk, NewSequence, Sample, StepPlan

FIRST_ROW: Final = (0,)


@dataclass(slots=True)
class Row:
    """One chunk of a step: ``n_tokens`` of ``seq`` from ``start``, drafts included; ``end`` leaves those out.

    ``children`` are the siblings that draw their first token from the row of the prompt's last token. ``single``:
    nothing but the last drawn token was lacking. ``chunk_tokens`` are those besides the one that a continuing sequence
    computes: of a prompt, or guessed.
    """

    seq: Sequence
    start: int
    n_tokens: int
    end: int
    drafts: tuple[int, ...]
    children: tuple[Sequence, ...]
    draws: bool
    single: bool
    chunk_tokens: int

    @property
    def continues(self) -> bool:
        """True when the row lies behind the prompt and nothing else was lacking ("decode")."""
        return self.draws and self.start >= self.seq.prompt_tokens

    @property
    def members(self) -> tuple[Sequence, ...]:
        """Every sequence this chunk touches."""
        return (self.seq, *self.children)


def row_for(seq: Sequence, n_tokens: int) -> Row:
    """The next ``n_tokens`` of ``seq``: what it lacks, then drafts. It draws when nothing is lacking any more."""
    start = seq.computed
    lacking = len(seq.tokens) - start
    drafts = tuple(seq.drafts[: n_tokens - lacking]) if n_tokens > lacking else ()
    draws = n_tokens >= lacking
    single = draws and lacking == 1
    end = start + n_tokens - len(drafts)
    children = tuple(seq.siblings) if draws and seq.siblings else ()
    return Row(seq, start, n_tokens, end, drafts, children, draws, single, n_tokens - single)


@dataclass(slots=True)
class Flight:
    """A plan on its way and the rows it came from."""

    plan: StepPlan
    rows: list[Row]

    @property
    def load(self) -> Load:
        """What the step continues."""
        starts = [row.start for row in self.rows if row.single]
        return Load(len(starts), sum(starts))


@dataclass(slots=True)
class Letter:
    """Collects chunks, samples and introductions, in row order."""

    chunks: list[Chunk] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    new: list[NewSequence] = field(default_factory=list)

    def write(self, row: Row) -> None:
        """Add one row."""
        seq = row.seq
        wants = seq.wants_prompt_logprobs and row.start < seq.prompt_tokens - 1
        if row.single and seq.known and not (row.children or row.drafts or wants):
            self.samples.append(Sample(seq.id, len(self.chunks), 0, seq.output_tokens))
            self.chunks.append(Chunk(seq.id, row.start, (seq.tokens[row.start],), FIRST_ROW))
            return
        for member in row.members:
            if not member.known:
                member.known = True
                request = member.request
                self.new.append(NewSequence(member.id, request.prompt, member.sampling, request.ending_ids))
        real = row.end - row.start
        last = real - 1
        n_draws = len(row.drafts) + 1 if row.draws else 0
        chunk = Chunk(
            seq.id,
            row.start,
            (*seq.tokens[row.start : row.end], *row.drafts),
            tuple(range(last, last + n_draws)),
            len(row.drafts),
            seq.request.prompt_logprobs if wants else None,
        )
        at = len(self.chunks)
        self.chunks.append(chunk)
        first = seq.output_tokens
        self.samples += [Sample(seq.id, at, last + i, first + i) for i in range(n_draws)]
        self.samples += [Sample(child.id, at, last, 0) for child in row.children]


def write_plan(step: int, rows: list[Row], drained: Drained, forget: tuple[SeqId, ...], post: StepPlan) -> StepPlan:
    """The letter of one step. ``post`` has its part for the tiers."""
    letter = Letter()
    for row in rows:
        letter.write(row)
    return replace(
        post,
        step=step,
        new=tuple(letter.new),
        forget=forget,
        fresh=drained.fresh,
        tables=drained.tables,
        copies=drained.copies,
        chunks=tuple(letter.chunks),
        samples=tuple(letter.samples),
    )

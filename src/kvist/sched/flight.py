"""From rows to the letter: what a step computes, kept beside the plan until its result comes back."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvist.cache.cache import Drained
from kvist.ids import SeqId
from kvist.sched.pace import Load
from kvist.sched.sequence import Sequence
from kvist.step import Chunk, NewSequence, Sample, StepPlan


@dataclass(slots=True)
class Row:
    """One chunk of a step: ``n_tokens`` of ``seq`` from ``start``, drafts included.

    ``children`` are the siblings that draw their first token from the row of the prompt's last token.
    """

    seq: Sequence
    start: int
    n_tokens: int
    drafts: tuple[int, ...] = ()
    children: tuple[Sequence, ...] = ()
    draws: bool = False

    @property
    def end(self) -> int:
        """One past the last position, drafts excluded."""
        return self.start + self.n_tokens - len(self.drafts)

    @property
    def continues(self) -> bool:
        """True when the row lies behind the prompt and nothing else was lacking ("decode")."""
        return self.draws and self.start >= self.seq.prompt_tokens

    @property
    def chunk_tokens(self) -> int:
        """Tokens besides the one that a continuing sequence computes: of a prompt, or guessed."""
        return self.n_tokens - 1 if self.single else self.n_tokens

    @property
    def single(self) -> bool:
        """True when nothing but the last drawn token was lacking."""
        return self.draws and self.end - self.start == 1

    @property
    def members(self) -> tuple[Sequence, ...]:
        """Every sequence this chunk touches."""
        return (self.seq, *self.children)


def row_for(seq: Sequence, n_tokens: int) -> Row:
    """The next ``n_tokens`` of ``seq``: what it lacks, then drafts. It draws when nothing is lacking any more."""
    lacking = seq.lacking
    drafts = tuple(seq.drafts[: n_tokens - lacking]) if n_tokens > lacking else ()
    draws = n_tokens >= lacking
    return Row(seq, seq.computed, n_tokens, drafts, tuple(seq.siblings) if draws else (), draws)


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
        for member in row.members:
            if not member.known:
                member.known = True
                request = member.request
                self.new.append(NewSequence(member.id, request.prompt, member.sampling, request.ending_ids))
        real = row.end - row.start
        last = real - 1
        n_draws = len(row.drafts) + 1 if row.draws else 0
        wants = seq.wants_prompt_logprobs and row.start < seq.prompt_tokens - 1
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


def write_plan(step: int, rows: list[Row], drained: Drained, forget: tuple[SeqId, ...]) -> StepPlan:
    """The letter of one step."""
    letter = Letter()
    for row in rows:
        letter.write(row)
    return StepPlan(
        step=step,
        new=tuple(letter.new),
        forget=forget,
        fresh=drained.fresh,
        tables=drained.tables,
        copies=drained.copies,
        chunks=tuple(letter.chunks),
        samples=tuple(letter.samples),
    )

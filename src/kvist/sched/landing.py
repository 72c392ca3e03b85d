"""One row of a result comes down: tokens to its sequence and its samples, an end to those that failed."""

from __future__ import annotations

from collections.abc import Iterable

from kvist.sched.commit import Commit, Drawn
from kvist.sched.ending import Endings
from kvist.sched.flight import Row
from kvist.sched.request import Event
from kvist.sched.sequence import Sequence
from kvist.step import Failed


class Landing:
    """The result of one step. A sequence that failed ends alone: with its error, and nothing of this step published."""

    def __init__(self, commit: Commit, endings: Endings, drawn: Drawn, failed: Iterable[Failed]) -> None:
        self._commit = commit
        self._endings = endings
        self._drawn = drawn
        self._failed = {f.seq: f for f in failed}

    def land(self, row: Row) -> list[Event]:
        """What the row brought to its sequence and to the samples that drew from it."""
        seq = row.seq
        error = self._failed.get(seq.id) if self._failed else None
        events: list[Event] = []
        if error is None:
            events += [self._endings.bill(event, seq) for event in self._commit.advance(row, self._drawn)]
        else:
            events += self._fail(seq, error)
        for child in row.children:
            events += self._land_child(seq, child)
        if seq.finish_reason is not None:
            self._endings.close(seq, publish=error is None)
        return events

    def _land_child(self, parent: Sequence, child: Sequence) -> list[Event]:
        """A sample fails by itself, or with its parent when it needs log-probabilities that the parent never got."""
        error = self._failed.get(child.id)
        if error is None and parent.wants_prompt_logprobs:
            error = self._failed.get(parent.id)
        events: list[Event] = []
        if error is not None:
            parent.siblings.remove(child)
            events += self._fail(child, error)
        else:
            first = self._commit.spawn(parent, child, self._drawn)
            events += [] if first is None else [self._endings.bill(first, child)]
        if child.finish_reason is not None:
            self._endings.close(child)
        return events

    def _fail(self, seq: Sequence, failed: Failed) -> list[Event]:
        if seq.finish_reason is not None:
            return []
        return [self._endings.end(seq, "error", failed.error, of_request=failed.of_request)]

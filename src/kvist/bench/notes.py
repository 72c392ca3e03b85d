"""What a reader must know before he believes the numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from kvist.bench.probe import Target
from kvist.bench.record import Record
from kvist.bench.report import ClientLoad, Tokens

BUSY: Final = 0.8
LATE_S: Final = 0.05
TOGETHER: Final = 0.05
"""Events that came with the one before them, as a share of all gaps."""
SLACK_TOKENS: Final = 1
"""A server may count a token more than were sent (a BOS)."""


def notes(
    target: Target, good: Sequence[Record], tokens: Tokens, load: ClientLoad, before: Mapping[str, Sequence[Record]]
) -> tuple[str, ...]:
    """Sentences; none where all is as it should be. ``before``: stages that are not counted, by name."""
    found = [*_failed(before), *_counting(target, good, tokens), *_outside(target, good), *_client(good, load)]
    return tuple(found)


def _failed(before: Mapping[str, Sequence[Record]]) -> list[str]:
    found = []
    for stage, records in before.items():
        failed = [r for r in records if r.failed]
        if failed:
            first = f"{failed[0].error}: {failed[0].message}"
            found.append(f"{len(failed)} of {len(records)} {stage} requests failed, the first with {first}")
    return found


def _counting(target: Target, good: Sequence[Record], tokens: Tokens) -> list[str]:
    found = []
    if target.form == "text":
        found.append("prompts are text: lengths are about what was asked, the optimum is by bytes in common")
    if good and tokens.counted_by == "events":
        found.append("the server reports no usage: answers are counted one token an event, prompts as sent")
    if tokens.per_event > 1.05:
        found.append(f"an event carries {tokens.per_event:.3g} tokens on average: ITL is per event, TPOT per token")
    gaps = [gap for r in good for gap in r.itl_s]
    together = gaps.count(0.0)
    if together > TOGETHER * len(gaps):
        found.append(
            f"{together} of {len(gaps)} gaps between events are 0: several arrived in one read, so ITL"
            " (and TPOT of answers that came whole) shows how they were sent, not how fast they were made"
        )
    short = [r for r in good if r.output_tokens < r.asked_output_tokens]
    if short:
        asked = sum(r.asked_output_tokens for r in short)
        said = sum(r.output_tokens for r in short)
        found.append(f"{len(short)} of {len(good)} answers ended early: {said} of {asked} tokens")
    return found


def _outside(target: Target, good: Sequence[Record]) -> list[str]:
    """Signs that the cache knew prompts that this run had not sent, nor had in flight, when they were answered."""
    if target.form == "text":
        return []
    early = [r for r in good if (r.cached_tokens or 0) > r.knowable_tokens + SLACK_TOKENS]
    if not early:
        return []
    more = sum((r.cached_tokens or 0) - r.knowable_tokens for r in early)
    return [
        f"{len(early)} requests report {more} cached tokens more than this run had sent: the cache was warm from"
        " before (another --seed, or --flush)"
    ]


def _client(good: Sequence[Record], load: ClientLoad) -> list[str]:
    found = []
    if load.cpu_share > BUSY:
        found.append(f"the load generator used {load.cpu_share:.0%} of a processor: it may be what was measured")
    if load.worst_delay_s > LATE_S:
        found.append(f"the load generator was up to {load.worst_delay_s * 1e3:.0f} ms late: times may be that much off")
    late_s = max((r.late_s for r in good), default=0.0)
    if late_s > LATE_S:
        found.append(f"requests waited up to {late_s:.3g} s to be sent (--max-concurrency): TTFT does not hold that")
    return found

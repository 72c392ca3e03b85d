"""The records that would make a hit longer: their names, how far those that exist lead, which of them are needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvist.cache.chain import run_keys
from kvist.cache.groups import GroupRule
from kvist.cache.keys import Space
from kvist.ids import NULL_BLOCK, BlockId, RecordId, record_id

THERE = BlockId(0)
"""Stands for any block that exists, where only that matters."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Records of one prompt that would let a sequence which has ``base`` tokens (whole spans) go on at ``end``.

    ``end`` is whole spans too, or one token less: then the last span is there, and its last token is computed again.
    Per group the ids of the blocks of these tokens, as ``records`` has them one group after the other.
    """

    base: int
    end: int
    groups: tuple[tuple[RecordId, ...], ...]

    @property
    def records(self) -> tuple[RecordId, ...]:
        """All of them, in the order in which answers come."""
        return tuple(r for group in self.groups for r in group)

    def of_groups(self, answers: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """Answers in the order of ``records``, cut into groups."""
        out, at = [], 0
        for group in self.groups:
            out.append(tuple(answers[at : at + len(group)]))
            at += len(group)
        return tuple(out)


def probe(
    rules: tuple[GroupRule, ...], span: int, space: Space, data: bytes, base: int, end: int, fingerprint: bytes
) -> Probe:
    """The records of tokens ``[base, end)`` of a packed prompt, both cut as ``Probe`` says."""
    base, end = base - base % span, last_end(end, span)
    keys = {t: run_keys(space, data, -(-end // t), t, fingerprint) for t in {rule.tokens for rule in rules}}
    return Probe(base, end, tuple(tuple(record_id(k, r.id) for k in keys[r.tokens][base // r.tokens :]) for r in rules))


def last_end(most: int, span: int) -> int:
    """The largest ``Probe.end`` that is not above ``most``."""
    return most if (most + 1) % span == 0 else most - most % span


def reach(rules: tuple[GroupRule, ...], span: int, asked: Probe, there: Sequence[Sequence[bool]], most: int) -> int:
    """Largest n <= ``most`` (as ``Probe.end``) at which every block that a continuation needs is cached or in a tier.

    What is cached below ``base`` serves as far as windows at ``base`` reach back.
    """
    n = last_end(min(most, asked.end), span)
    tables = [_table(rule, asked.base, has) for rule, has in zip(rules, there, strict=True)]
    while n > asked.base:
        fitting = min(rule.fit(ids, n) for rule, ids in zip(rules, tables, strict=True))
        if fitting >= n:
            return n
        n = fitting - fitting % span
    return asked.base


def _table(rule: GroupRule, base: int, has: Sequence[bool]) -> list[BlockId]:
    first = rule.first_block(base)
    ids = [THERE if i < rule.sink_end or i >= first else NULL_BLOCK for i in range(base // rule.tokens)]
    return [*ids, *(THERE if h else NULL_BLOCK for h in has)]


def needed(rules: tuple[GroupRule, ...], asked: Probe, base: int, end: int) -> list[tuple[int, int, RecordId]]:
    """(group, entry, record) of every block to load so that a sequence at ``base`` can continue at ``end``.

    In order of position, so that a load that fails half-way has loaded the first part.
    """
    out: list[tuple[int, int, int, RecordId]] = []
    for rule, ids in zip(rules, asked.groups, strict=True):
        low, shift, first = base // rule.tokens, asked.base // rule.tokens, rule.first_block(end)
        entries = (e for e in range(low, rule.end_block(end)) if e < rule.sink_end or e >= first)
        out += [(e * rule.tokens, rule.id, e, ids[e - shift]) for e in entries]
    return [(group, entry, record) for _, group, entry, record in sorted(out)]

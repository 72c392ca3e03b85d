"""Sequences whose hits are made longer by what tiers have: asked for while they wait, loaded once they are admitted.

A waiting sequence is held while its question is out. When its turn comes it is admitted as always, its whole need
covered; with a load to wait for it runs without rows until that ends, and then goes on from wherever it has come.
"""

from __future__ import annotations

from typing import Final

from kvist.cache.cache import Cache, last_end
from kvist.errors import PoolFull
from kvist.ids import SeqId
from kvist.sched.asked import Loading, Question
from kvist.sched.carry import Carry, Tiers
from kvist.sched.choice import Choice, choose, turning_points
from kvist.sched.counters import Counters
from kvist.sched.ending import Endings
from kvist.sched.lookup import Lookup
from kvist.sched.rates import Rates
from kvist.sched.roster import Roster
from kvist.sched.sequence import Sequence, State
from kvist.transfer import Found, Loaded

FINDS_PER_PLAN: Final = 16
"""Questions begun in one plan: naming the records of 4,000 tokens takes about a third of a millisecond."""

MOST_ASKED: Final = 2
"""Times that one stay in the queue asks: the cache may have lost what the first question went on from."""


class Restores:
    """Owner of questions and loads."""

    def __init__(
        self,
        cache: Cache,
        roster: Roster,
        counters: Counters,
        endings: Endings,
        lookup: Lookup,
        carry: Carry,
        tiers: Tiers,
        *,
        block_bytes: int,
        span_tokens: int,
        max_sequences: int,
    ) -> None:
        self._cache = cache
        self._roster = roster
        self._counters = counters
        self._endings = endings
        self._lookup = lookup
        self._carry = carry
        self._tiers = tiers
        self._block_bytes = block_bytes
        self._span = span_tokens
        self._questions: dict[SeqId, Question] = {}
        self._by_find: dict[int, SeqId] = {}
        self._asked: dict[SeqId, int] = {}
        self._loads: dict[int, Loading] = {}
        self._most_loads = max(1, max_sequences // 2)
        self._begun = 0
        self._check_due = 0.0
        self.rates = Rates(len(tiers.names))

    @property
    def loading(self) -> bool:
        """True while some load is out."""
        return bool(self._loads)

    def begin(self) -> None:
        """A new plan."""
        self._begun = 0

    def holds(self, seq: Sequence) -> bool:
        """Whether waiting ``seq`` is to wait for what the tiers say; asks them if need be."""
        question = self._questions.get(seq.id)
        if question is not None:
            if question.answer is None:
                return True
            if self._cached(seq) >= question.asked.base:
                return False
            del self._questions[seq.id]  # the cache lost what it went on from
        if self._tiers.load == "never" or not (seq.request.reuse and self._cache.reuse):
            return False
        if self._carry.forbids(seq.request.tenant):
            return False
        if self._asked.get(seq.id, 0) >= MOST_ASKED:
            return False
        most = self._most(seq)
        base = self._cached(seq)
        if most - base < max(self._tiers.min_tokens, self._span):
            return False
        if self._begun < FINDS_PER_PLAN:
            self._begun += 1
            self._ask(seq, base, most)
        return True

    def _cached(self, seq: Sequence) -> int:
        """Whole spans that the cache has of waiting ``seq``, as last asked."""
        cached = self._lookup.cached_tokens(seq)
        return cached - cached % self._span

    def _most(self, seq: Sequence) -> int:
        """A hit leaves at least one token to compute, and what is loaded is whole blocks."""
        return last_end(max(0, min(seq.hit_limit, len(seq.tokens) - 1)), self._span)

    def _ask(self, seq: Sequence, base: int, most: int) -> None:
        request = seq.request
        asked = self._cache.restorer.probe(seq.tokens, base, most, salt=request.salt, extras=request.extras)
        id = self._carry.find(asked.records, request.tenant)
        self._questions[seq.id] = Question(asked, id)
        self._by_find[id] = seq.id
        self._asked[seq.id] = self._asked.get(seq.id, 0) + 1
        self._counters.finds += 1

    def found(self, answer: Found) -> None:
        """An answer to a question; nobody may be waiting for it any more."""
        self._carry.asked.discard(answer.id)
        question = self._questions.get(self._by_find.pop(answer.id, SeqId(-1)))
        if question is not None and question.id == answer.id:
            question.answer = answer

    def forget(self, seq: Sequence) -> None:
        """``seq`` left the queue for good, or starts a new stay in it."""
        question = self._questions.pop(seq.id, None)
        if question is not None and question.answer is None:
            self._carry.cancel(question.id)
        self._asked.pop(seq.id, None)

    def promising(self, seq: Sequence) -> bool:
        """Whether the tiers said that they have something for waiting ``seq``."""
        question = self._questions.get(seq.id)
        if question is None or question.answer is None:
            return False
        return self._cache.restorer.reach(question.asked, question.answer.tiers, self._most(seq)) > question.asked.base

    def offer(self, seq: Sequence, cached: int) -> Choice | None:
        """What to load for ``seq``, which the cache gives ``cached`` tokens (whole spans); None: nothing was found."""
        question = self._questions.get(seq.id)
        if question is None or question.answer is None or self._carry.forbids(seq.request.tenant):
            return None
        asked, answer = question.asked, question.answer
        if cached < asked.base:
            return None
        found = self._cache.restorer.reach(asked, answer.tiers, self._most(seq))
        if found <= cached:
            return None
        where = dict(zip(asked.records, answer.tiers, strict=True))
        ends = [e for e in turning_points(asked, answer.tiers, self._span, cached, found) if self._leads(question, e)]
        if self._tiers.load == "always":
            ends = [found]
        choice = choose(
            self.rates,
            lambda end: [where[r] for r in self._cache.restorer.needed(asked, cached, end)],
            base=cached,
            found=found,
            ends=ends,
            queued_bytes=self._queued_bytes(answer),
            block_bytes=self._block_bytes,
            n_tiers=len(self._tiers.names),
        )
        if self._tiers.load == "always":
            choice.end_tokens, choice.compute_s = found, self.rates.compute_s(cached, found)
            choice.passed_over = choice.trial = None
        self._check(question, choice)
        return choice

    def _leads(self, question: Question, end: int) -> bool:
        """Whether everything that a continuation at ``end`` needs is there (windows need other blocks at each end)."""
        assert question.answer is not None
        return self._cache.restorer.reach(question.asked, question.answer.tiers, end) == end

    def _queued_bytes(self, answer: Found) -> list[int]:
        """What waits to be read from each tier: as it said, or the loads begun since."""
        own = [0] * len(self._tiers.names)
        for loading in self._loads.values():
            for tier in loading.tiers:
                own[tier] += self._block_bytes
        told = [*answer.queued_bytes, *[0] * len(own)]
        return [max(mine, its) for mine, its in zip(own, told, strict=False)]

    def _check(self, question: Question, choice: Choice) -> None:
        """Leave the last span of some loads to be computed: the mover compares it with what the tier has."""
        end = (choice.end_tokens - 1) // self._span * self._span
        if choice.what == "load" and end > choice.base_tokens and self._leads(question, end):
            self._check_due += self._tiers.check
            if self._check_due >= 1.0:
                self._check_due -= 1.0
                choice.end_tokens, choice.checks = end, True

    def start(self, seq: Sequence, choice: Choice) -> bool:
        """Begin the load that was chosen for admitted ``seq``; False when there is no room for it."""
        question = self._questions[seq.id]
        assert question.answer is not None
        if len(self._loads) >= self._most_loads:
            return False
        base = seq.computed
        try:
            wanted = self._cache.restorer.begin(seq.id, question.asked, choice.end_tokens)
        except PoolFull:
            return False
        where = dict(zip(question.asked.records, question.answer.tiers, strict=True))
        tiers = tuple(where[record] for record in wanted.records)
        assert min(tiers) >= 0, "a load of what no tier has"
        id = self._carry.load(wanted.records, wanted.blocks, tiers, seq.request.tenant)
        self._loads[id] = Loading(seq, wanted, base, tiers)
        seq.load = id
        self._counters.loads += 1
        return True

    def decided(self, seq: Sequence, choice: Choice | None) -> None:
        """``seq`` was admitted: its question is closed, and what was decided is on record."""
        self._questions.pop(seq.id, None)
        self._asked.pop(seq.id, None)
        if choice is None:
            return
        seq.choice = choice
        self._counters.found_tokens += choice.found_tokens - choice.base_tokens
        counter = {"load": "load_decisions", "part": "part_decisions", "recompute": "recompute_decisions"}[choice.what]
        setattr(self._counters, counter, getattr(self._counters, counter) + 1)
        if choice.passed_over is not None:
            self.rates.passed_over(*choice.passed_over)
        if choice.trial is not None:
            self.rates.tried(choice.trial)

    def void(self, tenant: str | None) -> None:
        """What loads of a tenant (None: of anybody) bring is not to be used: the cache was reset."""
        for loading in self._loads.values():
            if tenant in (None, loading.seq.request.tenant):
                loading.void = True
        for seq_id, question in self._questions.items():
            seq = self._roster.live.get(seq_id)
            if seq is not None and tenant in (None, seq.request.tenant):
                self._by_find.pop(question.id, None)
                question.answer = Found(question.id, (-1,) * len(question.asked.records))

    def abandon(self, seq: Sequence) -> None:
        """``seq`` ended while its load is out: its blocks return with the answer."""
        if seq.load is not None:
            self._carry.cancel(seq.load)

    def loaded(self, answer: Loaded) -> None:
        """A load has ended: its sequence goes on from where it is now."""
        self._carry.asked.discard(answer.id)
        loading = self._loads.pop(answer.id)
        seq = loading.seq
        seq.load = None
        self.rates.loaded(answer)
        if seq.finish_reason is not None:
            self._endings.close(seq, publish=False)
            return
        now = None
        if not loading.void:
            now = self._cache.restorer.end(seq.id, seq.tokens, loading.wanted, answer.good)
        self._note(seq, loading, loading.base if now is None else now, answer)
        if now is None:
            self._send_back(seq)

    def computed(self, seq: Sequence, start: int, end: int, seconds: float) -> None:
        """A step of ``seconds`` computed tokens ``[start, end)`` of ``seq``."""
        if seq.choice is not None:
            self._counters.load_regret_s += seq.choice.computed(start, end, seconds)

    def _send_back(self, seq: Sequence) -> None:
        """Nothing of the load can be used: ``seq`` waits again, as urgent as it was, and computes what it lacks."""
        self._cache.release(seq.id, seq.tokens, seq.computed, publish=False)
        seq.computed = seq.entered = 0
        assert seq.state is State.RUNNING
        self._roster.wait_again(seq)
        self._asked[seq.id] = MOST_ASKED

    def _note(self, seq: Sequence, loading: Loading, now: int, answer: Loaded) -> None:
        counters, choice = self._counters, seq.choice
        gained = now - loading.base
        if gained:
            news = max(0, min(now, seq.prompt_tokens) - seq.seen_tokens)
            counters.self_hit_tokens += max(0, min(now, seq.seen_tokens) - loading.base)
            seq.cached_tokens += news
            seq.loaded_tokens += news
            if seq.counts_lookup:
                counters.cached_tokens += news
            else:
                counters.sibling_hit_tokens += news
            seq.computed = seq.entered = now
            seq.seen_tokens = max(seq.seen_tokens, now)
        counters.loaded_tokens += gained
        counters.unloaded_tokens += loading.wanted.end_tokens - now
        counters.failed_loads += now < loading.wanted.end_tokens
        if choice is not None:
            counters.load_regret_s += choice.loaded(gained, answer.seconds, answer.reason)

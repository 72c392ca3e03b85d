"""First-token time, time per token and bytes of the cache over context lengths, with the cache and without.

``on`` is how kvist runs. ``off`` recomputes the whole sequence for every token, in a request of its own that takes
nothing from the cache and leaves nothing in it: the price of a token then grows with everything before it.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kvist.cost.work import Chunk, ModelWork, Widths
from kvist.lab.ask import SweepAsk
from kvist.lab.host import Load
from kvist.lab.record import SweepRow
from kvist.planner.decide.no_cache import Totals
from kvist.runtime.answer import Answer
from kvist.runtime.llm import LLM
from kvist.spec.weights import weight_elements

ENOUGH_TOKENS: Final = 4096
"""Prompts are measured again, three times at most, until so many tokens were computed: short ones are noisy."""

OnRow = Callable[[int, int, str], None]
"""(done, total, what is being measured)."""


def sweep(llm: LLM, ask: SweepAsk, on_row: OnRow | None = None) -> Iterator[SweepRow]:
    """One row for each length and mode, as they are measured. Raises ``BadValue`` for lengths the model cannot see."""
    todo = [(length, mode) for length in sorted(set(ask.lengths)) for mode in dict.fromkeys(ask.cache)]
    runs = {"on": _cached, "off": _plain}
    _warm_up(llm)
    for i, (length, mode) in enumerate(todo):
        if on_row is not None:
            on_row(i, len(todo), f"{length} tokens, cache {mode}")
        load, seen = Load.start(), []
        for again in range(max(1, min(3, ENOUGH_TOKENS // (length * ask.batch)))):
            prompts = _prompts(llm, length, ask.batch, ask.seed + 1000 * i + again)
            seen.append(runs[mode](llm, prompts, ask.tokens_of(mode)))
        yield _row(llm, ask, length, mode, seen, load.share())
    if on_row is not None:
        on_row(len(todo), len(todo), "")


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of a batch: its times, and the answers that were complete at the end."""

    ttft_s: float
    tpot_s: float
    answers: tuple[Answer, ...]
    kept_bytes: int


def _cached(llm: LLM, prompts: list[tuple[int, ...]], tokens: int) -> _Run:
    """As kvist runs. What stays between two tokens is all that the sequences hold."""
    answers = llm.generate_all(prompts, max_tokens=tokens, ignore_eos=True, reuse=False, temperature=0.0)
    first = statistics.fmean(a.ttft_s or 0.0 for a in answers)
    held = sum(a.kv_bytes_held for a in answers)
    return _Run(first, statistics.fmean(a.tpot_s or 0.0 for a in answers), tuple(answers), held)


def _plain(llm: LLM, prompts: list[tuple[int, ...]], tokens: int) -> _Run:
    """Every token in a request of its own, from the first token of its sequence on."""
    times: list[float] = []
    answers: list[Answer] = []
    kept = 0
    cache, block_bytes = llm.engine.scheduler.cache, llm.built.layout.block_bytes
    before = cache.cached_blocks
    for _ in range(tokens):
        answers = llm.generate_all(prompts, max_tokens=1, ignore_eos=True, reuse=False, temperature=0.0)
        times.append(statistics.fmean(a.ttft_s or 0.0 for a in answers))
        kept = max(kept, (cache.live_blocks + cache.cached_blocks - before) * block_bytes)
        prompts = [p + a.token_ids for p, a in zip(prompts, answers, strict=True)]
    return _Run(times[0], statistics.fmean(times[1:]), tuple(answers), kept)


def _row(llm: LLM, ask: SweepAsk, length: int, mode: str, runs: Sequence[_Run], others: float) -> SweepRow:
    answers = runs[-1].answers
    tokens = ask.tokens_of(mode)
    return SweepRow(
        seq_tokens=length,
        batch=ask.batch,
        cache=mode,
        new_tokens=tokens,
        ttft_s=statistics.median(r.ttft_s for r in runs),
        tpot_s=statistics.median(r.tpot_s for r in runs),
        computed_tokens=answers[-1].ledger.computed_tokens,
        kv_bytes_held=sum(a.kv_bytes_held for a in answers),
        kv_bytes_formula=sum(a.kv_bytes_formula for a in answers),
        kv_bytes_kept=max(r.kept_bytes for r in runs),
        flops_times_cached=1.0 if mode == "on" else flops_times_cached(_work(llm), length, tokens),
        others=others,
    )


def _work(llm: LLM) -> ModelWork:
    each = llm.built.weights_bytes / weight_elements(llm.built.spec).total
    return ModelWork(llm.built.spec, llm.built.layout.format, Widths(each, each, each, 4.0))


def flops_times_cached(work: ModelWork, length: int, tokens: int) -> float:
    """FLOPs of ``tokens`` tokens behind a prompt of ``length`` without a cache, over those with one."""
    later = range(1, tokens)
    cached = Totals().plus(work, [Chunk(length)]).plus(work, [Chunk(1, length + i - 1) for i in later])
    plain = Totals().plus(work, [Chunk(length + i) for i in range(tokens)])
    return plain.flops / cached.flops


def _prompts(llm: LLM, tokens: int, batch: int, seed: int) -> list[tuple[int, ...]]:
    draw = random.Random(seed)
    return [tuple(draw.randrange(llm.built.spec.vocab) for _ in range(tokens)) for _ in range(batch)]


def _warm_up(llm: LLM) -> None:
    """The first step of a process finds cold caches and untouched memory."""
    llm.generate_all(_prompts(llm, 8, 1, 0), max_tokens=2, ignore_eos=True, reuse=False, temperature=0.0)

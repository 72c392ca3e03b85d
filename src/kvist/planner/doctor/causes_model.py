"""What of the model, its formats and its drafts makes a pool larger or smaller than somebody expects."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvist.planner.doctor.case import Case, Cause
from kvist.planner.doctor.diagnosis import Finding
from kvist.spec.format import F16, KVFormat
from kvist.spec.layer import Latent
from kvist.spec.shard import kv_heads_of_rank
from kvist.units import ceil_div

_NEITHER: Final = {True: "either", False: "it"}
_STEPS: Final = (512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536)
"""Sizes of a step that people set."""


def latent_on_every_rank(case: Case) -> Finding | None:
    """MLA's latent is whole on every rank of a tensor-parallel group, unless context parallelism splits its tokens."""
    place, pool = case.run.place, case.pool()
    if place.attention_tp == 1 or pool is None or not any(isinstance(x.mixer, Latent) for x in case.layers):
        return None
    if not case.agrees(pool):
        return None
    if place.cp > 1:
        said = f"context parallelism deals the tokens of a latent out over {place.cp} ranks: {place.cp} times as many"
        return Finding("latent split by tokens", said)
    return Finding(
        "latent on every rank",
        f"each of {place.tp} ranks keeps the whole latent: {pool.value:,.0f} {pool.unit} in all, "
        f"not {pool.value * place.tp:,.0f} (decode context parallelism would split them)",
    )


def heads_on_several_ranks(case: Case) -> Finding | None:
    """With fewer KV heads than ranks every head lies on several: more ranks add no room."""
    tp, pool = case.run.place.attention_tp, case.pool()
    owners = [x for x in case.run.spec.layers if x.owns_cache and x.cache_heads and not isinstance(x.mixer, Latent)]
    few = [x for x in owners if x.kv_heads < tp]
    if not few or pool is None or not case.agrees(pool):
        return None
    heads = few[0].kv_heads
    copies = kv_heads_of_rank(heads, tp) * tp // heads
    return Finding(
        "heads on several ranks",
        f"{heads} KV heads on {tp} ranks: each head is stored {copies} times, "
        f"so the pool is that of {ceil_div(tp, copies)} ranks",
    )


def unstated_degree(case: Case) -> Finding | None:
    """The log does not say over how many devices heads are cut; its sizes do."""
    term = case.disputed()
    if term is None or case.log.count("tp") is not None:
        return None
    for tp in (2, 4, 8, 16, 1):
        if tp != case.run.place.tp and case.agrees(term, case.if_(place=replace(case.run.place, tp=tp, ep=1))):
            packed = not case.log.word("kv_dtype") and case.agrees(term, case.if_(kv_format=KVFormat.planned("fp8")))
            other = "a cache in 8 bits or " if packed else ""
            said = f"{term.printed} fits {other}a tensor parallelism of {tp}: the log does not state {_NEITHER[packed]}"
            return Finding("tensor parallelism", said, term.name)
    return None


def cache_is_not_8_bit(case: Case) -> Finding | None:
    """Tokens fit 16 bits a number although 8 were asked for, or the other way round."""
    term = case.disputed()
    if term is None or unstated_degree(case) is not None:
        return None
    fmt, half, byte = case.run.kv_format, KVFormat(F16, F16), KVFormat.planned("fp8")
    other = half if fmt.k.bits == 8 else byte
    if not case.agrees(term, case.if_(kv_format=other)):
        return None
    if other is half:
        said = f"the cache is in 16 bits although {fmt.name} was asked for: {term.printed} fits 16 bits exactly"
    else:
        said = (
            f"the cache is in 8 bits although {case.log.word('kv_dtype') or 'auto'} was asked for: {term.printed} fits"
        )
    return Finding("format of the cache", said, term.name)


def recurrent_blocks(case: Case) -> Finding | None:
    """Prefix caching makes a request hold one more block of every recurrent group."""
    term = case.disputed()
    if term is None or not any(x.state_elements for x in case.layers):
        return None
    on = not case.run.prefix_caching
    if not case.agrees(term, case.if_(prefix_caching=on)):
        return None
    said = "two blocks of every group of recurrent layers (prefix caching is on)" if on else "one block (it is off)"
    return Finding("prefix caching", f"{term.printed} fits a request that holds {said}", term.name)


def drafts(case: Case) -> Finding | None:
    """Layers that propose tokens keep a cache of their own."""
    term = case.disputed()
    if term is None:
        return None
    stated, states = case.run.draft_tokens, any(x.state_elements for x in case.layers)
    counts = (stated,) if stated or not states else range(6)
    for n in dict.fromkeys((case.run.spec.draft_layers, 1, 2, 3, 0)):
        if n == case.run.draft_layers:
            continue
        for proposed in counts if n else (0,):
            if case.agrees(term, case.if_(draft_layers=n, draft_tokens=proposed)):
                what = f"{n} draft layer{'s' * (n > 1)} and {proposed} drafts a step" if n else "no draft layers"
                said = f"{term.printed} fits with {what}, not with the {case.run.draft_layers} the log states"
                return Finding("drafts", said, term.name)
    return None


def step_size(case: Case) -> Finding | None:
    """A window also keeps the tokens of the step in flight; the log does not say how many a step may hold."""
    term, stated = case.disputed(), case.log.count("batched_tokens")
    bounded = any(x.owns_cache and x.retention.bounded for x in case.layers)
    if term is None or not bounded or case.log.engine != "vllm":
        return None
    ways: list[tuple[int | None, int, int]] = [(n, 1, 0) for n in ((stated,) if stated else _STEPS)]
    ways += [(n, 2, 0) for n, _, _ in ways]
    ways += [(case.run.batched_tokens, 1, slots) for slots in range(1, 9) if case.run.sequences]
    for tokens, steps, slots in ways:
        knobs = {"steps_in_flight": steps, "draft_slots": slots}
        if case.agrees(term, case.if_(batched_tokens=tokens, knobs=knobs)):
            flight = f"{tokens:,} tokens" if tokens else "the default number of tokens"
            flight += ", two in flight" * (steps - 1) + f" and {slots} drafts a sequence" * bool(slots)
            said = f"{term.printed} fits steps of {flight}, which a window keeps beside itself"
            return Finding("tokens in flight", said, term.name)
    return None


def state_type(case: Case) -> Finding | None:
    """Recurrent state may be kept in 32 or in 16 bits."""
    term = case.disputed()
    if term is None or not any(x.state_elements for x in case.layers) or "state_type" not in case.engine.knobs:
        return None
    for kind in ("f32", "bf16"):
        if case.agrees(term, case.if_(knobs={"state_type": kind})):
            return Finding("format of states", f"{term.printed} fits recurrent states in {kind}", term.name)
    return None


CAUSES: Final[tuple[Cause, ...]] = (
    latent_on_every_rank, heads_on_several_ranks, unstated_degree, cache_is_not_8_bit, recurrent_blocks, state_type,
    drafts, step_size,
)  # fmt: skip

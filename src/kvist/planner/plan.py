"""One plan: where memory goes, what fits, how fast it is, and the verdict. Arithmetic on a ``Setup`` and a ``Load``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from kvist.cost.interval import Interval
from kvist.errors import BadValue
from kvist.planner.budget import Budget, Term, activations, graphs, runtime
from kvist.planner.engines.base import Capacity, Run
from kvist.planner.engines.registry import engine as engine_named
from kvist.planner.schedule import Burst
from kvist.planner.setup import MOST_USERS, Load, Setup
from kvist.planner.timing import Timing
from kvist.spec.shard import stages
from kvist.units import ceil_div, format_bytes


@dataclass(frozen=True, slots=True)
class Latency:
    """``ttft``: one prompt arrives while the other users answer. ``burst``: all arrive at once. ``tpot``: between two
    tokens of one user with all users answering. ``*_bound``: the largest part of a step and its limit.
    """

    ttft: Interval
    burst: Burst
    tpot: Interval
    ttft_bound: str
    tpot_bound: str
    tokens_per_s: Interval


@dataclass(frozen=True, slots=True)
class Verdict:
    """``fits``: the load runs with the best guess of every term; ``sure``: even with the worst.

    When it does not fit, ``broken`` is the first term that breaks and ``short_bytes`` by how much on one device.
    """

    fits: bool
    sure: bool
    sentence: str
    broken: str = ""
    short_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer. Bytes are of one device of the tightest stage; users are of all replicas together.

    ``longest_tokens`` is guaranteed to each of the asked users at once, ``alone_tokens`` to one with nobody beside it:
    what lies between is best effort.
    """

    setup: Setup
    load: Load
    budgets: tuple[Budget, ...]
    tightest: int
    capacity: Capacity
    request_bytes: int
    shared_bytes: int
    users_fit: tuple[int, int, int]
    longest_tokens: int
    alone_tokens: int
    latency: Latency
    verdict: Verdict

    @property
    def budget(self) -> Budget:
        """The tightest stage's."""
        return self.budgets[self.tightest]


def run_of(setup: Setup, n_tokens: int | None = None, available_bytes: float | None = None) -> Run:
    """How the engine would be started for this setup."""
    return Run(
        spec=setup.spec,
        kv_format=setup.kv_format,
        place=setup.place,
        available_bytes=None if available_bytes is None else max(0, int(available_bytes)),
        max_model_tokens=n_tokens,
        sequences=setup.sequences,
        block_tokens=setup.block_tokens,
        batched_tokens=setup.batched_tokens,
        draft_layers=setup.draft_layers,
        draft_tokens=setup.draft_tokens,
        knobs=setup.knobs,
    )


def budgets_of(setup: Setup, users: int = 1) -> tuple[Budget, ...]:
    """The memory of one rank of each stage when the engine is started for ``users``."""
    rows = activations(
        setup.spec,
        setup.place,
        batched_tokens=setup.batched_tokens,
        sequences=setup.sequences_for(users),
        element_bytes=setup.widths.activation,
    )
    given, out = setup.overheads, []
    cut = stages(len(setup.spec.layers), setup.place.pp)
    for i, (weights, (first, last)) in enumerate(zip(setup.weights, cut, strict=True)):
        drafts = setup.draft_layers if i == len(cut) - 1 else 0
        terms = (rows, graphs(setup.device, last - first + drafts), runtime(setup.device, setup.place))
        if given is not None:
            known = (given.activation, given.graphs, given.runtime)
            terms = (_given(terms[0], known[0]), _given(terms[1], known[1]), _given(terms[2], known[2]))
        whole = (Term("weights", weights, setup.weights_how), *terms)
        out.append(Budget(setup.device.capacity_bytes, setup.memory_fraction, whole, i))
    return tuple(out)


def _given(term: Term, known: Interval) -> Term:
    return Term(term.name, known, "given")


def timing_of(setup: Setup) -> Timing:
    """The clock of one replica."""
    return Timing(
        setup.spec,
        setup.kv_format,
        setup.place,
        setup.widths,
        setup.cost,
        setup.batched_tokens,
        setup.device.link_bytes_per_s or setup.device.host_bytes_per_s,
    )


def request_bytes_of(setup: Setup, load: Load) -> tuple[int, int]:
    """Bytes of one rank that a user holds alone, and that all users of a rank share through the prefix tree.

    Windows and recurrent state are each user's own, whatever is shared.
    """
    engine, run = engine_named(setup.engine), run_of(setup, load.context_tokens)
    own = engine.request_bytes(run, load.context_tokens - load.cached_tokens)
    return own, engine.request_bytes(run, load.cached_tokens) if load.cached_tokens else 0


def users_that_fit(available: float, own_bytes: int, shared_bytes: int, replicas: int) -> int:
    """Users of all replicas, each of which holds the shared part once."""
    room = available - shared_bytes
    if room < 0:
        return 0
    return int(room // own_bytes) * replicas if own_bytes else replicas


def fitting_users(setup: Setup, load: Load) -> tuple[int, int, int]:
    """Users of the load's shape that fit: with the worst, the best guess and the best of every term.

    Whoever serves more users than the engine's usual cap samples more rows at a time, which takes memory too.
    """
    own, shared = request_bytes_of(setup, load)
    cap = setup.sequences * setup.replicas if setup.sequences_fixed else MOST_USERS

    def fit(end: str) -> int:
        def room(users: int) -> float:
            return min(float(getattr(budget.available, end)) for budget in budgets_of(setup, users))

        found = min(cap, users_that_fit(room(1), own, shared, setup.replicas))
        low, high = min(found, setup.sequences * setup.replicas), found
        while low < high:  # memory shrinks as users grow: the last that still fits
            middle = (low + high + 1) // 2
            need = ceil_div(middle, setup.replicas) * own + shared
            low, high = (middle, high) if need <= room(middle) else (low, middle - 1)
        return low

    return fit("low"), fit("best"), fit("high")


def longest_context(setup: Setup, load: Load, available: float) -> int:
    """Longest context, up to the model's own, at which ``load.users`` fit; 0 when not even one token does."""
    users = ceil_div(load.users, setup.replicas)
    limit = setup.spec.context_tokens or 1 << 20

    sizes = engine_named(setup.engine).request_sizes(run_of(setup, limit))

    def held(n: int) -> int:
        cached = replace(load, context_tokens=n, output_tokens=min(load.output_tokens, n)).cached_tokens
        return users * sizes(n - cached) + (sizes(cached) if cached else 0)

    return _last_below(held, limit, available)


def _last_below(held: Callable[[int], int], limit: int, available: float) -> int:
    """Largest ``n`` up to ``limit`` with ``held(n) <= available``; 0 if there is none. ``held`` never falls.

    Bytes grow nearly in proportion, so a straight line between the ends is tried before the middle.
    """
    low, high = 1, limit
    least, most = held(low), held(high)
    if least > available:
        return 0
    if most <= available:
        return limit
    straight = True
    while high - low > 1:
        guess = low + int((high - low) * (available - least) / (most - least)) if straight else (low + high) // 2
        guess = min(max(guess, low + 1), high - 1)
        found = held(guess)
        shrunk = high - low
        if found <= available:
            low, least = guess, found
        else:
            high, most = guess, found
        straight = high - low <= shrunk // 2 if straight else True
    return low


def latency_of(setup: Setup, load: Load) -> Latency:
    """First and later tokens under the load."""
    timing = timing_of(setup)
    users = ceil_div(load.users, setup.place.dp)
    middle = max(1, load.context_tokens - load.output_tokens // 2)
    tpot = timing.decode(users, middle)
    ttft = timing.prefill(load.prompt_tokens, load.cached_tokens, timing.local(users) - 1, middle)
    rate = Interval(load.users / tpot.high, load.users / tpot.best, load.users / tpot.low, tpot.tag)
    return Latency(
        ttft=ttft,
        burst=timing.burst(users, load.prompt_tokens, load.cached_tokens),
        tpot=tpot,
        ttft_bound=timing.bound_of_prefill(load.prompt_tokens, load.cached_tokens),
        tpot_bound=timing.bound_of_decode(users, middle),
        tokens_per_s=rate,
    )


def plan(setup: Setup, load: Load) -> Plan:
    """Answer for one setup and one load. Raises ``BadValue`` for what can never run (heads that do not divide...)."""
    _check(setup, load)
    budgets = budgets_of(setup, load.users)
    tightest = min(range(len(budgets)), key=lambda i: budgets[i].available.best)
    room = budgets[tightest].available
    own, shared = request_bytes_of(setup, load)
    fit = fitting_users(setup, load)
    capacity = engine_named(setup.engine).capacity(run_of(setup, load.context_tokens, room.best))
    return Plan(
        setup=setup,
        load=load,
        budgets=budgets,
        tightest=tightest,
        capacity=capacity,
        request_bytes=own,
        shared_bytes=shared,
        users_fit=fit,
        longest_tokens=longest_context(setup, load, room.best),
        alone_tokens=longest_context(setup, replace(load, users=1), room.best),
        latency=latency_of(setup, load),
        verdict=verdict_of(setup, load, budgets[tightest], own, shared, fit),
    )


def _check(setup: Setup, load: Load) -> None:
    limit = setup.spec.context_tokens
    if limit and load.context_tokens > limit:
        raise BadValue(
            "context",
            load.context_tokens,
            f"at most the model's own context of {limit:,} tokens",
            remedy=f"{load.context_tokens - limit:,} tokens too many",
        )


def verdict_of(setup: Setup, load: Load, budget: Budget, own: int, shared: int, fit: tuple[int, int, int]) -> Verdict:
    """What to tell a person first. Terms break in the order in which memory is taken."""
    left = budget.usable_bytes
    for term in budget.terms:
        left -= term.bytes.best
        if left < 0:
            said = (
                f"does not fit: {term.name} {format_bytes(term.bytes.best)} exceed what is left of "
                f"{format_bytes(budget.usable_bytes)} by {format_bytes(-left)} on each device"
            )
            return Verdict(False, False, said, term.name, -left)
    users = ceil_div(load.users, setup.replicas)
    if users > setup.sequences_for(load.users):
        said = (
            f"does not fit: {load.users:,} users at a time, the engine runs {setup.sequences:,} on each of "
            f"{setup.replicas:,} replicas (--sequences); the others would wait"
        )
        return Verdict(False, False, said, "sequences")
    need = users * own + shared
    if need > left:
        said = (
            f"does not fit: {load.users:,} users at {load.context_tokens:,} tokens need {format_bytes(need)} of cache "
            f"on each device, {format_bytes(left)} are left; {fit[1]:,} users fit"
        )
        return Verdict(False, False, said, "cache", need - left)
    sure = need <= budget.available.low
    doubt = "" if sure else f"; with the worst of every guess {fit[0]:,}"
    said = f"fits: {load.users:,} of {fit[1]:,} users at {load.context_tokens:,} tokens{doubt}"
    return Verdict(True, sure, said)

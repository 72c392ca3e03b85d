"""At which length, and at how many users, a step's limit turns: weights or cache, linear layers or attention, bytes or
arithmetic. Found by bisection on the very numbers that plans are made of; no closed form stands in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from typing import Final

from kvist.cost.roofline import Seconds
from kvist.cost.work import Chunk
from kvist.errors import BadValue
from kvist.planner.decide.prompt import OPEN_LIMIT_TOKENS, Parts, PromptClock, longest_asked
from kvist.planner.decide.turns import Turn, first_yes
from kvist.planner.plan import timing_of
from kvist.planner.setup import Setup
from kvist.planner.timing import Timing
from kvist.spec.model import ModelSpec
from kvist.units import ceil_div, format_bytes, format_seconds

FAR_TOKENS: Final = 1 << 40
MANY_USERS: Final = 1 << 16
MOST_STEPS: Final = 8192


@dataclass(frozen=True, slots=True)
class _Bytes:
    """What one decode step reads on one rank of every stage."""

    weights: float
    rows: float
    state: float

    @property
    def cache(self) -> float:
        return self.rows + self.state


def decode_turns(setup: Setup, users: int = 1) -> Turn:
    """The context at which a decode step reads as many bytes of cache as of weights.

    ``users`` are those of all replicas; all stand at the same length. Weights are what this batch reads (experts that
    it wakes, the head); cache is KV rows and recurrent state. Chunked attention forgets a chunk at a time: then
    ``at`` is where the cache first catches up, ``for_good`` where it stays ahead. Raises ``BadValue`` for no users.
    """
    timing = timing_of(setup)
    if users < 1:
        raise BadValue("users", users, "a count >= 1")
    batch = timing.local(ceil_div(users, setup.place.dp))

    def read(n: int) -> _Bytes:
        works = [work for work, _ in timing.works({Chunk(1, n): batch})]
        return _Bytes(
            sum(w.weight_bytes + w.head_bytes for w in works),
            sum(w.kv_read_bytes for w in works),
            sum(w.state_bytes for w in works) / 2,
        )

    def ahead(n: int) -> bool:
        now = read(n)
        return now.cache >= now.weights

    waves = lcm(*{x.retention.chunk_tokens or 1 for x in setup.spec.layers})
    if not ahead(FAR_TOKENS // waves * waves + waves - 1):
        return Turn(None, "tokens", "weights", "KV", _never_kv(setup.spec, users, read(FAR_TOKENS)))
    crest = first_yes(lambda k: ahead(k * waves - 1), 0, FAR_TOKENS // waves + 1)
    at = max(1, first_yes(ahead, (crest - 1) * waves - 1, crest * waves - 1))
    stays: int | None = at
    if waves > 1:
        dips = ahead(FAR_TOKENS // waves * waves)
        trough = first_yes(lambda k: ahead(k * waves), 0, FAR_TOKENS // waves) if dips else None
        stays = None if trough is None else max(at, first_yes(ahead, (trough - 1) * waves, trough * waves))
    reached = at <= longest_asked(setup)
    return Turn(at, "tokens", "weights", "KV", _kv_overtakes(setup, users, at, read(at), reached), stays, reached)


def _kv_overtakes(setup: Setup, users: int, at: int, now: _Bytes, reached: bool) -> str:
    state = f" (and {format_bytes(now.state)} of state)" if now.state else ""
    said = (
        f"with {users:,} user{'s' * (users > 1)} a decode step reads {format_bytes(now.weights)} of weights "
        f"{_where(setup)}; at {at:,} tokens of context it reads {format_bytes(now.rows)} of KV{state}"
    )
    return said if reached else f"{said}, but the model ends at {longest_asked(setup):,} tokens: weights stay the limit"


def _where(setup: Setup) -> str:
    return "on a device" if setup.place.pp == 1 else f"on one device of each of {setup.place.pp} stages"


def _never_kv(spec: ModelSpec, users: int, far: _Bytes) -> str:
    state = f" and {format_bytes(far.state)} of state" if far.state else ""
    return (
        f"never with {users:,} user{'s' * (users > 1)}: {_why_bounded(spec)}, so a step reads at most "
        f"{format_bytes(far.rows)} of KV{state} against {format_bytes(far.weights)} of weights"
    )


def _why_bounded(spec: ModelSpec) -> str:
    """What keeps a long context from costing more."""
    bounds = [x.retention.window_tokens or x.retention.chunk_tokens or 0 for x in spec.layers if x.retention.bounded]
    top = max((x.attention.top_rows for x in spec.layers), default=0)
    if bounds:
        return f"layers look back {max(bounds):,} tokens at most"
    if top:
        return f"a query reads its best {top:,} rows only"
    return "recurrent layers keep a state of fixed size"


def prefill_turns(setup: Setup) -> Turn:
    """The prompt length at which attention takes as many seconds as linear layers and head, over the whole prompt.

    The prompt is computed alone in steps of ``batched_tokens``. A rest of a few tokens reads all weights for those
    few, so that up to a step behind ``at`` the balance can tip back once; at whole steps it never does.
    """
    clock, step = PromptClock.of(setup), setup.batched_tokens
    limit = max(longest_asked(setup), min(OPEN_LIMIT_TOKENS, MOST_STEPS * step))

    def attention_wins(n: int) -> bool:
        return n > 0 and clock.parts(n).gap_s >= 0

    steps = 1  # whole steps of a prompt: attention's share of them only grows
    while steps * step < limit and not attention_wins(steps * step):
        steps *= 2
    if not attention_wins(min(steps * step, limit)):
        return Turn(None, "tokens", "linear layers", "attention", _never_attention(setup, limit, clock.parts(limit)))
    whole = first_yes(lambda k: attention_wins(min(k * step, limit)), steps // 2, min(steps, ceil_div(limit, step)))
    at = first_yes(attention_wins, (whole - 1) * step, min(whole * step, limit))
    now, reached = clock.parts(at), at <= longest_asked(setup)
    said = (
        f"a prompt of {at:,} tokens takes {format_seconds(now.linear_s)} in linear layers and "
        f"{format_seconds(now.attention_s)} in attention"
    )
    if not reached:
        said += f", but the model ends at {longest_asked(setup):,} tokens"
    return Turn(at, "tokens", "linear layers", "attention", said, at, reached)


def _never_attention(setup: Setup, limit: int, last: Parts) -> str:
    free = all(x.retention.bounded or not x.cache_parts for x in setup.spec.layers)
    return (
        f"not within {limit:,} tokens: attention takes {format_seconds(last.attention_s)} of such a prompt, "
        f"linear layers {format_seconds(last.linear_s)}" + (f" ({_why_bounded(setup.spec)})" if free else "")
    )


def batch_turns(setup: Setup, context_tokens: int) -> Turn:
    """How many users (of all replicas) turn a decode step from bound by bytes to bound by arithmetic.

    Each of linear layers and attention is bound by one of the two; the step turns when parts bound by arithmetic take
    as long as parts bound by bytes. Whether so many users fit is another question (``Plan.users_fit``).
    """
    return _batch(setup, context_tokens, attention=True)


def linear_batch_turns(setup: Setup) -> Turn:
    """The same of linear layers and head alone: the batch at the device's ridge, whatever the context."""
    return _batch(setup, 1, attention=False)


def _batch(setup: Setup, context_tokens: int, *, attention: bool) -> Turn:
    timing = timing_of(setup)

    def turned(batch: int) -> bool:
        sides = [_sides(p, attention) for p in timing.parts({Chunk(1, context_tokens): batch})]
        return sum(s[0] for s in sides) >= sum(s[1] for s in sides)

    what = f"a decode step at {context_tokens:,} tokens" if attention else "the linear layers of a decode step"
    if not turned(MANY_USERS):
        return Turn(None, "users", "bytes", "arithmetic", f"{what}: never, {_why_bytes(timing, context_tokens)}")
    batch = first_yes(turned, 0, MANY_USERS)
    users = (batch - 1) * setup.replicas + 1
    parts = timing.parts({Chunk(1, context_tokens): batch})
    arithmetic, read = (sum(_sides(p, attention)[i] for p in parts) for i in (0, 1))
    said = (
        f"{what}: with {users:,} users, {batch:,} on a rank, parts bound by arithmetic take "
        f"{format_seconds(arithmetic)} and parts bound by bytes {format_seconds(read)}"
    )
    return Turn(users, "users", "bytes", "arithmetic", said, users, True)


def _sides(parts: Seconds, attention: bool) -> tuple[float, float]:
    """Seconds bound by arithmetic, and by bytes."""
    shares = [(parts.linear_bound, parts.linear_s + parts.head_s)]
    if attention:
        shares.append((parts.attention_bound, parts.attention_s))
    arithmetic = sum(s for bound, s in shares if bound == "compute")
    return arithmetic, sum(s for _, s in shares) - arithmetic


def _why_bytes(timing: Timing, context_tokens: int) -> str:
    """What one more user adds to a batch that is already large."""
    parts = timing.parts({Chunk(1, context_tokens): MANY_USERS})
    linear, read = (sum(getattr(p, name) for p in parts) / MANY_USERS for name in ("linear_s", "attention_s"))
    if parts[0].linear_bound != "compute":
        return f"even {MANY_USERS:,} users on a rank do not pay for reading the weights"
    return (
        f"each user adds {format_seconds(read)} of cache to read (rows and state), and only {format_seconds(linear)} "
        "of arithmetic in linear layers"
    )

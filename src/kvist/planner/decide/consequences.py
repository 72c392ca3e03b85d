"""What follows from a setup and a load, in causal order: each figure of a plan, and the names of what it depends on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from kvist.cost.work import Chunk, Work
from kvist.planner.plan import Plan, timing_of
from kvist.spec.shard import shard, with_drafts
from kvist.units import ceil_div


@dataclass(frozen=True, slots=True)
class Consequence:
    """A figure of a plan. ``causes`` name settings (as ``compare`` calls them) or figures further up."""

    name: str
    unit: str
    of: Callable[[Plan], float]
    causes: tuple[str, ...]


def token_bytes(plan: Plan) -> float:
    """Bytes that one more token adds on one rank of the tightest stage, while no window is full."""
    setup = plan.setup
    spec = shard(setup.spec, setup.place, plan.tightest)
    drafts = 0
    if setup.draft_layers and plan.tightest == setup.place.pp - 1:
        longer = with_drafts(setup.spec, setup.draft_layers).kv_bytes_per_token(setup.kv_format)
        drafts = longer - setup.spec.kv_bytes_per_token(setup.kv_format)
    return (spec.kv_bytes_per_token(setup.kv_format) + drafts) / setup.place.cp


def decode_works(plan: Plan) -> tuple[Work, ...]:
    """One token of every user in the middle of its answer: the work of one rank of each stage."""
    timing, load = timing_of(plan.setup), plan.load
    middle = max(1, load.context_tokens - load.output_tokens // 2)
    users = timing.local(ceil_div(load.users, plan.setup.place.dp))
    return tuple(work for work, _ in timing.works({Chunk(1, middle): users}))


def _weights_read(plan: Plan) -> float:
    return sum(w.weight_bytes + w.head_bytes for w in decode_works(plan))


def _cache_read(plan: Plan) -> float:
    return sum(w.kv_read_bytes + w.state_bytes / 2 for w in decode_works(plan))


def _term(name: str, plan: Plan) -> float:
    return next((t.bytes.best for t in plan.budget.terms if t.name == name), 0.0)


_CUT: Final = ("model", "placement")
_WIDTHS: Final = ("bytes of a weight", "bytes of an expert", "bytes of a weight of the head")
_ASKED: Final = ("context", "output", "hit rate")
_ENGINE: Final = ("engine", "tokens of a block", "knobs", "tokens of a step", "draft layers", "draft tokens")
_ROOM: Final = ("usable memory", "weights", "activations", "graphs", "runtime")
_CLOCK: Final = ("device", "placement", "clock", "format of products")

CONSEQUENCES: Final = (
    Consequence("KV bytes of a token", "bytes", token_bytes, ("KV format", *_CUT, "draft layers")),
    Consequence("usable memory", "bytes", lambda p: p.budget.usable_bytes, ("device", "memory fraction")),
    Consequence("weights", "bytes", partial(_term, "weights"),
                (*_CUT, *_WIDTHS, "weights' source", "draft layers")),
    Consequence("activations", "bytes", partial(_term, "activations"),
                (*_CUT, "tokens of a step", "sequences", "overheads")),
    Consequence("graphs", "bytes", partial(_term, "graphs"), ("device", "model", "draft layers", "overheads")),
    Consequence("runtime", "bytes", partial(_term, "runtime"), ("device", "placement", "overheads")),
    Consequence("cache room", "bytes", lambda p: p.budget.available.best, _ROOM),
    Consequence("shared cache", "bytes", lambda p: p.shared_bytes, ("KV bytes of a token", *_ASKED, *_ENGINE)),
    Consequence("cache of a user", "bytes", lambda p: p.request_bytes, ("KV bytes of a token", *_ASKED, *_ENGINE)),
    Consequence("users that fit", "users", lambda p: p.users_fit[1],
                ("cache room", "cache of a user", "shared cache", "placement")),
    Consequence("longest context", "tokens", lambda p: p.longest_tokens,
                ("cache room", "KV bytes of a token", "users", "hit rate", "output", *_CUT, *_ENGINE)),
    Consequence("weights read by a step", "bytes", _weights_read,
                (*_CUT, *_WIDTHS, "users")),
    Consequence("cache read by a step", "bytes", _cache_read,
                ("KV bytes of a token", "context", "output", "users", *_CUT)),
    Consequence("TPOT", "seconds", lambda p: p.latency.tpot.best,
                ("weights read by a step", "cache read by a step", "users", *_CLOCK)),
    Consequence("TTFT", "seconds", lambda p: p.latency.ttft.best,
                ("context", "output", "hit rate", "tokens of a step", "users", "model", *_WIDTHS,
                 "KV bytes of a token", *_CLOCK)),
    Consequence("tokens per second", "tokens/s", lambda p: p.latency.tokens_per_s.best, ("users", "TPOT")),
)  # fmt: skip
"""From what a token takes to what users feel."""

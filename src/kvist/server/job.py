"""What every protocol boils down to: token ids, how to continue them, and for whom."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvist.engine.event import FinishReason, Timeline, Usage
from kvist.server.tenants import ANYONE, Tenant
from kvist.spec.sampling import Sampling
from kvist.step import TokenLogprob


@dataclass(frozen=True, slots=True)
class Job:
    """One request to the model. ``max_tokens`` None: up to the server's bound or the end of the context.

    ``salt`` is the cache namespace asked for, inside the tenant's own. ``name`` is what the client calls the request,
    ``kind`` which endpoint it came by. ``show_special`` keeps control tokens in the text (tool parsers read them).
    ``kept_tokens`` of the prompt are ids the model emitted, where the text alone would have given others from
    ``first_rewritten`` on.
    """

    prompt: tuple[int, ...]
    max_tokens: int | None = None
    sampling: Sampling = field(default_factory=Sampling)
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    prompt_logprobs: int | None = None
    priority: int = 0
    salt: str = ""
    extras: tuple[bytes, ...] = ()
    reuse: bool = True
    tenant: Tenant = ANYONE
    name: str = ""
    kind: str = "completion"
    show_special: bool = False
    kept_tokens: int = 0
    first_rewritten: int | None = None


@dataclass(frozen=True, slots=True)
class Finish:
    """How one sample ended. ``stop`` is the stop string or the end token's id that ended it, if one did."""

    reason: FinishReason
    usage: Usage
    timeline: Timeline
    stop: str | int | None = None
    error: str = ""
    of_request: bool = False
    """The error lies in what was asked."""


@dataclass(frozen=True, slots=True)
class Delta:
    """What sample ``sample`` gained: settled ``text`` (perhaps none yet), the tokens drawn, and its end when it came.

    Tokens and text need not match one to one: text is held back while it may become a stop string or half a character.
    ``cached_tokens`` comes with a sample's first token: what of its prompt was in the cache.
    """

    sample: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    cached_tokens: int | None = None
    finish: Finish | None = None

"""What a caller asks of the engine, and what comes back: ``Request`` down, ``Event`` up. Both frozen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from kvist.cache.keys import space_of
from kvist.errors import BadValue
from kvist.ids import RequestId, SeqId
from kvist.spec.sampling import Sampling
from kvist.step import TokenLogprob

TOKEN_LIMIT: Final = 2**31
"""Token ids are kept in 32 bits."""

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt and how to continue it, ``n`` times. Raises ``BadValue``.

    A sequence ends with ``stop`` when it draws one of ``stop_ids`` (the token is part of the output; before
    ``sampling.min_tokens`` outputs they are barred, under ``ignore_eos`` they are tokens like any other) and with
    ``length`` after ``max_tokens``, or earlier at the model's context or at the most tokens the pool can hold.
    Sample ``i`` of ``n`` uses ``sampling.seed + i``. A higher ``priority`` runs first among those of its tenant.
    ``prompt_logprobs`` asks for that many alternatives per prompt token; such a request computes its whole prompt.
    ``salt`` and ``extras`` enter the cache's root: requests share blocks only where both agree (``extras`` are digests
    of 128 bits or more). ``reuse=False`` takes nothing from the cache and leaves nothing in it. ``tenant`` is whose
    request it is: compute and cache are shared fairly between tenants, by weight.
    """

    id: RequestId
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    stop_ids: tuple[int, ...] = ()
    n: int = 1
    priority: int = 0
    salt: bytes = b""
    extras: tuple[bytes, ...] = ()
    prompt_logprobs: int | None = None
    reuse: bool = True
    ignore_eos: bool = False
    tenant: str = ""

    def __post_init__(self) -> None:
        if not self.prompt:
            raise BadValue("prompt", (), "at least one token", remedy="send a prompt, or the model's BOS token")
        if min(self.prompt) < 0 or max(self.prompt) >= TOKEN_LIMIT:
            raise BadValue("prompt", (min(self.prompt), max(self.prompt)), f"token ids in [0, {TOKEN_LIMIT})")
        space_of(self.salt, self.extras)
        if self.max_tokens < 1:
            raise BadValue("max_tokens", self.max_tokens, "a count >= 1")
        if self.n < 1:
            raise BadValue("n", self.n, "a count >= 1")
        if self.stop_ids and min(self.stop_ids) < 0:
            raise BadValue("stop_ids", self.stop_ids, "token ids >= 0")
        if self.prompt_logprobs is not None and not 0 <= self.prompt_logprobs <= 20:
            raise BadValue("prompt_logprobs", self.prompt_logprobs, "a count in [0, 20]")

    @property
    def ending_ids(self) -> tuple[int, ...]:
        """Ids that end a sequence when drawn."""
        return () if self.ignore_eos else self.stop_ids


@dataclass(frozen=True, slots=True)
class Usage:
    """What one finished sequence cost.

    ``cached_tokens`` + prompt tokens computed for the first time = ``prompt_tokens``; recomputation after a preemption
    is apart, in ``recomputed_tokens``. ``loaded_tokens`` of the cached ones came from tiers. ``held_blocks`` were in
    its tables at the end, shared ones included, when ``computed_tokens`` positions were in the cache.
    """

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    computed_tokens: int
    recomputed_tokens: int
    preemptions: int
    held_blocks: int
    loaded_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Event:
    """One output token (number ``index`` of sample ``sample``), or the end of a sequence, or both.

    ``token`` is None when a sequence ends without drawing one (aborted, failed, cut by a stop string). The last event
    of a sequence carries ``finish_reason`` and ``usage``; the first carries ``prompt_logprobs`` when asked for.
    ``of_request``: the error lies in what was asked.
    """

    request: RequestId
    seq: SeqId
    sample: int
    index: int
    token: int | None = None
    logprob: TokenLogprob | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    error: str = ""
    of_request: bool = False

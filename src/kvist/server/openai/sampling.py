"""From a request's fields to a ``Sampling`` and a ``Job``."""

from __future__ import annotations

import secrets

from starlette.requests import Request

from kvist.errors import BadValue
from kvist.server.desk import name_of, tenant_of
from kvist.server.job import Job
from kvist.server.openai.schema import Generation
from kvist.spec.sampling import Sampling


def sampling_of(ask: Generation, *, logprobs: int | None) -> Sampling:
    """How to draw. Raises ``BadValue`` naming the field."""
    plain = Sampling()
    return Sampling(
        temperature=_or(ask.temperature, plain.temperature),
        top_k=max(0, ask.top_k or 0),
        top_p=_or(ask.top_p, plain.top_p),
        min_p=_or(ask.min_p, plain.min_p),
        repetition_penalty=_or(ask.repetition_penalty, plain.repetition_penalty),
        presence_penalty=_or(ask.presence_penalty, plain.presence_penalty),
        frequency_penalty=_or(ask.frequency_penalty, plain.frequency_penalty),
        logit_bias=_biases(ask.logit_bias or {}),
        seed=secrets.randbits(63) if ask.seed is None else ask.seed,
        logprobs=logprobs,
        min_tokens=ask.min_tokens or 0,
    )


def job_of(ask: Generation, request: Request, *, max_tokens: int | None, logprobs: int | None, kind: str) -> Job:
    """Everything but the prompt. Raises ``BadValue``."""
    if max_tokens is not None and (ask.min_tokens or 0) > max(1, max_tokens):
        raise BadValue("min_tokens", ask.min_tokens, f"at most max_tokens={max_tokens}")
    if ask.stream_options is not None and not ask.stream:
        raise BadValue("stream_options", "(an object)", "stream=true beside it")
    return Job(
        prompt=(),
        max_tokens=max_tokens,
        sampling=sampling_of(ask, logprobs=logprobs),
        n=ask.n or 1,
        stop=tuple(ask.stop or ()),
        stop_ids=tuple(ask.stop_token_ids or ()),
        ignore_eos=bool(ask.ignore_eos),
        priority=ask.priority or 0,
        salt=ask.cache_salt or "",
        extras=tuple(map(bytes.fromhex, ask.cache_extras or ())),
        reuse=ask.cache_prompt is not False,
        tenant=tenant_of(request),
        name=name_of(request),
        kind=kind,
    )


def _or(value: float | None, default: float) -> float:
    return default if value is None else float(value)


def _biases(given: dict[str, float]) -> tuple[tuple[int, float], ...]:
    biases: dict[int, float] = {}
    for text, bias in given.items():
        if int(text) in biases:
            raise BadValue("logit_bias", text, "each token id once")
        biases[int(text)] = float(bias)
    return tuple(sorted(biases.items()))

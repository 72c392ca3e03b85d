"""From errors to HTTP: a status, a code for programs, and the numbers for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvist.errors import (
    BadValue,
    CapacityError,
    KvistError,
    ModelError,
    PoolTooSmall,
    PromptTooLong,
    StateError,
    UsageError,
)


class Refusal(KvistError):
    """A request that is not served. ``code`` is stable; ``param`` names the field at fault."""

    def __init__(
        self,
        status: int,
        code: str,
        what: str,
        *,
        remedy: str = "",
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(what, remedy=remedy)
        self.status = status
        self.code = code
        self.param = param
        self.headers = dict(headers or {})


def busy(what: str, *, retry_after_s: float, status: int = 429, code: str = "busy") -> Refusal:
    """Come again later: in about so many seconds."""
    seconds = max(1, round(retry_after_s))
    return Refusal(status, code, what, remedy=f"retry in {seconds} s", headers={"Retry-After": str(seconds)})


def failure(error: str, *, of_request: bool) -> Refusal:
    """An answer that ended with an error: what was asked cannot be done, or we could not do it."""
    if of_request:
        return Refusal(400, "impossible_request", error)
    return Refusal(500, "engine_error", error or "the engine failed on this request")


_STATUS: Final[tuple[tuple[type[KvistError], int, str], ...]] = (
    (PromptTooLong, 400, "context_length_exceeded"),
    (PoolTooSmall, 400, "context_length_exceeded"),
    (BadValue, 400, "invalid_value"),
    (UsageError, 400, "invalid_request"),
    (ModelError, 400, "model_error"),
    (CapacityError, 503, "out_of_memory"),
    (StateError, 500, "engine_error"),
)


def refusal_of(error: KvistError) -> Refusal:
    """The refusal that an error of ours becomes."""
    if isinstance(error, Refusal):
        return error
    for kind, status, code in _STATUS:
        if isinstance(error, kind):
            param = error.name if isinstance(error, BadValue) else None
            return Refusal(status, code, error.what, remedy=error.remedy, param=param)
    return Refusal(500, "internal_error", error.what, remedy=error.remedy)

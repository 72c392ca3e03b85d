"""Errors in the shape that a path's clients expect."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from kvist.server.refuse import Refusal
from kvist.server.stream import Json

ANTHROPIC: Final = "/v1/messages"
_OPENAI_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_ANTHROPIC_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}


def error_body(refusal: Refusal, path: str) -> dict[str, Any]:
    """The error as a JSON object."""
    ours = refusal.status >= 500
    message = str(refusal)
    if path.startswith(ANTHROPIC):
        kind = _ANTHROPIC_TYPES.get(refusal.status, "api_error" if ours else "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": message, "code": refusal.code}}
    kind = _OPENAI_TYPES.get(refusal.status, "server_error" if ours else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": refusal.param, "code": refusal.code}}


def refuse(refusal: Refusal, path: str) -> Response:
    """The error as an answer."""
    return Json(error_body(refusal, path), status_code=refusal.status, headers=refusal.headers)

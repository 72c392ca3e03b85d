"""The OpenAI field names: bodies that are sent, events that come back. The only file that knows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

PATHS: Final = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
EXTRAS: Final[dict[str, Any]] = {
    "return_token_ids": True,
    "ignore_eos": True,
    "stream_options": {"include_usage": True},
}
"""Fields that not every server takes, in the order in which they are given up."""

_TEXTS: Final = ("content", "reasoning_content", "reasoning")


class Failure(Exception):
    """A request went wrong. ``kind``: refused, timeout, cut, http_NNN, not_sse, garbage, server_error, empty."""

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        self.message = message
        super().__init__(f"{kind}: {message}")


@dataclass(frozen=True, slots=True)
class Piece:
    """What one event says. Counts are None where it is silent."""

    is_choice: bool
    text: str = ""
    token_ids: tuple[int, ...] = ()
    finish_reason: str = ""
    has_tool_call: bool = False
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None

    @property
    def carries(self) -> bool:
        """Whether it carries at least one token."""
        return bool(self.text or self.token_ids or self.has_tool_call)


def body(
    model: str, prompt: Mapping[str, Any], max_tokens: int, temperature: float, extras: Sequence[str]
) -> dict[str, Any]:
    """The request; ``prompt`` is ``{"prompt": ids or text}`` or ``{"messages": [...]}``."""
    common = {"model": model, "max_tokens": max_tokens, "temperature": temperature, "stream": True}
    return {**common, **{name: EXTRAS[name] for name in extras}, **prompt}


def read_piece(event: Any) -> Piece:
    """One event's JSON. Raises ``Failure`` (garbage, server_error)."""
    if not isinstance(event, dict):
        raise Failure("garbage", f"an event is {type(event).__name__}, not an object")
    if event.get("error") or event.get("object") == "error":
        raise Failure("server_error", error_message(event))
    try:
        choices = event.get("choices") or []
        prompt, output, cached = _usage(event)
        if not choices:
            return Piece(False, prompt_tokens=prompt, output_tokens=output, cached_tokens=cached)
        choice = choices[0]
        said = choice.get("delta") or choice
        text = said.get("text") or "".join(said[name] for name in _TEXTS if said.get(name))
        if not isinstance(text, str):
            raise TypeError(f"text is {type(text).__name__}")
        return Piece(
            True,
            text,
            tuple(choice.get("token_ids") or ()),
            choice.get("finish_reason") or "",
            bool(said.get("tool_calls")),
            prompt,
            output,
            cached,
        )
    except (TypeError, ValueError, AttributeError, KeyError, IndexError) as error:
        raise Failure("garbage", f"an event of no known shape ({error}): {str(event)[:120]}") from error


def _usage(event: Mapping[str, Any]) -> tuple[int | None, int | None, int | None]:
    """(prompt, output, cached) tokens; llama.cpp tells the last in ``timings``."""
    usage = event.get("usage") or {}
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    if cached is None:
        cached = (event.get("timings") or {}).get("cache_n")
    prompt, output = usage.get("prompt_tokens"), usage.get("completion_tokens")
    for count in (prompt, output, cached):
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 0):
            raise ValueError(f"a count of {count!r}")
    return prompt, output, cached


def error_message(answer: Any) -> str:
    """The sentence inside an error object, in whichever place it is."""
    if isinstance(answer, dict):
        error = answer.get("error", answer)
        if isinstance(error, dict):
            error = error.get("message") or error.get("detail") or error
        answer = error
    return str(answer)[:300]

"""From a chat request to a ``ChatAsk``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvist.errors import BadValue
from kvist.server.chat import ChatAsk
from kvist.server.job import Job
from kvist.server.openai.chat_schema import ChatRequest, Message, Tool
from kvist.text.template_args import check_template_kwargs


def ask_of(
    messages: Sequence[Message],
    tools: Sequence[Tool] | None,
    template_kwargs: dict[str, Any] | None,
    add_generation_prompt: bool | None,
    job: Job,
) -> ChatAsk:
    """A conversation as it was sent. Raises ``BadValue``."""
    extra = check_template_kwargs(template_kwargs)
    if add_generation_prompt is False:
        extra["add_generation_prompt"] = False
    return ChatAsk(
        messages=[_message(message, n) for n, message in enumerate(messages)],
        job=job,
        tools=[tool.model_dump(exclude_unset=True, exclude_none=True) for tool in tools or ()],
        template_extra=extra,
    )


def tool_choice(ask: ChatRequest) -> str:
    """``auto``, ``none``, ``required``, or the name of the function to call. Raises ``BadValue``."""
    choice = ask.tool_choice
    if choice is None:
        return "auto"
    if choice in ("auto", "none", "required"):
        return str(choice)
    function = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        remedy = 'to force one, send {"type": "function", "function": {"name": "..."}}'
        raise BadValue("tool_choice", str(choice)[:80], "auto, none, required or a function", remedy=remedy)
    if name not in [tool.function.name for tool in ask.tools or ()]:
        raise BadValue("tool_choice.function.name", name[:80], "the name of one of the tools")
    return name


def score_count(ask: ChatRequest) -> int | None:
    """Alternatives per token; None for no scores. Raises ``BadValue``."""
    if ask.top_logprobs is not None and not ask.logprobs:
        raise BadValue("top_logprobs", ask.top_logprobs, "logprobs=true beside it")
    return (ask.top_logprobs or 0) if ask.logprobs else None


def most_tokens(ask: ChatRequest) -> int | None:
    """The bound of the answer under either name. Raises ``BadValue`` where they differ."""
    old, new = ask.max_tokens, ask.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise BadValue("max_completion_tokens", new, f"the same as max_tokens={old}", remedy="send one of them")
    return old if new is None else new


def _message(message: Message, index: int) -> dict[str, Any]:
    plain = message.model_dump(exclude_unset=True, exclude_none=True)
    if "function_call" in plain:
        raise BadValue(f"messages[{index}].function_call", "...", "tool_calls instead")
    return plain

"""Request bodies that hold a conversation."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from kvist.server.openai.fields import Alternatives, Count, Name, Strict
from kvist.server.openai.schema import Generation

_CHOICE = {
    "anyOf": [
        {"type": "string", "enum": ["auto", "none", "required"]},
        {
            "type": "object",
            "required": ["type", "function"],
            "properties": {
                "type": {"const": "function"},
                "function": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}},
            },
        },
    ]
}


class Part(Strict):
    """A piece of a message."""

    type: str = Field(description="text; nothing else is supported")
    text: str | None = None


class CalledFunction(Strict):
    """The function that an earlier answer called."""

    name: str = Field(max_length=256)
    arguments: str | dict[str, Any] | None = None


class ToolCall(Strict):
    """A tool call of an earlier answer."""

    id: str | None = Field(None, max_length=256)
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(Strict):
    """One message. Fields beyond these go to the chat template."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    tool_calls: list[ToolCall] | None = Field(None, max_length=128)
    tool_call_id: str | None = Field(None, max_length=256)


class Function(Strict):
    """What the model may call."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    """A function offered to the model."""

    type: Literal["function"]
    function: Function


class Talk(Strict):
    """What makes a prompt of a conversation."""

    messages: list[Message] = Field(min_length=1, max_length=16384)
    tools: list[Tool] | None = Field(None, max_length=128)
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="Arguments for the chat template.")


class ChatRequest(Talk, Generation):
    """``POST /v1/chat/completions``."""

    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Alternatives | None = None
    tool_choice: Annotated[Any, WithJsonSchema(_CHOICE)] = None
    parallel_tool_calls: bool | None = None


class TokenizeRequest(Strict):
    """``POST /tokenize``: a text, or a conversation."""

    model: str | None = Field(None, max_length=1024)
    prompt: str | None = None
    messages: list[Message] | None = Field(None, min_length=1, max_length=16384)
    tools: list[Tool] | None = Field(None, max_length=128)
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_special_tokens: bool | None = None
    parse_special: bool | None = None
    return_token_strs: bool | None = None

"""What a client may send to ``/v1/responses``."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from kvist.errors import BadValue
from kvist.server.check import bad
from kvist.server.ignored import Ignored

MOST_TOKENS: Final = 1 << 31
MAX_ITEMS: Final = 100_000
MAX_METADATA: Final = 16
MAX_KEY_CHARS: Final = 64
MAX_VALUE_CHARS: Final = 512
MAX_ID_CHARS: Final = 256
_UNSUPPORTED: Final = ("background", "context_management", "conversation", "moderation", "prompt", "top_logprobs")
_IGNORED: Final = ("include", "max_tool_calls", "safety_identifier", "stream_options", "user")
_LOGPROBS: Final = "message.output_text.logprobs"


class ResponsesBody(BaseModel):
    """A request for a response. ``input``, ``tools`` and ``text`` are read by hand (see ``responses_ask.py``).

    ``seed`` is an addition: the same seed draws the same answer.
    """

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False, protected_namespaces=())

    model: str | None = None
    input: str | list[Any]
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1, le=MOST_TOKENS)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    stream: bool | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    text: dict[str, Any] | None = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    truncation: Literal["disabled", "auto"] | None = None
    metadata: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    prompt_cache_key: str | None = Field(None, max_length=1024)
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    prompt_cache_options: dict[str, Any] | None = None
    service_tier: str | None = None
    include: list[Any] | None = None
    max_tool_calls: int | None = None
    safety_identifier: str | None = None
    stream_options: dict[str, Any] | None = None
    user: str | None = None
    background: bool | None = None
    top_logprobs: int | None = None
    context_management: Any = None
    conversation: Any = None
    moderation: Any = None
    prompt: Any = None
    seed: int | None = Field(None, ge=0, lt=1 << 63)

    def check(self, ignored: Ignored) -> None:
        """Raises ``BadValue`` for what is known and cannot be done; notes what is not acted upon."""
        for name in _UNSUPPORTED:
            if getattr(self, name):
                raise BadValue(name, "...", "nothing: this is not supported", remedy=f"leave {name} out")
        if self.truncation == "auto":
            remedy = "leave turns out yourself: what was cut silently could not be found in the cache"
            raise BadValue("truncation", "auto", "disabled", remedy=remedy)
        if _LOGPROBS in (self.include or ()):
            raise BadValue("include", _LOGPROBS, "no log-probabilities", remedy="ask /v1/chat/completions for them")
        for name in _IGNORED:
            if getattr(self, name):
                ignored.add(name)
        self._check_metadata()
        self._check_cache_options(ignored)

    def _check_metadata(self) -> None:
        metadata = self.metadata or {}
        if len(metadata) > MAX_METADATA:
            raise BadValue("metadata", f"{len(metadata)} entries", f"at most {MAX_METADATA}")
        for key, value in metadata.items():
            if len(key) > MAX_KEY_CHARS:
                raise bad("metadata", key, f"keys of at most {MAX_KEY_CHARS} characters")
            if not isinstance(value, str) or len(value) > MAX_VALUE_CHARS:
                raise bad(f"metadata.{key}", value, f"a string of at most {MAX_VALUE_CHARS} characters")

    def _check_cache_options(self, ignored: Ignored) -> None:
        options = self.prompt_cache_options or {}
        for name, allowed in (("mode", ("implicit", "explicit")), ("ttl", ("30m", "12h"))):
            if options.get(name) not in (None, *allowed):
                raise bad(f"prompt_cache_options.{name}", options[name], " or ".join(allowed))
        if options.get("prewarm"):
            remedy = "send the request with max_output_tokens=1: its prompt is cached then"
            raise BadValue("prompt_cache_options.prewarm", True, "false", remedy=remedy)
        if options.get("comparison_response_id") is not None:
            ignored.add("prompt_cache_options.comparison_response_id")

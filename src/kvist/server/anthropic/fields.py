"""What a client may send to ``/v1/messages``."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from kvist.errors import BadValue

MAX_MESSAGES: Final = 100_000
MOST_TOKENS: Final = 1 << 31
_UNSUPPORTED: Final = ("container", "context_management", "mcp_servers")
IGNORED: Final = ("diagnostics", "inference_geo", "user_profile_id", "workspace_id")


class CountBody(BaseModel):
    """What makes a prompt. ``messages``, ``system``, ``tools`` are read by hand (see ``conversation.py``)."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False, protected_namespaces=())

    model: str
    messages: list[Any] = Field(min_length=1, max_length=MAX_MESSAGES)
    system: str | list[Any] | None = None
    tools: list[Any] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None
    speed: Literal["standard", "fast"] | None = None
    container: Any = None
    context_management: Any = None
    mcp_servers: Any = None
    diagnostics: Any = None
    inference_geo: Any = None
    user_profile_id: Any = None
    workspace_id: Any = None

    def check_supported(self) -> None:
        """Raises ``BadValue`` for what is known and cannot be done."""
        for name in _UNSUPPORTED:
            if getattr(self, name):
                raise BadValue(name, "...", "nothing: this is not supported", remedy=f"leave {name} out")
        if self.speed == "fast":
            raise BadValue("speed", "fast", "standard")


class MessagesBody(CountBody):
    """A request for an answer. ``seed`` is an addition: the same seed draws the same answer."""

    max_tokens: int = Field(ge=1, le=MOST_TOKENS)
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0, le=MOST_TOKENS)
    metadata: dict[str, Any] | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    seed: int | None = Field(None, ge=0, lt=1 << 63)

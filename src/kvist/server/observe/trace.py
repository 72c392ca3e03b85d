"""The caller's place in its own trace, from the door to whoever draws spans. Each task has a value of its own."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

PARENT: Final[ContextVar[str]] = ContextVar("kvist_traceparent", default="")
"""The W3C ``traceparent`` header of the request being answered."""

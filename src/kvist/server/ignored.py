"""Fields of a request that were taken and not acted upon: named in a header, so that nobody has to guess."""

from __future__ import annotations

import re
from typing import Final

from pydantic import BaseModel

HEADER: Final = "X-Kvist-Ignored"
MOST_NAMES: Final = 32
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.\[\]-]{1,64}")


class Ignored:
    """Names of such fields, each once. With a ``body``, all that it does not describe and that are not null."""

    def __init__(self, body: BaseModel | None = None) -> None:
        extra = (body.model_extra if body is not None else None) or {}
        self._names = dict.fromkeys(name for name, value in extra.items() if value is not None)

    def add(self, name: str) -> None:
        """One more."""
        self._names[name] = None

    @property
    def header(self) -> dict[str, str]:
        """``X-Kvist-Ignored``, or nothing. Names that are no plain words are not repeated."""
        names = [name if _PLAIN.fullmatch(name) else "(other)" for name in self._names]
        more = [f"+{len(names) - MOST_NAMES}"] if len(names) > MOST_NAMES else []
        return {HEADER: ", ".join([*names[:MOST_NAMES], *more])} if names else {}

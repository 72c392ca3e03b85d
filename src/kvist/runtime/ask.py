"""How a caller wants a prompt continued: checked at once, without loading anything."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final

from kvist.errors import BadValue
from kvist.spec.sampling import Sampling

MOST_SAMPLES: Final = 256


@dataclass(frozen=True, slots=True)
class Ask:
    """How to continue a prompt. Raises ``BadValue``.

    ``stop`` strings are cut from the text; ``n`` samples share the prompt's blocks and draw with seeds ``seed``,
    ``seed + 1``... The seed is part of ``sampling`` (0 unless given): the same call gives the same answer.
    """

    max_tokens: int = 128
    sampling: Sampling = field(default_factory=lambda: Sampling(temperature=0.0))
    n: int = 1
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    prompt_logprobs: int | None = None
    reuse: bool = True
    salt: bytes = b""

    def __post_init__(self) -> None:
        if type(self.max_tokens) is not int or self.max_tokens < 1:
            raise BadValue("max_tokens", self.max_tokens, "a count >= 1", remedy="ask for at least one token")
        if type(self.n) is not int or not 1 <= self.n <= MOST_SAMPLES:
            raise BadValue("n", self.n, f"a count in [1, {MOST_SAMPLES}]", remedy="ask again for more samples")
        if not isinstance(self.stop, tuple) or not all(isinstance(s, str) and s for s in self.stop):
            raise BadValue("stop", self.stop, "strings of at least one character", remedy="leave empty stops out")
        for name in ("ignore_eos", "reuse"):
            if type(getattr(self, name)) is not bool:
                raise BadValue(name, getattr(self, name), "True or False")
        if not isinstance(self.salt, bytes):
            raise BadValue("salt", self.salt, "bytes")
        if self.prompt_logprobs is not None and type(self.prompt_logprobs) is not int:
            raise BadValue("prompt_logprobs", self.prompt_logprobs, "a count in [0, 20]")


ASK_FIELDS: Final = tuple(f for f in Ask.__dataclass_fields__ if f != "sampling")


def ask_with(ask: Ask | None, given: dict[str, Any]) -> Ask:
    """``ask`` with keywords laid over it: fields of ``Ask`` or ``Sampling``. Raises ``BadValue`` for any other."""
    how = Ask() if ask is None else ask
    if not isinstance(how, Ask):
        raise BadValue("ask", how, "an Ask, or keywords such as max_tokens=16")
    known = (*ASK_FIELDS, *Sampling.__dataclass_fields__)
    for name in given:
        if name not in known:
            raise BadValue(name, given[name], f"one of {', '.join(known)}")
    mine = {k: v for k, v in given.items() if k in ASK_FIELDS}
    if isinstance(mine.get("stop"), str):
        mine["stop"] = (mine["stop"],)
    elif isinstance(mine.get("stop"), list):
        mine["stop"] = tuple(mine["stop"])
    return replace(how, **mine, sampling=replace(how.sampling, **{k: v for k, v in given.items() if k not in mine}))

"""What is served: a model's two sides (text and engine) and what there is to say about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from kvist.config import EngineConfig
from kvist.engine.engine import Engine
from kvist.spec.layout import CacheLayout
from kvist.spec.model import ModelSpec
from kvist.text.chat import ChatTemplate
from kvist.text.tokenizer import Tokenizer
from kvist.text.turn_rows import Seal
from kvist.tier.base import Tier, Usage


class Grammars(Protocol):
    """Turns schemas into grammars and says which grammars are sound. Safe to call from any thread."""

    def check(self, grammar: str) -> None:
        """Raises ``BadValue`` for a grammar that cannot be compiled within its limits."""
        ...

    def json_schema(self, schema: Mapping[str, Any]) -> str:
        """The grammar of JSON texts that fit ``schema``. Raises ``BadValue``."""
        ...

    def json_object(self) -> str:
        """The grammar of any JSON object."""
        ...

    def lark(self, text: str) -> str:
        """A grammar given in the library's Lark dialect."""
        ...

    def regex(self, pattern: str) -> str:
        """The grammar of texts that match ``pattern`` wholly."""
        ...


class Loader(Protocol):
    """Loads other weights into this server."""

    def __call__(self, path: str) -> Served:
        """Load ``path`` in place of what is served. Raises ``ModelError`` or ``BadValue`` and changes nothing then."""
        ...


@dataclass(frozen=True, slots=True)
class Places:
    """Where blocks live besides the pool, fastest first. Calls may come from any thread.

    ``texts`` are the places as they may be printed. ``flush`` waits so many seconds at most until what is on its way
    is written, ``close`` does so and lets go; both say whether all of it was written. ``tiers`` are the places
    themselves (none on paper), ``origin`` what this model's records have in common. ``folder`` is where else something
    may lie that survives a restart (None: nowhere), ``seal_turns`` hides answers that are kept there.
    """

    names: tuple[str, ...]
    texts: tuple[str, ...]
    usages: Callable[[], Sequence[Usage]]
    flush: Callable[[float], bool]
    close: Callable[[float], bool]
    tiers: tuple[Tier, ...] = ()
    origin: bytes = b""
    folder: Path | None = None
    sealed: bool = False
    seal_turns: Seal | None = None


@dataclass(frozen=True, slots=True)
class Served:
    """One model ready to serve. ``facts`` is what ``/server_info`` adds; ``grammars`` is None without llguidance.

    ``config`` is what the engine was assembled with. ``places``: what lies behind the pool (None: nothing).
    """

    engine: Engine
    tokenizer: Tokenizer
    template: ChatTemplate | None
    spec: ModelSpec
    layout: CacheLayout
    path: str
    created_unix_s: int
    grammars: Grammars | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    config: EngineConfig = field(default_factory=EngineConfig)
    places: Places | None = None

    def reads_like(self, other: Served) -> bool:
        """True when a prompt made for ``other`` is one for this: same ids for the same text, same template."""
        mine, its = self.template, other.template
        return (
            self.tokenizer.digest() == other.tokenizer.digest()
            and self.vocab == other.vocab
            and (mine and mine.source) == (its and its.source)
        )

    @property
    def context_tokens(self) -> int:
        """Longest sequence, prompt and answer together."""
        return self.engine.scheduler.limits.context_tokens

    @property
    def why_no_grammars(self) -> str:
        """Why answers cannot be constrained, when ``grammars`` is None."""
        return str(self.facts.get("no_grammars", "llguidance is not installed (pip install 'kvist[server]')"))

    @property
    def why_by_layer(self) -> str:
        """Why no step runs as one native call; empty when they do."""
        if not self.engine.executor.counters:
            return "no layers are computed here"
        return str(self.facts.get("no_native_steps", ""))

    @property
    def vocab(self) -> int:
        """Width of the logits: ids are below it."""
        return self.spec.vocab

"""The contract of a tool-call format: how a model family writes calls into its text.

A parser is fed the text deltas of one answer and gives deltas back, in the order of the text. What it shows as content
is exactly the text outside calls; it holds back only what may still become a call. A call that turns out to be broken,
or is cut short, comes out as content: all ``content`` and ``raw``, joined in order, is the text that was fed.

Where ``needs_special``, the marker of a call is a control token, which a detokenizer does not show by default: run it
with ``skip_special=False`` and do not feed it the end token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Tool = Mapping[str, Any]
TokenId = Callable[[str], int | None]
"""From the spelling of a control token to its id (``Tokenizer.id_of``)."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The ``index``-th call of an answer. ``arguments`` is the JSON text of an object, as the model wrote it.

    ``raw`` is the text that the call was read from, markers included. Calls written as one list share theirs: the
    first has it, the others have none.
    """

    index: int
    name: str
    arguments: str
    raw: str = ""


@dataclass(frozen=True, slots=True)
class ToolDelta:
    """Content to show, or a call that is complete."""

    content: str = ""
    call: ToolCall | None = None


class ToolParser(Protocol):
    """Reads one answer."""

    def push(self, text: str) -> list[ToolDelta]:
        """What this text settles."""
        ...

    def finish(self) -> list[ToolDelta]:
        """What was held back, when the answer has ended. After it, ``push`` is an error."""
        ...


class ToolFormat(Protocol):
    """A variant of the shelf: a frozen dataclass."""

    @property
    def name(self) -> str:
        """How the registry calls it."""
        ...

    @property
    def needs_special(self) -> bool:
        """Whether the text must show control tokens."""
        ...

    def parser(self) -> ToolParser:
        """A new parser for one answer."""
        ...

    def grammar(
        self,
        tools: Sequence[Tool],
        choice: str | Mapping[str, Any] | None,
        *,
        parallel: bool = True,
        token_id: TokenId | None = None,
    ) -> str | None:
        """Llguidance's Lark grammar of an answer that must call, or None where it need not (``auto``, ``none``).

        ``choice`` is ``required``, or names one function, which is then called exactly once; ``parallel`` allows
        several calls otherwise. ``token_id`` tells which markers are control tokens. Raises ``BadValue`` for
        malformed tools or an unknown function.
        """
        ...

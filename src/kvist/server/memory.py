"""From conversations to ids, going on with the very ids that the model emitted in earlier turns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Final

from kvist.errors import ModelError
from kvist.server.job import Finish, Job
from kvist.server.length import refuse_hopeless, texts_of
from kvist.server.service import Service
from kvist.text.chat import ChatTemplate
from kvist.text.parts import join_parts
from kvist.text.tokenizer import Tokenizer
from kvist.text.tools.history import parsed_arguments, template_knows_tools, with_tools
from kvist.text.turns import Encoded, Turns

Messages = Sequence[Mapping[str, Any]]

LONG_TOKENS: Final = 20_000
"""Prompt and answer of more than this are kept on a worker thread, so that other answers go on."""

_FIELDS: Final = frozenset(
    ("role", "content", "tool_calls", "tool_call_id", "name", "reasoning_content", "reasoning", "thinking")
)
"""What every template is shown of a message."""


@dataclass(frozen=True, slots=True)
class _Side:
    """What one tokenizer and template know. ``fields`` of messages may be read; others are nobody's business."""

    tokenizer: Tokenizer
    template: ChatTemplate
    turns: Turns
    knows_tools: bool
    fields: frozenset[str]


@dataclass(frozen=True, slots=True)
class Asked:
    """A conversation's ids, and a place to keep the answers to it."""

    encoded: Encoded
    memory: Memory
    side: _Side

    def keep(self, job: Job, answer: Mapping[str, Any], ids: Sequence[int], finish: Finish) -> None:
        """An answer ended. One that a stop string cut has other text than its tokens: not kept. Raises nothing."""
        if finish.reason not in ("stop", "length") or isinstance(finish.stop, str) or not job.reuse:
            return
        if len(job.prompt) + len(ids) > LONG_TOKENS:
            self.memory.workers.submit(self._keep, job, answer, ids)
        else:
            self._keep(job, answer, ids)

    def _keep(self, job: Job, answer: Mapping[str, Any], ids: Sequence[int]) -> None:
        trail = self.encoded.trail
        assert trail is not None
        try:
            (told,), _ = for_template(self.side.knows_tools, [answer], None)
            self.side.turns.keep(trail, told, job.prompt, ids, owner=job.tenant.name)
        except Exception:  # whatever a model may write into its calls: the answer matters more than its memory
            self.memory.not_kept += 1


class Memory:
    """Remembers answers that clients may send back. One per server; bounded (``Turns``).

    What new weights bring with them is another tokenizer and template: what was kept with the old ones goes.
    ``not_kept`` counts answers that no template could show (half a character in a call): plain encoding does for them.
    """

    def __init__(self, service: Service, workers: Executor) -> None:
        self.workers = workers
        self.not_kept = 0
        self._service = service
        self._side: _Side | None = None

    def encode(
        self, job: Job, messages: Messages, tools: Messages | None, extra: Mapping[str, Any], *, long: bool = False
    ) -> Asked:
        """Ids of a conversation that is to be answered. Raises what ``encode_chat`` raises. Any thread may ask.

        A ``long`` one is tokenised apart, so that short ones need not wait, and refused early when it cannot fit.
        """
        side = self._current()
        tokenizer = side.tokenizer.twin if long else side.tokenizer
        if long:
            refuse_hopeless(tokenizer, texts_of(messages), self._service.served.context_tokens)
        chat = join_parts([_read(message, side.fields) for message in messages])
        shown, tools = for_template(side.knows_tools, chat, tools)
        encoded = side.turns.encode(
            self._service.config.tenants.salt(job.tenant, job.salt),  # as narrow as the part of the cache they share
            tokenizer,
            side.template,
            shown,
            tools=tools,
            extra=extra,
            append_only=self._service.config.append_only,
        )
        return Asked(encoded, self, side)

    def _current(self) -> _Side:
        """The side of what is served now; two threads may each make one after a change, and the later one stays."""
        served, side = self._service.served, self._side
        if served.template is None:
            raise ModelError(f"{served.path} has no chat template", remedy="use /v1/completions, or an instruct model")
        if side is None or side.tokenizer is not served.tokenizer or side.template is not served.template:
            source = served.template.source
            side = _Side(
                served.tokenizer,
                served.template,
                Turns() if self._service.config.keep_answers else Turns(max_tokens=0),
                template_knows_tools(source),
                _FIELDS.union(re.findall(r"\w+", source)),
            )
            self._side = side
        return side


def _read(message: Any, fields: frozenset[str]) -> Any:
    """A message without fields that its template does not name."""
    if not isinstance(message, Mapping):
        return message
    return {name: value for name, value in message.items() if name in fields}


def for_template(knows_tools: bool, messages: Messages, tools: Messages | None) -> tuple[Messages, Messages | None]:
    """Messages and tools as a template can show them: with calls as objects, or everything as text."""
    if knows_tools:
        return parsed_arguments(messages), tools
    if tools or any("tool_calls" in m or m.get("role") == "tool" for m in messages if isinstance(m, Mapping)):
        return with_tools(messages, tools), None
    return messages, tools

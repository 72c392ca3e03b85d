"""From conversations to ids, going on with the very ids that the model emitted in earlier turns."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from kvist.errors import ModelError
from kvist.server.job import Finish, Job
from kvist.server.length import refuse_hopeless, texts_of
from kvist.server.served import Places, Served
from kvist.server.service import Service
from kvist.text.chat import ChatTemplate
from kvist.text.parts import join_parts
from kvist.text.tokenizer import Tokenizer
from kvist.text.tools.history import parsed_arguments, template_knows_tools, with_tools
from kvist.text.turn_file import TurnFile
from kvist.text.turn_store import TurnStore
from kvist.text.turns import Encoded, Turns

Messages = Sequence[Mapping[str, Any]]

LONG_TOKENS: Final = 20_000
"""Prompt and answer of more than this are kept on a worker thread, so that other answers go on."""

FILE_NAME: Final = "answers.db"
"""In the folder of the disk tier: the ids of answers, so that conversations go on after a restart."""

FORGET_S: Final = 5.0
"""How long forgetting waits for that file."""

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

    def serves(self, served: Served) -> bool:
        """Whether it is that of what is served."""
        return self.tokenizer is served.tokenizer and self.template is served.template


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

    Where a tier has a folder they lie in a file there, too, and are there after a restart. What new weights bring with
    them is another tokenizer and template: what was kept with the old ones goes (from memory). ``not_kept`` counts
    answers that no template could show (half a character in a call): plain encoding does for them.
    """

    def __init__(self, service: Service, workers: Executor) -> None:
        self.workers = workers
        self.not_kept = 0
        self._service = service
        self._side: _Side | None = None
        self._file: TurnFile | None = None
        self._stuck = False
        """The file could not be emptied yet, and goes on trying: until it is, answers are kept in memory only."""
        self._changing = threading.Lock()

    @property
    def file(self) -> TurnFile | None:
        """Where answers are kept besides; None: in memory only."""
        return self._file

    @property
    def path(self) -> Path | None:
        """That file."""
        places = self._service.served.places
        return places.folder / FILE_NAME if self._file is not None and places is not None and places.folder else None

    def open(self) -> None:
        """Read what an earlier server has kept, before the first conversation would have to wait for it."""
        if self._service.served.template is not None:
            self._current()

    def close(self) -> None:
        """Write what waits to be written. Raises nothing."""
        with self._changing:
            self._close_file()

    def forget(self, owner: str | None) -> bool:
        """Forget the answers kept for ``owner`` (None: for everybody); False when the file may still have some."""
        with self._changing:
            side, file = self._side, self._file
            if owner is not None and side is not None:
                _store_of(side.turns).forget_owner(owner)
            if owner is None:
                self._side = None
            if file is None:
                return True
            file.forget(owner)
            done = file.flush(FORGET_S)
            if owner is None and done:
                self._close_file()
            self._stuck = owner is None and not done
            return done

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
        """The side of what is served now. Any thread may ask."""
        served = self._service.served
        if served.template is None:
            raise ModelError(f"{served.path} has no chat template", remedy="use /v1/completions, or an instruct model")
        side = self._side
        if side is not None and side.serves(served):
            return side
        with self._changing:
            side = self._side
            if side is None or not side.serves(served):
                keep = self._service.config.keep_answers
                side = _side_of(served, served.template, keep=keep)
                if self._stuck and self._file is not None:
                    self._stuck = not self._file.flush(0.0)
                if not self._stuck:
                    self._close_file()
                    self._file = _attached(side, served.places) if keep else None
                self._side = side
        return side

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


def _side_of(served: Served, template: ChatTemplate, *, keep: bool) -> _Side:
    return _Side(
        served.tokenizer,
        template,
        Turns() if keep else Turns(max_tokens=0),
        template_knows_tools(template.source),
        _FIELDS.union(re.findall(r"\w+", template.source)),
    )


def _store_of(turns: Turns) -> TurnStore:
    """Where its answers lie."""
    return turns._store


def _attached(side: _Side, places: Places | None) -> TurnFile | None:
    """The file beside the disk tier; ids in it are those of one tokenizer and template."""
    if places is None or places.folder is None:
        return None
    digest = blake2b(side.tokenizer.digest() + side.template.source.encode(), digest_size=16, person=b"kvist-side")
    path = places.folder / FILE_NAME
    return TurnFile.attach(_store_of(side.turns), path, side=digest.digest(), seal=places.seal_turns)


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

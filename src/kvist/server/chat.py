"""Conversations: from messages to a job, and from what the model wrote back to text, tool calls and an end.

Every chat protocol goes through here: the same messages give the same prompt, whatever endpoint they came by.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeVar

from kvist.errors import BadValue, ModelError
from kvist.server.job import Delta, Finish, Job
from kvist.server.live import Live
from kvist.server.memory import Asked, Memory
from kvist.server.service import Service
from kvist.server.tenants import Tenant
from kvist.server.workers import Workers
from kvist.step import TokenLogprob
from kvist.text.plain import exceeds
from kvist.text.tools.base import ToolFormat, ToolParser
from kvist.text.tools.registry import choose, load
from kvist.text.turns import Encoded

T = TypeVar("T")

LONG_CHARS: Final = 20_000
"""Conversations longer than this, everything counted, are read on a worker thread, so that other answers go on."""


@dataclass(frozen=True, slots=True)
class ChatAsk:
    """A conversation to continue. ``job`` has everything but the prompt and the grammar.

    ``tools`` are functions as OpenAI writes them. ``tool_choice`` is ``auto``, ``none``, ``required`` or a function's
    name; ``parallel`` allows several calls in one answer. ``grammar`` constrains the answer's text.
    """

    messages: Sequence[Mapping[str, Any]]
    job: Job
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: str = "auto"
    parallel: bool = True
    grammar: str | None = None
    template_extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def told(self) -> Sequence[Mapping[str, Any]] | None:
        """The tools that the model is told of."""
        return self.tools if self.tools and self.tool_choice != "none" else None


@dataclass(frozen=True, slots=True)
class Wrote:
    """Text that a sample gained, the tokens behind it (which may be ahead of the text), and their scores."""

    sample: int
    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Called:
    """A whole tool call: ``index`` counts a sample's calls, ``arguments`` is JSON text."""

    sample: int
    index: int
    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A sample ended; ``calls`` tools in all."""

    sample: int
    finish: Finish
    calls: int


ChatEvent = Wrote | Called | Ended


@dataclass(slots=True)
class _Sample:
    parser: ToolParser | None
    text: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    calls: list[Called] = field(default_factory=list)


class Conversation:
    """The answer on its way. Read ``batch`` until it is empty, or ``close`` it."""

    def __init__(self, live: Live, ask: ChatAsk, asked: Asked, tools: ToolFormat | None) -> None:
        self.live = live
        self._asked = asked
        self._samples = [_Sample(tools.parser() if tools else None) for _ in range(ask.job.n)]

    async def batch(self) -> list[ChatEvent]:
        """What came, waiting for something; empty when all is over."""
        events: list[ChatEvent] = []
        while not events:
            deltas = await self.live.batch()
            if not deltas:
                return []
            for delta in deltas:
                events += self._take(delta)
        return events

    def close(self) -> None:
        """Nobody reads this any more."""
        self.live.close()

    def _take(self, delta: Delta) -> list[ChatEvent]:
        sample = self._samples[delta.sample]
        sample.ids += delta.token_ids
        text, calls = delta.text, list[Called]()
        if sample.parser is not None:
            text, calls = self._parse(sample, sample.parser, delta)
        events: list[ChatEvent] = []
        if text or delta.token_ids:
            sample.text.append(text)
            events.append(Wrote(delta.sample, text, delta.token_ids, delta.logprobs))
        events += calls
        if delta.finish is not None:
            ids = sample.ids[: delta.finish.usage.output_tokens]
            self._asked.keep(self.live.job, _answer(sample), ids, delta.finish)
            events.append(Ended(delta.sample, delta.finish, len(sample.calls)))
        return events

    def _parse(self, sample: _Sample, parser: ToolParser, delta: Delta) -> tuple[str, list[Called]]:
        parsed = parser.push(delta.text)
        if delta.finish is not None:
            parsed += parser.finish()
        calls = []
        for found in (p.call for p in parsed if p.call is not None):
            name = f"call_{secrets.token_hex(12)}"
            calls.append(Called(delta.sample, len(sample.calls), name, found.name, found.arguments))
            sample.calls.append(calls[-1])
        return "".join(p.content for p in parsed), calls


def _answer(sample: _Sample) -> dict[str, Any]:
    """The message that the client will send back."""
    content = "".join(sample.text)
    if not sample.calls:
        return {"role": "assistant", "content": content}
    calls = [
        {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in sample.calls
    ]
    return {"role": "assistant", "content": content or None, "tool_calls": calls}


class Chats:
    """Starts conversations. One per server."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._readers = Workers("kvist-chat")
        self._checkers = Workers("kvist-grammar")
        self._memory = Memory(service, self._readers.pool)

    @property
    def memory(self) -> Memory:
        """What is remembered of answers."""
        return self._memory

    async def encode(self, ask: ChatAsk) -> Encoded:
        """The prompt's ids. Raises ``BadValue`` or ``UsageError`` for what the template cannot take."""
        return (await self._read(ask)).encoded

    async def start(self, ask: ChatAsk) -> Conversation:
        """Begin to answer. Raises what ``encode`` and ``Service.submit`` raise."""
        _check_choice(ask)
        served, asked = None, None
        while asked is None or served is not self._service.served:  # new weights came meanwhile: their ids are others
            served, asked = self._service.served, await self._read(ask)
            tools = self._format(ask)
            grammar = await self._grammar(ask, tools)
        encoded = asked.encoded
        job = replace(
            ask.job,
            prompt=tuple(encoded.ids),
            sampling=replace(ask.job.sampling, grammar=grammar),
            show_special=tools is not None and tools.needs_special,
            kept_tokens=encoded.kept_tokens,
            first_rewritten=encoded.first_rewritten,
        )
        return Conversation(self._service.submit(job), ask, asked, tools)

    async def _read(self, ask: ChatAsk) -> Asked:
        long = exceeds([ask.messages, ask.tools, ask.template_extra], LONG_CHARS)
        encode = partial(self._memory.encode, long=long)
        return await self._aside(ask, encode, ask.job, ask.messages, ask.told, ask.template_extra)

    async def _aside(self, ask: ChatAsk, work: Callable[..., T], *args: Any) -> T:
        """``work`` of a long conversation on a worker, of a short one here and now."""
        if exceeds([ask.messages, ask.tools, ask.template_extra], LONG_CHARS):
            return await self._readers.run(ask.job.tenant, work, *args)
        return work(*args)

    def _format(self, ask: ChatAsk) -> ToolFormat | None:
        """How the model writes calls; None when it is told of no tools. Raises ``ModelError`` for a way not known."""
        template = self._service.served.template
        if ask.told is None or template is None:
            return None
        name = choose(template.source)
        if name is None:
            what = f"{self._service.served.path} writes tool calls in a way that is not known here"
            raise ModelError(what, remedy="send the request without tools, or start the server with --chat-template")
        return load(name)

    async def _grammar(self, ask: ChatAsk, tools: ToolFormat | None) -> str | None:
        """The grammar the answer must fit, compiled once here so that a bad one is refused before it is queued."""
        served, grammar, forced = self._service.served, ask.grammar, None
        if tools is not None:
            choice: Any = ask.tool_choice
            if choice not in ("auto", "none", "required"):
                choice = {"type": "function", "function": {"name": choice}}
            write = partial(tools.grammar, parallel=ask.parallel, token_id=served.tokenizer.id_of)
            forced = await self._aside(ask, write, ask.tools, choice)
        if forced is None and grammar is None:
            return None
        if forced is not None and grammar is not None:
            raise BadValue("response_format", "...", "no format together with a forced tool call")
        if served.grammars is None:
            what = "no format: answers cannot be constrained without llguidance"
            raise BadValue("response_format", "...", what, remedy="pip install 'kvist[server]'")
        if forced is not None:
            grammar = served.grammars.lark(forced)
        assert grammar is not None
        await self.check_grammar(ask.job.tenant, grammar)
        return grammar

    async def check_grammar(self, tenant: Tenant, grammar: str) -> None:
        """Compile a grammar, off the event loop. Raises ``BadValue`` for one that is not sound, or costs too much."""
        grammars = self._service.served.grammars
        assert grammars is not None
        await self._checkers.run(tenant, grammars.check, grammar)


def _check_choice(ask: ChatAsk) -> None:
    names = [str(t["function"]["name"]) for t in ask.tools]
    if ask.tool_choice not in ("auto", "none", "required", *names):
        expected = f"auto, none, required or one of: {', '.join(names) or 'no tools were sent'}"
        raise BadValue("tool_choice", ask.tool_choice, expected)
    if ask.tool_choice == "required" and not ask.tools:
        raise BadValue("tool_choice", ask.tool_choice, "tools to choose from", remedy="send tools")

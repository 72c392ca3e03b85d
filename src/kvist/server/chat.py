"""Conversations: from messages to a job, and from what the model wrote back to text, tool calls and an end.

Every chat protocol goes through here: the same messages give the same prompt, whatever endpoint they came by.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kvist.errors import BadValue, ModelError
from kvist.server.job import Delta, Finish, Job
from kvist.server.live import Live
from kvist.server.service import Service
from kvist.step import TokenLogprob

# NOTE: text.turns, text.parts and text.tools are being written by someone else; imported late until they are there.

LONG_CHARS: Final = 20_000
"""Conversations longer than this are rendered and tokenised on a worker thread, so that other answers go on."""


@dataclass(frozen=True, slots=True)
class ChatAsk:
    """A conversation to continue. ``job`` has everything but the prompt and the grammar.

    ``tools`` are functions as OpenAI writes them. ``tool_choice`` is ``auto``, ``none``, ``required`` or a function's
    name. ``grammar`` constrains the answer's text.
    """

    messages: Sequence[Mapping[str, Any]]
    job: Job
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: str = "auto"
    grammar: str | None = None
    template_extra: Mapping[str, Any] = field(default_factory=dict)


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
    parser: Any
    text: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    calls: list[Called] = field(default_factory=list)


class Conversation:
    """The answer on its way. Read ``batch`` until it is empty, or ``close`` it."""

    def __init__(self, live: Live, ask: ChatAsk, turns: Any, scope: bytes, parser: str | None) -> None:
        self.live = live
        self._ask = ask
        self._turns = turns
        self._scope = scope
        from kvist.text.tools.registry import load

        self._samples = [_Sample(load(parser) if parser else None) for _ in range(ask.job.n)]

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
        events: list[ChatEvent] = []
        text = delta.text
        if sample.parser is not None:
            parsed = sample.parser.push(text)
            if delta.finish is not None:
                parsed += sample.parser.finish()
            text = "".join(p.text for p in parsed)
            for found in (p.call for p in parsed if p.call is not None):
                call = Called(
                    delta.sample, len(sample.calls), f"call_{secrets.token_hex(12)}", found.name, found.arguments
                )
                sample.calls.append(call)
                events.append(call)
        if text or delta.token_ids:
            sample.text.append(text)
            events.insert(0, Wrote(delta.sample, text, delta.token_ids, delta.logprobs))
        if delta.finish is not None:
            self._remember(sample, delta.finish)
            events.append(Ended(delta.sample, delta.finish, len(sample.calls)))
        return events

    def _remember(self, sample: _Sample, finish: Finish) -> None:
        """Keep the ids of an answer that the client may send back, so that the next turn finds them in the cache."""
        if self._turns is None or finish.reason not in ("stop", "length") or isinstance(finish.stop, str):
            return
        answer: dict[str, Any] = {"role": "assistant", "content": "".join(sample.text)}
        if sample.calls:
            answer["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
                for c in sample.calls
            ]
        ask = self._ask
        self._turns.remember(
            self._scope,
            ask.messages,
            answer,
            self.live.job.prompt,
            sample.ids[: finish.usage.output_tokens],
            tools=ask.tools or None,
            extra=dict(ask.template_extra),
        )


class Chats:
    """Starts conversations. One per server."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._cached_turns: Any = None

    @property
    def _turns(self) -> Any:
        from kvist.text.turns import Turns

        if self._cached_turns is None:
            self._cached_turns = Turns() if self._service.config.keep_answers else None
        return self._cached_turns

    async def encode(self, ask: ChatAsk) -> Any:
        """The prompt's ids. Raises ``BadValue`` or ``UsageError`` for what the template cannot take."""
        size = sum(len(str(m.get("content"))) for m in ask.messages if isinstance(m, Mapping))
        if size > LONG_CHARS:
            return await asyncio.to_thread(self._encode, ask)
        return self._encode(ask)

    async def start(self, ask: ChatAsk) -> Conversation:
        """Begin to answer. Raises what ``encode`` and ``Service.submit`` raise."""
        if ask.tool_choice not in ("auto", "none", "required", *_names(ask.tools)):
            known = ", ".join(_names(ask.tools)) or "no tools"
            raise BadValue("tool_choice", ask.tool_choice, f"auto, none, required or one of: {known}")
        if ask.tool_choice == "required" and not ask.tools:
            raise BadValue("tool_choice", ask.tool_choice, "tools to choose from", remedy="send tools")
        ask = replace(ask, messages=[_joined(m, n) for n, m in enumerate(ask.messages)])
        from kvist.text.tools.registry import load

        encoded = await self.encode(ask)
        parser = self._parser(ask)
        grammar = await self._grammar(ask)
        sampling = replace(ask.job.sampling, grammar=grammar)
        job = replace(
            ask.job,
            prompt=tuple(encoded.ids),
            sampling=sampling,
            show_special=parser is not None and load(parser).needs_special,
            kept_tokens=encoded.kept_tokens,
            first_rewritten=encoded.first_rewritten,
        )
        live = self._service.submit(job)
        return Conversation(live, ask, self._turns, self._scope(ask.job), parser)

    def _scope(self, job: Job) -> bytes:
        return self._service.config.tenants.salt(job.tenant, job.salt) or b"-"

    def _encode(self, ask: ChatAsk) -> Any:
        from kvist.text.tools.prompt import template_knows_tools, with_tools
        from kvist.text.turns import Turns

        served = self._service.served
        if served.template is None:
            raise ModelError(f"{served.path} has no chat template", remedy="use /v1/completions, or an instruct model")
        messages: Sequence[Mapping[str, Any]] = ask.messages
        tools = list(ask.tools) if ask.tools and ask.tool_choice != "none" else None
        if not template_knows_tools(served.template.source):
            messages, tools = with_tools(messages, tools), None
        turns = self._turns if self._turns is not None else Turns(max_tokens=0)
        return turns.encode(
            self._scope(ask.job),
            served.tokenizer,
            served.template,
            messages,
            tools=tools,
            extra=dict(ask.template_extra),
            append_only=self._service.config.append_only,
        )

    def _parser(self, ask: ChatAsk) -> str | None:
        from kvist.text.tools.registry import choose

        template = self._service.served.template
        if not ask.tools or ask.tool_choice == "none" or template is None:
            return None
        return choose(template.source)

    async def _grammar(self, ask: ChatAsk) -> str | None:
        """The grammar the answer must fit, compiled once here so that a bad one is refused before it is queued."""
        grammars, parser = self._service.served.grammars, self._parser(ask)
        grammar = ask.grammar
        forced = ask.tool_choice not in ("auto", "none") and parser is not None
        if not forced and grammar is None:
            return None
        if grammars is None:
            what = "answers cannot be constrained here: llguidance is not installed"
            raise BadValue("response_format", "...", what, remedy="pip install 'kvist[server]'")
        if forced:
            assert parser is not None
            if grammar is not None:
                raise BadValue("response_format", "...", "no format together with a forced tool call")
            from kvist.text.tools.grammar import tool_grammar

            text = tool_grammar(parser, ask.tools, ask.tool_choice)
            grammar = grammars.lark(text)
        assert grammar is not None
        await asyncio.to_thread(grammars.check, grammar)
        return grammar


def _names(tools: Sequence[Mapping[str, Any]]) -> list[str]:
    return [str(t["function"]["name"]) for t in tools]


def _joined(message: Any, index: int) -> dict[str, Any]:
    """A message whose content is one string, and whose tool calls carry objects as templates expect them."""
    if not isinstance(message, Mapping):
        raise BadValue(f"messages[{index}]", type(message).__name__, "an object")
    plain = dict(message)
    if plain.get("content") is not None:
        from kvist.text.parts import join_parts

        plain["content"] = join_parts(plain["content"], f"messages[{index}].content")
    return plain


def arguments_object(text: str) -> Any:
    """A tool call's arguments as an object where they are one; as they are otherwise."""
    try:
        return json.loads(text)
    except ValueError:
        return text

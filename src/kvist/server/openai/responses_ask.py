"""From a body to a conversation to continue, and to what the response says about it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvist.errors import BadValue
from kvist.server.chat import ChatAsk
from kvist.server.check import (
    MAX_TOOLS,
    a_list,
    a_name,
    a_text,
    an_object,
    bad,
    chosen,
    distinct,
    function_tool,
    json_grammar,
    thinking,
)
from kvist.server.ignored import Ignored
from kvist.server.job import Job
from kvist.server.openai.responses_fields import ResponsesBody
from kvist.server.openai.responses_items import check_last, messages_of
from kvist.server.openai.responses_store import Stored
from kvist.server.served import Served
from kvist.server.tenants import Tenant
from kvist.spec.sampling import Sampling

_QUIET = ("none", "minimal")
_WORDS = ("auto", "none", "required")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a body asks for. ``messages`` are all turns without the instructions: what a next turn goes on from.

    ``new`` of them came with this body. ``echo`` is what the response repeats of the request.
    """

    ask: ChatAsk
    messages: tuple[dict[str, Any], ...]
    new: int
    echo: dict[str, Any]
    ignored: Ignored


async def asked(body: ResponsesBody, before: Stored | None, served: Served, tenant: Tenant, name: str) -> Asked:
    """Read a body; ``before`` is the response it continues. Raises ``BadValue``."""
    ignored = Ignored(body)
    body.check(ignored)
    new = messages_of(body.input, ignored)
    messages = (*(before.messages if before is not None else ()), *new)
    check_last(new)
    head = [{"role": "system", "content": body.instructions}] if body.instructions else []
    tools = _tools(body.tools, ignored)
    choice = _choice(body.tool_choice)
    extra = _thinking(body.reasoning, served, ignored)
    grammar = await _grammar(body.text, served, ignored)
    sampling = Sampling(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        seed=secrets.randbits(63) if body.seed is None else body.seed,
    )
    job = Job((), body.max_output_tokens, sampling, tenant=tenant, name=name, kind="responses")
    parallel = body.parallel_tool_calls is not False
    ask = ChatAsk([*head, *messages], job, tools, choice, parallel, grammar, extra)
    return Asked(ask, messages, len(new), _echo(body, sampling, tools, choice), ignored)


def _tools(tools: list[Any] | None, ignored: Ignored) -> list[dict[str, Any]]:
    out = []
    for n, tool in enumerate(a_list(tools or [], "tools", MAX_TOOLS)):
        where = f"tools[{n}]"
        tool = an_object(tool, where)
        if tool.get("type") != "function":
            remedy = "this server runs no tools: describe a function of your own"
            raise bad(f"{where}.type", tool.get("type"), "function", remedy=remedy)
        if tool.get("defer_loading") or tool.get("async"):
            name = "defer_loading" if tool.get("defer_loading") else "async"
            raise BadValue(f"{where}.{name}", True, "false")
        if tool.get("strict"):
            ignored.add("tools.strict")
        out.append(function_tool(tool, "parameters", where))
    return distinct(out)


def _choice(choice: str | Mapping[str, Any] | None) -> str:
    if choice is None:
        return "auto"
    if isinstance(choice, Mapping):
        if choice.get("type") != "function":
            raise bad("tool_choice.type", choice.get("type"), "function")
        return chosen(choice.get("name"), "tool_choice.name")
    if choice not in _WORDS:
        raise bad("tool_choice", choice, "auto, none, required or a function")
    return choice


def _thinking(reasoning: Mapping[str, Any] | None, served: Served, ignored: Ignored) -> dict[str, Any]:
    """``effort`` none or minimal turns thinking off; how much more than that is left to the model."""
    if not reasoning:
        return {}
    effort = reasoning.get("effort")
    if effort is not None and not isinstance(effort, str):
        raise bad("reasoning.effort", effort, "a word")
    if reasoning.get("summary") or reasoning.get("generate_summary"):
        ignored.add("reasoning.summary")
    if effort is None:
        return {}
    return thinking(served, effort not in _QUIET, "reasoning.effort")


async def _grammar(text: Mapping[str, Any] | None, served: Served, ignored: Ignored) -> str | None:
    if not text:
        return None
    if text.get("verbosity") is not None:
        ignored.add("text.verbosity")
    wanted = text.get("format")
    if wanted is None:
        return None
    wanted = an_object(wanted, "text.format")
    kind = wanted.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return await json_grammar(served, None, "text.format")
    if kind != "json_schema":
        raise bad("text.format.type", kind, "text, json_object or json_schema")
    a_name(wanted.get("name"), "text.format.name")
    if wanted.get("description") is not None:
        a_text(wanted["description"], "text.format.description")
    if not isinstance(wanted.get("strict"), bool | None):
        raise bad("text.format.strict", wanted["strict"], "true or false")
    schema = an_object(wanted.get("schema"), "text.format.schema")
    return await json_grammar(served, schema, "text.format.schema")


def _echo(body: ResponsesBody, sampling: Sampling, tools: list[dict[str, Any]], choice: str) -> dict[str, Any]:
    given = body.tools or []
    options = body.prompt_cache_options or {}
    return {
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "prompt_cache_options": {"mode": options.get("mode") or "implicit", "ttl": options.get("ttl") or "30m"},
        "prompt_cache_retention": body.prompt_cache_retention,
        "reasoning": {"effort": (body.reasoning or {}).get("effort"), "summary": None},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": body.store is not False,
        "temperature": sampling.temperature,
        "text": {"format": _told_format((body.text or {}).get("format"))},
        "tool_choice": choice if choice in _WORDS else {"type": "function", "name": choice},
        "tools": [
            {"type": "function", "strict": bool(raw.get("strict")), **tool["function"]}
            for raw, tool in zip(given, tools, strict=True)
        ],
        "top_logprobs": 0,
        "top_p": sampling.top_p,
        "truncation": "disabled",
        "user": body.user,
    }


def _told_format(wanted: Mapping[str, Any] | None) -> dict[str, Any]:
    """The format without what means nothing here."""
    known = ("type", "name", "description", "schema", "strict")
    return {name: wanted[name] for name in known if name in wanted} if wanted else {"type": "text"}

"""From a body to a conversation to continue."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvist.errors import BadValue
from kvist.server.anthropic.blocks import Blocks
from kvist.server.anthropic.caching import Marks
from kvist.server.anthropic.fields import IGNORED, CountBody, MessagesBody
from kvist.server.chat import ChatAsk
from kvist.server.check import (
    MAX_TOOLS,
    a_list,
    an_object,
    bad,
    chosen,
    distinct,
    function_tool,
    json_grammar,
    stops,
    thinking,
)
from kvist.server.ignored import Ignored
from kvist.server.job import Job
from kvist.server.served import Served
from kvist.server.tenants import Tenant
from kvist.spec.sampling import Sampling

_TOOL_EXTRAS = ("strict", "input_examples", "allowed_callers", "eager_input_streaming")
_LEAST_BUDGET = 1024


@dataclass(frozen=True, slots=True)
class Asked:
    """What a body asks for: the conversation, how its usage is told, and what was not acted upon."""

    ask: ChatAsk
    marks: Marks
    ignored: Ignored
    one_call: bool


async def asked(body: CountBody, served: Served, tenant: Tenant, name: str) -> Asked:
    """Read a body. Raises ``BadValue``. Without ``max_tokens`` it can only be counted."""
    body.check_supported()
    marks, ignored = Marks(), Ignored(body)
    for field in IGNORED:
        if getattr(body, field) is not None:
            ignored.add(field)
    marks.take({"cache_control": body.cache_control}, "")
    tools = _tools(body.tools, marks, ignored)
    blocks = Blocks(marks, ignored)
    messages = [*blocks.system(body.system), *blocks.messages(body.messages)]
    choice, one_call = _choice(body.tool_choice)
    extra = _thinking(body, served, ignored)
    grammar = await _grammar(body.output_config, served, ignored)
    job = _job(body, tenant, name)
    ask = ChatAsk(messages, job, tools, choice, not one_call, grammar, extra)
    return Asked(ask, marks, ignored, one_call)


def _job(body: CountBody, tenant: Tenant, name: str) -> Job:
    job = Job((), tenant=tenant, name=name, kind="messages")
    if not isinstance(body, MessagesBody):
        return job
    sampling = Sampling(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_k=body.top_k or 0,
        top_p=1.0 if body.top_p is None else body.top_p,
        seed=secrets.randbits(63) if body.seed is None else body.seed,
    )
    stop = stops(body.stop_sequences, "stop_sequences")
    return replace(job, max_tokens=body.max_tokens, sampling=sampling, stop=stop)


def _tools(tools: list[Any] | None, marks: Marks, ignored: Ignored) -> list[dict[str, Any]]:
    out = []
    for n, tool in enumerate(a_list(tools or [], "tools", MAX_TOOLS)):
        where = f"tools[{n}]"
        tool = an_object(tool, where)
        kind = tool.get("type")
        if kind not in (None, "custom"):
            raise bad(f"{where}.type", kind, "custom", remedy="this server runs no tools: describe a tool of your own")
        if tool.get("defer_loading"):
            raise BadValue(f"{where}.defer_loading", True, "false")
        if "input_schema" not in tool:
            raise BadValue(f"{where}.input_schema", None, "a JSON schema")
        for name in _TOOL_EXTRAS:
            if tool.get(name):
                ignored.add(f"tools.{name}")
        marks.take(tool, where)
        out.append(function_tool(tool, "input_schema", where))
    return distinct(out)


def _choice(choice: Mapping[str, Any] | None) -> tuple[str, bool]:
    """How ``ChatAsk`` says it, and whether one call is the most."""
    if choice is None:
        return "auto", False
    kind, single = choice.get("type"), choice.get("disable_parallel_tool_use", False)
    if not isinstance(single, bool):
        raise bad("tool_choice.disable_parallel_tool_use", single, "true or false")
    if kind == "tool":
        return chosen(choice.get("name"), "tool_choice.name"), single
    words = {"auto": "auto", "any": "required", "none": "none"}
    if not isinstance(kind, str) or kind not in words:
        raise bad("tool_choice.type", kind, "auto, any, tool or none")
    return words[kind], single


def _thinking(body: CountBody, served: Served, ignored: Ignored) -> dict[str, Any]:
    if body.thinking is None:
        return {}
    kind, budget = body.thinking.get("type"), body.thinking.get("budget_tokens")
    if kind not in ("disabled", "enabled", "adaptive"):
        raise bad("thinking.type", kind, "disabled, enabled or adaptive")
    extra = thinking(served, kind != "disabled", "thinking.type", must=kind == "enabled")
    if kind == "enabled":
        if type(budget) is not int or budget < _LEAST_BUDGET:
            raise bad("thinking.budget_tokens", budget, f"a count >= {_LEAST_BUDGET}")
        if isinstance(body, MessagesBody) and budget >= body.max_tokens:
            raise BadValue("thinking.budget_tokens", budget, f"less than max_tokens={body.max_tokens}")
        ignored.add("thinking.budget_tokens")
    elif kind == "adaptive" and not extra:
        ignored.add("thinking")
    return extra


async def _grammar(config: Mapping[str, Any] | None, served: Served, ignored: Ignored) -> str | None:
    if config is None:
        return None
    if config.get("effort") is not None:
        ignored.add("output_config.effort")
    wanted = config.get("format")
    if wanted is None:
        return None
    wanted = an_object(wanted, "output_config.format")
    if wanted.get("type") != "json_schema":
        raise bad("output_config.format.type", wanted.get("type"), "json_schema")
    where = "output_config.format.schema"
    return await json_grammar(served, an_object(wanted.get("schema"), where), where)

"""The planner as a library: ``kvist.plan("meta-llama/Llama-3.1-8B", device="H100", context=32_768, users=64)``."""

from __future__ import annotations

from dataclasses import fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from kvist.errors import BadValue
from kvist.planner.ask import Question, answer
from kvist.planner.plan import Plan

if TYPE_CHECKING:
    from kvist.cost.measured import MeasuredMachine


def plan(model: str, *, machine: MeasuredMachine | None = None, **question: Any) -> Plan:
    """Plan a model on devices. ``model``: a folder, a config.json, a GGUF file, a Hugging Face id or a bundled name.

    The other names are ``Question``'s: ``device``, ``count``, ``context`` (tokens), ``users``, ``kv_format``, ``tp``...
    ``machine`` is a measured one, planned for as the device ``here``. A plan that does not fit is an answer, not an
    error (``plan.verdict``). Raises ``KvistError`` for unknown names and impossible combinations.
    """
    known = [field.name for field in fields(Question)]
    for name, value in question.items():
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise BadValue(name, value, "a known name", remedy=f"{hint}known: {', '.join(known)}")
    return answer(Question(model=model, **question), machine)

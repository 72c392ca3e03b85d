"""Fields of a request that we do not read: refused where leaving them out would change the answer, else named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel

from kvist.server.ignored import Ignored
from kvist.server.refuse import Refusal

_NOT_SENT: Final = ("messages", "tools")
"""What is beyond the known in there goes to the chat template."""

_UNSUPPORTED: Final[Mapping[str, tuple[tuple[Any, ...], str]]] = {
    "functions": (([],), "send tools instead"),
    "function_call": (("none", "auto"), "send tools and tool_choice instead"),
    "audio": ((), "only text is supported"),
    "modalities": ((["text"], []), "only text is supported"),
    "prediction": ((), "leave it out"),
    "web_search_options": ((), "leave it out"),
    "chat_template": ((), "the server's own template is used; chat_template_kwargs sets its arguments"),
    "continue_final_message": ((False,), "end with a user's message, or send the rendered text to /v1/completions"),
    "documents": (([],), "put them into a message"),
    "prompt_logprobs": ((), "send the rendered text to /v1/completions"),
    "prompt_embeds": ((), "send text or token ids"),
    "suffix": (("",), "leave it out"),
    "use_beam_search": ((False,), "leave it out"),
    "length_penalty": ((1, 1.0), "it belongs to beam search"),
    "include_stop_str_in_output": ((False,), "stop_reason names the stop string"),
    "skip_special_tokens": ((True,), "return_token_ids gives every token"),
    "bad_words": (([],), "use logit_bias"),
    "allowed_token_ids": (([],), "use guided_choice or guided_regex"),
    "logits_processors": (([],), "use logit_bias"),
    "guided_whitespace_pattern": ((), "leave it out"),
    "structural_tag": ((), "use guided_json or guided_grammar"),
}
"""Field -> (values that ask for nothing, what to do instead)."""


def ignored(ask: BaseModel, *, unsupported: tuple[str, ...] = ()) -> dict[str, str]:
    """A header naming the fields that had no effect; no header where there are none.

    Raises ``Refusal`` (400) for a field that is known but not supported (``unsupported``: here, in addition).
    """
    names = Ignored()
    for name, value in _extras(ask, ""):
        harmless, remedy = _UNSUPPORTED.get(name.rpartition(".")[2], (None, "leave it out"))
        if name in unsupported and value is not False:
            raise _unsupported(name, remedy)
        if harmless is None:
            names.add(name)
        elif value not in harmless:
            raise _unsupported(name, remedy)
    return names.header


def _extras(ask: BaseModel, where: str) -> Iterator[tuple[str, Any]]:
    """Every field that no model describes and that is not null."""
    for name, value in (ask.model_extra or {}).items():
        if value is not None:
            yield where + name, value
    for name in ask.model_fields_set:
        value = getattr(ask, name, None)
        if isinstance(value, BaseModel) and name not in _NOT_SENT:
            yield from _extras(value, f"{where}{name}.")


def _unsupported(name: str, remedy: str) -> Refusal:
    return Refusal(400, "unsupported_parameter", f"{name} is not supported here", remedy=remedy, param=name)

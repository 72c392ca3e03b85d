"""What a client may say about the chat template: arguments for it, or a template of its own."""

from __future__ import annotations

import keyword
from collections.abc import Mapping
from typing import Any, Final

from kvist.errors import BadValue, CorruptFile, UsageError
from kvist.text.chat import ChatTemplate
from kvist.text.plain import as_plain, exceeds

OWN_NAMES: Final = frozenset(
    "messages tools add_generation_prompt documents bos_token eos_token pad_token unk_token raise_exception "
    "strftime_now namespace dict range cycler joiner loop self caller varargs kwargs true false none".split()
)
"""What the server, the tokenizer or the template language sets; a client's argument must not stand in its place."""

MAX_ARGS: Final = 32
MAX_ARG_CHARS: Final = 65_536
MAX_TEMPLATE_CHARS: Final = 65_536
MAX_CLIENT_STEPS: Final = 100_000


def check_template_kwargs(value: Any, where: str = "chat_template_kwargs") -> dict[str, Any]:
    """A plain copy of a client's arguments for the template (``{"enable_thinking": false}``); None gives ``{}``.

    Raises ``BadValue`` for names that are not words or are ``OWN_NAMES``, for what is no JSON, and for too much of it.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise BadValue(where, type(value).__name__, 'an object such as {"enable_thinking": false}')
    if len(value) > MAX_ARGS:
        raise BadValue(where, len(value), f"at most {MAX_ARGS} names")
    for name in value:
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
            raise BadValue(where, name, "names made of letters, digits and underscores, a letter first")
        if name in OWN_NAMES:
            raise BadValue(where, name, "a name that the server does not set itself", remedy=f"leave {name} out")
    if exceeds(value, MAX_ARG_CHARS):
        raise BadValue(where, "...", f"at most {MAX_ARG_CHARS} characters of text, other things counting for one each")
    plain: dict[str, Any] = as_plain(value, where)
    return plain


def client_template(source: Any, default: ChatTemplate, *, allowed: bool) -> ChatTemplate:
    """A template that came with a request, under tighter bounds; ``default`` where ``source`` is None.

    Raises ``UsageError`` when the server does not take templates (``allowed``), ``BadValue`` when this one is too
    large or does not compile. One that runs on raises ``ModelError`` from ``render``, which here is the client's fault.
    """
    if source is None:
        return default
    if not allowed:
        what = "chat_template is refused: this server takes no templates from its clients"
        raise UsageError(what, remedy="leave chat_template out, or start the server so that it trusts its clients")
    if not isinstance(source, str):
        raise BadValue("chat_template", type(source).__name__, "a string")
    if len(source) > MAX_TEMPLATE_CHARS:
        raise BadValue("chat_template", f"{len(source)} characters", f"at most {MAX_TEMPLATE_CHARS} characters")
    try:
        return default.replaced(source, max_steps=MAX_CLIENT_STEPS)
    except CorruptFile as error:
        raise BadValue("chat_template", "(a template)", f"one that compiles: {error.what}") from error

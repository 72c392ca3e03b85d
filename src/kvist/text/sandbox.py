"""A jinja2 sandbox in which a template from an untrusted file can neither reach out nor run on.

jinja2's own sandbox keeps a template from Python's internals; it bounds neither time nor memory. Here each render has
a budget of steps (turns of loops; 10 for a call), and what it makes has a bound (``bounds.py``). Steps, not seconds:
the same template and messages always end the same way. It is a guard against broken and careless templates and the
plain ways to be nasty, not a jail: run models that you do not trust at all under an operating system's limits.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sized
from datetime import datetime
from functools import wraps
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, pass_context
from jinja2.visitor import NodeTransformer

from kvist.text.bounds import Overrun, check_call, check_operator, check_size, check_widths

_CALL = 10
"""Steps for a call or a filter: about what it costs in turns of an empty loop."""


class Refused(TemplateError):
    """The template itself called ``raise_exception``."""


class Sandbox(ImmutableSandboxedEnvironment):
    """Compiles one template and renders it many times, from any thread."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, *, max_chars: int, max_steps: int, now: Callable[[], datetime]) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        self.max_chars = max_chars
        self.max_steps = max_steps
        self._local = threading.local()
        filters = {**self.filters, "tojson": _tojson}
        self.filters = {name: self._checked(name, function) for name, function in filters.items()}
        self.filters |= {"kvist_turns": _turns, "kvist_size": self._sized}
        self.globals.pop("lipsum")
        self.globals |= {"raise_exception": _refuse, "dict": _dict, "namespace": _PlainNamespace}
        self.globals["strftime_now"] = _clock(now)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Checks().visit(super()._parse(source, name, filename))
        return tree

    def run(self, template: Any, variables: dict[str, Any]) -> str:
        """The whole output; ``Overrun`` when it takes too many steps or characters."""
        self._local.steps = self.max_steps
        parts, size = [], 0
        for part in template.generate(variables):
            size += len(part)
            check_size(size, self.max_chars)
            parts.append(part)
        return "".join(parts)

    def spend(self, steps: int) -> None:
        """Take ``steps`` off this render's budget."""
        left = getattr(self._local, "steps", self.max_steps) - steps
        if left < 0:
            raise Overrun(f"more than {self.max_steps} steps (turns of loops; 10 for a call)")
        self._local.steps = left

    def call(self, context: Context, function: Any, *args: Any, **kwargs: Any) -> Any:
        """jinja2 hands every call in a template to this."""
        self.spend(_CALL)
        owner = getattr(function, "__self__", None)
        name = getattr(function, "__name__", "") if isinstance(owner, str) else ""
        check_call(name, owner, (*args, *kwargs.values()), self.max_chars)
        return self._sized(super().call(context, function, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """jinja2 replaces ``format`` and ``format_map`` of text by what this returns."""
        safe = super().wrap_str_format(value)
        if safe is None:
            return None

        def checked(*args: Any, **kwargs: Any) -> str:
            check_call("format", value.__self__, (*args, *kwargs.values()), self.max_chars)
            return safe(*args, **kwargs)

        return checked

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """jinja2 hands the intercepted operators to this."""
        check_operator(operator, left, right, self.max_chars)
        return self._sized(super().call_binop(context, operator, left, right))

    def _checked(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        at = 1 if hasattr(function, "jinja_pass_arg") else 0

        @wraps(function)  # keeps jinja2's mark that the first argument is the context
        def checked(*args: Any, **kwargs: Any) -> Any:
            self.spend(_CALL)
            value, rest = args[at], (*args[at + 1 :], *kwargs.values())
            check_call(name, value, rest, self.max_chars)
            return self._sized(function(*args, **kwargs))

        return checked

    def _sized(self, value: Any) -> Any:
        if isinstance(value, (str, list, tuple)):
            check_size(len(value), self.max_chars)
            self.spend(len(value) // (256 if isinstance(value, str) else 16))
        return value


class _Checks(NodeTransformer):
    """Puts checks into the syntax tree where jinja2 has no hook."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "kvist_turns", node)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, "kvist_size", node)

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.AssignBlock:  # noqa: N802
        self.generic_visit(node)
        node.filter = _filtered(node.filter, "kvist_size", node)
        return node


def _filtered(value: Any, name: str, near: nodes.Node) -> nodes.Filter:
    return nodes.Filter(value, name, [], [], None, None, lineno=near.lineno)


@pass_context
def _turns(context: Context, value: Iterable[Any]) -> Iterable[Any]:
    """Pay for a loop's turns: at once where their number is known, else one by one."""
    sandbox: Sandbox = context.environment  # type: ignore[assignment]
    sandbox.spend(1)
    if isinstance(value, Sized):
        sandbox.spend(len(value))
        return value
    return _each(sandbox, value)


def _each(sandbox: Sandbox, value: Iterable[Any]) -> Iterator[Any]:
    for item in value:
        sandbox.spend(1)
        yield item


class _Generation(Extension):
    """``{% generation %}`` marks assistant text for training; here it is only its body."""

    tags = {"generation"}

    def parse(self, parser: Any) -> list[nodes.Node]:
        next(parser.stream)
        body: list[nodes.Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return body


class _PlainNamespace(Namespace):
    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise SecurityError(f"namespace attribute {name!r} starts with an underscore")
        super().__setitem__(name, value)


def _clock(now: Callable[[], datetime]) -> Callable[[str], str]:
    def strftime_now(form: str) -> str:
        check_widths(form)
        return now().strftime(form)

    return strftime_now


def _dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


def _refuse(message: str) -> None:
    raise Refused(str(message))


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

"""Size checks for chat templates, made before one operation could build something huge."""

from __future__ import annotations

import re
from typing import Any, Final

from jinja2.exceptions import SecurityError

MAX_WIDTH: Final = 100_000
"""Largest whole number that a template may pass to a call or a filter."""

MAX_INDENT: Final = 64
"""Largest indent of JSON."""


class Overrun(SecurityError):
    """The template used up its steps, or would make something too large."""


def check_size(size: int, max_chars: int) -> None:
    """Refuse a text or list longer than ``max_chars``."""
    if size > max_chars:
        raise Overrun(f"a text or list of {size} parts, more than {max_chars}")


def check_widths(form: str) -> None:
    """Refuse a format that pads to five digits or to a width given apart."""
    if re.search(r"\d{5}|\*", form):
        raise Overrun("a format with a width of five digits or more")


def check_call(name: str, value: Any, args: tuple[Any, ...], max_chars: int) -> None:
    """Refuse a filter or a method of ``value`` whose result would be out of proportion to what it is given."""
    width = max((abs(arg) for arg in args if isinstance(arg, int)), default=0)
    limit = MAX_INDENT if name == "tojson" else MAX_WIDTH
    if width > limit:
        raise Overrun(f"{name or 'a call'} with the number {width}, more than {limit}")
    if name == "join":
        _check_join(value, args, max_chars)
    if not isinstance(value, str):
        return
    texts = [arg for arg in args if isinstance(arg, str)]
    if name in ("indent", "expandtabs", "wordwrap"):
        check_size(len(value) + (value.count("\n") + value.count("\t")) * width, max_chars)
    if name == "replace" and len(texts) > 1:
        check_size(len(value) + value.count(texts[0]) * len(texts[1]), max_chars)
    if name in ("format", "format_map"):
        check_widths(value)
        check_size(len(value) + value.count("{") * sum(map(len, texts)), max_chars)


def _check_join(value: Any, args: tuple[Any, ...], max_chars: int) -> None:
    parts, glue = (args[0], value) if isinstance(value, str) and args else (value, args[0] if args else "")
    if isinstance(parts, (list, tuple)):
        sizes = sum(len(part) if isinstance(part, str) else 8 for part in parts)
        check_size(sizes + len(parts) * len(str(glue)), max_chars)


def check_operator(operator: str, left: Any, right: Any, max_chars: int) -> None:
    """Refuse a multiplication, power or format out of proportion."""
    if operator == "%" and isinstance(left, str):
        check_widths(left)
    if operator == "*":
        for times, what in ((left, right), (right, left)):
            if isinstance(times, int) and hasattr(what, "__len__"):
                check_size(len(what) * max(times, 0), max_chars)
    if operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * (abs(right) if operator == "**" else 1) + right.bit_length()
        if bits > 4096:
            raise Overrun(f"a number of about {bits} bits, more than 4096")

"""Rules that find numbers in lines. A rule is a fixed phrase, a pattern, and what the pattern's holes mean.

``<n>`` in a pattern is a hole for a number, ``<w>`` one for a word. The phrase is looked for first, which makes a
megabyte of noise cost milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from kvist.planner.doctor.base import Setting, Term
from kvist.planner.doctor.lines import LogLine, rank_of
from kvist.units import GIB, KIB, MIB

_NUMBER: Final = r"([-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:[eE][-+]?\d{1,2})?)"
_WORD: Final = r"'?([^\s,')}\]]+)'?"
_SIZES: Final = {"gib": GIB, "gb": GIB, "mib": MIB, "mb": MIB, "kib": KIB, "kb": KIB, "b": 1, "bytes": 1}
_FINEST_DIGIT: Final = 0.01


@dataclass(frozen=True, slots=True)
class Field:
    """What a hole holds. ``unit``: ``GiB``, ``MiB``, ``KiB`` (of bytes), ``?iB`` (the word after the number says it),
    another unit of terms, or ``setting``. An empty name skips the hole.
    """

    name: str
    unit: str
    what: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of line."""

    needle: str
    pattern: re.Pattern[str]
    fields: tuple[Field, ...]


def rule(needle: str, pattern: str, *fields: Field) -> Rule:
    """A rule from a pattern with holes. There must be as many fields as holes."""
    whole = pattern.replace("<n>", _NUMBER).replace("<w>", _WORD)
    compiled = re.compile(whole)
    assert compiled.groups == len(fields), (pattern, compiled.groups, len(fields))
    return Rule(needle, compiled, fields)


@dataclass(frozen=True, slots=True)
class Hit:
    """A rule that matched a line: the terms and settings it gave."""

    rule: Rule
    line: LogLine
    terms: tuple[Term, ...]
    settings: tuple[tuple[str, Setting], ...]


def scan(lines: Iterable[LogLine], rules: tuple[Rule, ...]) -> Iterator[Hit]:
    """Every match of every rule, in the order of the lines."""
    for line in lines:
        for one in rules:
            if one.needle in line.text:
                found = one.pattern.search(line.text)
                if found:
                    yield _hit(one, line, found)


def _hit(one: Rule, line: LogLine, found: re.Match[str]) -> Hit:
    terms, settings = [], []
    for i, hole in enumerate(one.fields, start=1):
        printed = found.group(i)
        if printed is None or not hole.name:
            continue
        if hole.unit == "setting":
            settings.append((hole.name, value_of(printed)))
        elif term := _term(hole, printed, line, found.string[found.end(i) :]):
            terms.append(term)
    return Hit(one, line, tuple(terms), tuple(settings))


def _term(hole: Field, printed: str, line: LogLine, after: str) -> Term | None:
    digits = printed.replace(",", "")
    try:
        number = float(digits)
    except ValueError:
        return None
    if not abs(number) < 1e18:
        return None
    follows = re.match(r" ?([KMG]i?B|bytes|B)\b", after)
    word = follows.group(1) if follows else ""
    size = _SIZES.get(word.lower(), 1) if hole.unit == "?iB" else _SIZES.get(hole.unit.lower(), 1)
    in_bytes = hole.unit == "?iB" or hole.unit.lower() in _SIZES
    return Term(
        name=hole.name,
        value=number * size,
        unit="bytes" if in_bytes else hole.unit,
        printed=f"{printed} {word or (hole.unit if in_bytes else '')}".strip(),
        line=line.number,
        text=line.text.strip(),
        step=_step(digits, size),
        rank=rank_of(line.text),
        what=hole.what,
    )


def _step(digits: str, size: int) -> float:
    """Size of the last digit. GiB are printed with two decimals or more, of which some versions drop zeros."""
    mantissa, _, exponent = digits.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    if size == 1:
        return 10.0**-decimals if decimals else 0.0
    digit = 10.0**-decimals
    return size * (min(digit, _FINEST_DIGIT) if size == GIB else digit) * 10.0 ** int(exponent or 0)


def value_of(text: str) -> Setting:
    """A setting as the value it spells: true/false, a whole number, a number, else the text."""
    word = text.strip("'\"")
    if word.lower() in ("true", "false"):
        return word.lower() == "true"
    if re.fullmatch(r"[-+]?\d[\d,]{0,20}", word):
        return int(word.replace(",", ""))
    if re.fullmatch(r"[-+]?\d{0,20}\.\d{0,20}(?:e[-+]?\d{1,2})?", word) and re.search(r"\d", word):
        return float(word)
    return word


def flags(text: str, names: dict[str, str]) -> dict[str, Setting]:
    """Settings written as ``key=value``, ``'key': value`` or ``--key value``: the first of each, ``None`` left out."""
    out: dict[str, Setting] = {}
    for key, name in names.items():
        dashed = key.replace("_", "-")
        found = re.search(rf"(?:\b{key}=|'{key}': ?|--(?:{key}|{dashed})[ =])['\"]?([^\s,'\")}}\]]+)", text)
        if found and found.group(1) not in ("None", "null") and name not in out:
            out[name] = value_of(found.group(1))
    return out

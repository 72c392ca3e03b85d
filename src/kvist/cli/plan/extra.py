"""How turning points and suggestions are shown, and written as JSON."""

from __future__ import annotations

from math import isfinite
from typing import Any, Final

from kvist.cli.plan.words import counted
from kvist.planner.decide.advice import Suggestion
from kvist.planner.decide.turns import Turn

_GOALS: Final = {
    "users": "What would help most: more users",
    "ttft": "What would help most: earlier first tokens",
    "tpot": "What would help most: faster answers",
}


def turns_as_list(found: tuple[tuple[str, Turn], ...]) -> list[dict[str, Any]]:
    """For ``--json``."""
    return [
        {
            "name": name,
            "at": turn.at,
            "unit": turn.unit,
            "before": turn.before,
            "after": turn.after,
            "for_good": turn.for_good,
            "reached": turn.reached,
            "how": turn.how,
        }
        for name, turn in found
    ]


def turn_rows(found: tuple[tuple[str, Turn], ...]) -> list[tuple[str, str]]:
    """For the end of the table, a line each."""
    at = {name: _at(turn) for name, turn in found}
    return [
        ("turns", f"cache outweighs weights in a step: {at['cache over weights']}"),
        ("", f"attention outweighs linear layers in a prompt: {at['attention over linear']}"),
        ("", f"arithmetic outweighs bytes: {at['compute over bytes']} (linear layers {at['linear layers alone']})"),
    ]


def _at(turn: Turn) -> str:
    if turn.at is None:
        return "never"
    return f"from {counted(turn.at, turn.unit.removesuffix('s'))}" + ("" if turn.reached else " (beyond the model)")


def advice_as_list(found: tuple[Suggestion, ...]) -> list[dict[str, Any]]:
    """For ``--json``: gains without bound (from none to some) are null."""
    return [
        {
            "name": s.name,
            "goal": s.goal,
            "gain": s.gain if isfinite(s.gain) else None,
            "users_ratio": s.users_ratio if isfinite(s.users_ratio) else None,
            "ttft_ratio": s.ttft_ratio,
            "tpot_ratio": s.tpot_ratio,
            "devices_ratio": s.devices_ratio,
            "settles": s.settles,
            "price": s.price,
            "how": s.how,
        }
        for s in found
    ]


def advice_lines(found: tuple[Suggestion, ...]) -> tuple[str, list[str]]:
    """A title and a line for each of the best; of several that differ in a number only, the best stands."""
    if not found:
        return "", []
    kept: dict[str, str] = {}
    for s in found:
        kept.setdefault(_family(s.name), s.how + (f" ({s.price})" if s.price else ""))
    return _GOALS[found[0].goal], list(kept.values())


def _family(name: str) -> str:
    """What suggestions of one kind have in common: their words without numbers."""
    return " ".join(word for word in name.split() if word.isalpha())

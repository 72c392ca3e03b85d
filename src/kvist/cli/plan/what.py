"""``kvist plan --what``: the question turned round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from kvist.cli.plan.asked import Asked, Part
from kvist.cli.plan.words import counted
from kvist.cost.device import Device
from kvist.errors import BadValue
from kvist.planner.ask import resolve, with_format
from kvist.planner.decide.fleet import Candidate, Search
from kvist.planner.decide.inverse import Answer, Slo, longest_context, most_users, smallest_devices, widest_format
from kvist.planner.decide.suggest import cache_formats
from kvist.planner.setup import Setup
from kvist.spec.place import Placement

if TYPE_CHECKING:
    from rich.console import Console


def part(asked: Asked) -> Part:
    """The answer to ``--what``. Raises ``BadValue`` for a question that is not known."""
    what = asked.params["what"]
    if what not in _QUESTIONS:
        raise BadValue("--what", what, f"one of {', '.join(_QUESTIONS)}")
    return _QUESTIONS[what](asked)


def _users(asked: Asked) -> Part:
    found = most_users(asked.plan.setup, asked.plan.load, asked.promise)
    return _answered("users", found, f"{counted(found.value, 'user')} at {asked.plan.load.context_tokens:,} tokens")


def _context(asked: Asked) -> Part:
    if asked.promise is not None:
        raise BadValue("--what", "context", "users, devices or format with --max-ttft or --max-tpot")
    found = longest_context(asked.plan.setup, asked.plan.load)
    return _answered("context", found, f"{counted(found.value, 'token')} for {counted(asked.plan.load.users, 'user')}")


def _answered(what: str, found: Answer, said: str) -> Part:
    data = {"what": what, "value": found.value, "unit": found.unit, "binding": found.binding, "how": found.how}

    def draw(console: Console) -> None:
        _say(console, "At most", said, f"bound by {found.binding}: {found.how}")

    return Part("inverse", data, draw, found.value > 0)


def _format(asked: Asked) -> Part:
    setup = asked.plan.setup
    load, formats = asked.plan.load, cache_formats(setup.engine)
    found = widest_format(lambda fmt: with_format(setup, fmt), load, formats, asked.promise)
    name = found.kv_format.name if found.kv_format else None
    data = {"what": "format", "value": name, "sure": found.sure, "refused": list(found.refused), "how": found.how}

    def draw(console: Console) -> None:
        _say(console, "Widest cache format", name or "none", found.how)
        for line in found.refused:
            console.print(f"  not {line}", markup=False, highlight=False)

    return Part("inverse", data, draw, name is not None)


def _devices(asked: Asked) -> Part:
    """The fewest of the device in question; ``find`` is asked once for each placement."""
    question, machine = asked.question, asked.machine

    def make(device: Device, place: Placement) -> Setup:
        cut = {"tp": place.tp, "pp": place.pp, "dp": place.dp, "count": place.devices}
        fixed = {"ep": 1, "cp": 1, "attention_dp": place.attention_dp}
        return resolve(replace(question, **cut, **fixed), machine)[0]  # type: ignore[arg-type]

    promise = asked.promise or Slo()
    found = smallest_devices(make, asked.plan.load, promise, devices=[asked.plan.setup.device])
    data = {
        "what": "devices",
        "value": found.answers[0].count if found.answers else None,
        "answers": [_candidate(c) for c in found.answers],
        "nearest": _candidate(found.nearest) if found.nearest else None,
        "tried": found.tried,
        "impossible": found.impossible,
    }
    return Part("inverse", data, lambda console: _draw_search(found, console), bool(found.answers))


def _candidate(found: Candidate) -> dict[str, Any]:
    return {
        "device": found.device.name,
        "count": found.count,
        "placement": found.place.name,
        "met": found.met,
        "sure": found.sure,
        "how": found.how,
    }


def _draw_search(found: Search, console: Console) -> None:
    if not found.answers:
        near = found.nearest
        said = f"{near.count} x {near.device.name} as {near.place.name}: {near.how}" if near else "nothing was possible"
        _say(console, "No count does", f"of {found.tried} placements tried", f"the nearest is {said}")
        return
    best = found.answers[0]
    doubt = "" if best.sure else "; not with the worst of every guess"
    _say(console, "At least", f"{best.count} x {best.device.name}, {best.place.name}", best.how + doubt)
    for other in found.answers[1:4]:
        console.print(f"  or as {other.place.name}: {other.how}", markup=False, highlight=False)


def _say(console: Console, head: str, said: str, why: str) -> None:
    from rich.text import Text

    console.print(Text(f"\n{head}: ", "bold").append(said, "bold green"))
    console.print(Text(f"  {why}"))


_QUESTIONS: Final[dict[str, Callable[[Asked], Part]]] = {
    "users": _users,
    "context": _context,
    "devices": _devices,
    "format": _format,
}

"""What ``kvist plan`` does with its flags: lists, or a plan with the parts that were asked for."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kvist.cli.options import EVERY, OTHERS
from kvist.cli.plan import lists
from kvist.cli.plan.options import question
from kvist.config import Given, gather
from kvist.errors import UsageError

if TYPE_CHECKING:
    from kvist.cli.plan.asked import Asked, Part

Params = Mapping[str, Any]


def run(params: Params) -> int:
    """Do what the flags say; returns the exit code. Raises ``KvistError``."""
    chosen = [name for name in _INSTEAD if params.get(name) not in (None, False)]
    if len(chosen) > 1:
        flags = " and ".join("--" + name for name in chosen)
        raise UsageError(f"{flags} are answers of their own", remedy="ask for one of them")
    if chosen:
        return _INSTEAD[chosen[0]](params)
    if params.get("configs"):
        raise UsageError("--configs belongs to --check", remedy="add --check CASES")
    return _plan(params)


def _log(params: Params) -> int:
    from kvist.cli.plan.log import show_log

    code: int = show_log(params["log"], gathered(params), as_json=params["as_json"])
    return code


_INSTEAD: dict[str, Callable[[Params], int]] = {
    "schema": lambda params: lists.show_schema(),
    "devices": lambda params: lists.show_devices(as_json=params["as_json"]),
    "models": lambda params: lists.show_models(as_json=params["as_json"]),
    "check": lambda params: lists.check(params["check"], params["configs"], as_json=params["as_json"]),
    "log": _log,
}


def gathered(params: Params) -> dict[str, Given]:
    """Flags, environment and file, merged. Raises ``BadValue``."""
    return gather(
        EVERY, {n: v for n, v in params.items() if n in EVERY}, os.environ, params.get("config"), other_env=OTHERS
    )


def _plan(params: Params) -> int:
    from kvist.cli.plan.asked import Asked
    from kvist.cli.plan.machine import machine_for, measured_only
    from kvist.cli.plan.parts import parts_of
    from kvist.planner.ask import answer

    merged = gathered(params)
    if params["measure"] and measured_only(merged, as_json=params["as_json"]):
        return 0
    asked_for = question(merged)
    if params["plot"]:
        from kvist.cli.plan.plot import check_plot_file

        check_plot_file(params["plot"])
    machine = machine_for(asked_for, measure=params["measure"])
    limits: dict[str, float] = {name: merged[name][0] for name in ("max_ttft", "max_tpot") if name in merged}
    asked = Asked(asked_for, machine, answer(asked_for, machine), params, limits)
    parts = parts_of(asked)
    if params["plot"]:
        from kvist.cli.plan.plot import plot

        plot(asked.plan, params["plot"])
    if params["as_json"]:
        _print_json(asked, parts)
    else:
        _draw(asked, parts)
    answers = [part.answered for part in parts if part.answered is not None]
    return 0 if all(answers or [asked.plan.verdict.fits]) else 1


def _print_json(asked: Asked, parts: tuple[Part, ...]) -> None:
    from kvist.cli.plan.extra import advice_as_list, turns_as_list
    from kvist.planner.decide.suggest import suggestions, turning_points
    from kvist.planner.report import as_dict

    fields = as_dict(asked.plan)
    fields["crossovers"] = turns_as_list(turning_points(asked.plan))
    fields["advice"] = advice_as_list(suggestions(asked.question, asked.plan, asked.machine, asked.promise))
    fields |= {part.key: part.data for part in parts}
    print(json.dumps(fields, ensure_ascii=False, allow_nan=False))


def _draw(asked: Asked, parts: tuple[Part, ...]) -> None:
    """The screen; with parts, these under the verdict."""
    from rich.console import Console

    from kvist.cli.plan.extra import advice_lines, turn_rows
    from kvist.cli.plan.view import render, verdict
    from kvist.planner.decide.suggest import suggestions, turning_points

    console = Console()
    if parts:
        if any(part.answered is None for part in parts):
            console.print(verdict(asked.plan))
        for part in parts:
            part.draw(console)
    else:
        title, lines = advice_lines(suggestions(asked.question, asked.plan, asked.machine, asked.promise))
        rows = turn_rows(turning_points(asked.plan))
        render(asked.plan, console, rows=rows, advice=lines, advice_title=title)
    if asked.params["plot"]:
        console.print(f"\ndrawn into {asked.params['plot']}", markup=False, highlight=False)

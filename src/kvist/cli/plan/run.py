"""What ``kvist plan`` does with its flags: lists, or a plan with the parts that were asked for."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kvist.cli.options import EVERY, merge
from kvist.cli.plan import lists
from kvist.cli.plan.options import question
from kvist.config import Given
from kvist.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from kvist.cli.plan.asked import Asked, Part

Params = Mapping[str, Any]


def run(params: Params) -> int:
    """Do what the flags say; returns the exit code. Raises ``KvistError``."""
    chosen = [name for name in _INSTEAD if params.get(name) not in (None, False)]
    if len(chosen) > 1:
        flags = " and ".join("--" + name for name in chosen)
        raise UsageError(f"{flags} are answers of their own", remedy="ask for one of them")
    if chosen:
        _refuse_others(params, chosen[0])
        return _INSTEAD[chosen[0]](params)
    if params.get("configs"):
        raise UsageError("--configs belongs to --check", remedy="add --check CASES")
    return _plan(params)


_MINDED: dict[str, frozenset[str]] = {
    "check": frozenset({"configs"}),
    "log": frozenset({"model", "engine", "online", "shape_only"}),
}
"""Flags that an answer without a plan listens to, beside ``--json`` and ``--config``."""


def _refuse_others(params: Params, chosen: str) -> None:
    """Raises ``UsageError`` for flags that would be ignored."""
    minded = _MINDED.get(chosen, frozenset()) | {chosen, "as_json", "config"}
    # a switch that is off is False by default, but --no-... of an option is asked for
    given = [n for n, v in params.items() if n not in minded and v is not None and (v is not False or n in EVERY)]
    if given:
        flags = ", ".join("MODEL" if name == "model" else "--" + name.replace("_", "-") for name in given)
        raise UsageError(f"--{chosen} makes no plan and does not listen to {flags}", remedy="leave them out")


def _refuse_times(asked: Asked) -> None:
    """Raises ``UsageError`` for questions about seconds where the weights are not known."""
    from kvist.planner.report import weights_known

    if weights_known(asked.plan.setup):
        return
    given = [name for name in ("offload", "split") if asked.params[name]] + list(asked.limits)
    if given:
        flags = ", ".join("--" + name.replace("_", "-") for name in given)
        raise UsageError(
            f"{flags}: times are not known, as nothing says what the weights weigh",
            remedy="leave it out, or plan a model whose config is whole",
        )


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
    return merge(params, EVERY)


def _plan(params: Params) -> int:
    from kvist.cli.plan.asked import Asked, answered
    from kvist.cli.plan.machine import machine_for, measured_only
    from kvist.cli.plan.parts import parts_of

    merged = gathered(params)
    if params["measure"] and measured_only(merged, as_json=params["as_json"]):
        return 0
    asked_for = question(merged)
    if params["plot"]:
        from kvist.cli.plan.plot import check_plot_file

        check_plot_file(params["plot"])
    machine = machine_for(asked_for, measure=params["measure"])
    limits: dict[str, float] = {name: merged[name][0] for name in ("max_ttft", "max_tpot") if name in merged}
    asked = Asked(asked_for, machine, answered(asked_for, machine), params, limits)
    _refuse_times(asked)
    kept = asked.promise is None or asked.promise.met(asked.plan)
    parts = parts_of(asked)
    if params["plot"]:
        from kvist.cli.plan.plot import plot

        plot(asked.plan, params["plot"])
    if params["as_json"]:
        _print_json(asked, parts)
    else:
        _draw(asked, parts)
    answers = [part.answered for part in parts if part.answered is not None]
    return 0 if all(answers or [asked.plan.verdict.fits and kept]) else 1


def _print_json(asked: Asked, parts: tuple[Part, ...]) -> None:
    from kvist.cli.plan.extra import advice_as_list, turns_as_list
    from kvist.planner.decide.suggest import suggestions, turning_points
    from kvist.planner.report import as_dict, promise_as_dict, weights_known

    fields, known = as_dict(asked.plan), weights_known(asked.plan.setup)
    if asked.promise is not None:
        fields["promise"] = promise_as_dict(asked.plan, asked.promise)
    fields["crossovers"] = turns_as_list(turning_points(asked.plan) if known else ())
    found = suggestions(asked.question, asked.plan, asked.machine, asked.promise) if known else ()
    fields["advice"] = advice_as_list(found)
    fields |= {part.key: part.data for part in parts}
    print(json.dumps(fields, ensure_ascii=False, allow_nan=False))


def _draw(asked: Asked, parts: tuple[Part, ...]) -> None:
    """The screen; with parts, these under the verdict."""
    from kvist.cli.plan.screen import screen
    from kvist.cli.plan.view import verdict

    with screen() as console:
        if not parts:
            _draw_plan(asked, console)
        elif any(part.answered is None for part in parts):
            console.print(verdict(asked.plan, asked.promise))
        for part in parts:
            part.draw(console)
        if asked.params["plot"]:
            console.print(f"\ndrawn into {asked.params['plot']}", markup=False, highlight=False, soft_wrap=True)


def _draw_plan(asked: Asked, console: Console) -> None:
    """Turns and advice are about seconds: without the weights there are none."""
    from kvist.cli.plan.extra import advice_lines, turn_rows
    from kvist.cli.plan.view import NOT_KNOWN, render
    from kvist.planner.decide.suggest import suggestions, turning_points
    from kvist.planner.report import weights_known

    if not weights_known(asked.plan.setup):
        render(asked.plan, console, rows=[("turns", NOT_KNOWN)])
        return
    title, lines = advice_lines(suggestions(asked.question, asked.plan, asked.machine, asked.promise))
    rows = turn_rows(turning_points(asked.plan))
    render(asked.plan, console, rows=rows, advice=lines, advice_title=title, promise=asked.promise)

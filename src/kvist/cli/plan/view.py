"""The screen of ``kvist plan``: the verdict, where memory goes, the table, what would help, what was assumed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from kvist.cli.model import count_text
from kvist.cli.plan.bars import TAG_STYLE, bar, legend, limit_mark, segments
from kvist.cli.plan.words import counted
from kvist.cost.interval import Interval
from kvist.planner.decide.slo import Slo
from kvist.planner.plan import Plan
from kvist.planner.report import as_dict, notes_of, sentence, weights_known
from kvist.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

NOTES_SHOWN: Final = 3
NOT_KNOWN: Final = "not known without the weights"
_ABOUT: Final = 150
"""Characters of a note on the screen; ``--explain`` prints it in full."""


def render(
    plan: Plan,
    console: Console,
    *,
    rows: Sequence[tuple[str, str]] = (),
    advice: Sequence[str] = (),
    advice_title: str = "What would help most",
    promise: Slo | None = None,
) -> None:
    """Draw one screen. ``rows`` are crossovers for the table's end, ``advice`` what would help most."""
    console.print(verdict(plan, promise))
    console.print()
    console.print(memory(plan, console))
    console.print()
    console.print(table(plan, rows))
    _list(console, advice_title, advice[:3], "")
    shown = notes_of(plan)[:NOTES_SHOWN]
    rest = len(notes_of(plan)) - len(shown)
    _list(console, "Notes", [_short(note) for note in shown], f"{rest} more: --explain" if rest else "")


def verdict(plan: Plan, promise: Slo | None = None) -> Text:
    """A line or two, and one for a promise: does it fit, what limits it, does it come in time."""
    from rich.text import Text

    said, latency, known = plan.verdict, plan.latency, weights_known(plan.setup)
    colour = "bold red" if not said.fits else "bold green" if said.sure and known else "bold yellow"
    head, colon, rest = sentence(plan).partition(":")
    line = Text(head.upper() + colon, colour).append(rest, "not bold")
    if not said.fits:
        broken = f"\nbroken by {said.broken}, {format_bytes(said.short_bytes)} short on each device"
        line.append(broken, "not bold red")
    elif known:
        bound = f"\nanswers bound by {latency.tpot_bound}, prompts by {latency.ttft_bound}"
        line.append(bound, "not bold dim")
    return line if promise is None else line.append_text(_promise(plan, promise))


def _promise(plan: Plan, promise: Slo) -> Text:
    """Whether limits on seconds are kept."""
    from rich.text import Text

    if not promise.met(plan):
        why = promise.said(plan) if plan.verdict.fits else "it does not fit"
        return Text(f"\npromise missed: {why}", "not bold red")
    if promise.sure(plan):
        return Text("\npromise kept, even with the worst of every guess", "not bold green")
    return Text("\npromise kept with the best guess, not with the worst of every guess", "not bold yellow")


def memory(plan: Plan, console: Console) -> RenderableType:
    """The bar and its legend."""
    from rich.console import Group
    from rich.text import Text

    parts, plain = segments(plan), console.options.ascii_only
    budget, place = plan.budget, plan.setup.place
    one = "The device" if place.devices == 1 else f"Each of {place.devices} devices"
    stage = f", the tightest of {place.pp} stages" if place.pp > 1 else ""
    head = f"{one}: {format_bytes(budget.total_bytes)}, of which the engine may use {budget.fraction:.4g}{stage}"
    width = min(console.width, 100)
    mark = limit_mark(plan, parts, width, ascii_only=plain)
    lines = [Text(head, "bold"), bar(parts, width, ascii_only=plain), *([mark] if mark else [])]
    return Group(*lines, legend(parts, ascii_only=plain))


def table(plan: Plan, rows: Sequence[tuple[str, str]] = ()) -> Table:
    """Numbers by name."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in (*_model_rows(plan), *_cache_rows(plan), *_time_rows(plan)):
        grid.add_row(name, value)
    for name, said in rows:
        grid.add_row(name, Text(said))
    return grid


def _model_rows(plan: Plan) -> list[tuple[str, Text]]:
    from rich.text import Text

    d, setup = as_dict(plan), plan.setup
    model, engine = d["model"], d["engine"]
    facts = [f"{model['layers']} layers"]
    if model["weight_elements"]:
        active = model["active_elements"]
        some = f", {count_text(active)} active" if active < model["weight_elements"] else ""
        facts.append(f"{count_text(model['weight_elements'])} weights{some}")
    if model["context_tokens"]:
        facts.append(f"context {model['context_tokens']:,}")
    step = f"{setup.batched_tokens:,}"
    many = f"{setup.place.devices} x " if setup.place.devices > 1 else ""
    place = f", {setup.place.name}" if setup.place.devices > 1 else ""
    widths = {
        round(8 * width, 2)
        for width in (setup.widths.dense, setup.widths.expert if _sparse(plan) else setup.widths.dense)
    }
    weights = " and ".join(f"{bits:.3g}" for bits in sorted(widths)) + " bit weights"
    weights = weights if weights_known(setup) else "weights not known"
    return [
        ("model", Text(model["name"], "bold").append(": " + ", ".join(facts), "not bold")),
        ("placement", Text(f"{many}{setup.device.name}{place}")),
        ("engine", Text(f"{setup.engine}, {engine['kv_format']} cache, {weights}; {step} tokens a step")),
    ]


def _sparse(plan: Plan) -> bool:
    """True when there are routed experts, whose weights may be of another width."""
    return any(x.ffn is not None and x.ffn.experts for x in plan.setup.spec.layers)


def _cache_rows(plan: Plan) -> list[tuple[str, Text]]:
    from rich.text import Text

    cache, load, capacity = as_dict(plan)["cache"], plan.load, plan.capacity
    ranks = plan.setup.place.devices > 1
    token = Text(f"{cache['bytes_per_token']:,} B = {format_bytes(cache['bytes_per_token'])}")
    if ranks:
        token.append(f"; {format_bytes(cache['bytes_per_token_on_rank'])} of it on each device")
    if cache["state_bytes"]:
        token.append(f"; and {format_bytes(cache['state_bytes'])} of state a sequence")
    user = Text(f"{format_bytes(cache['sequence_bytes'])} at {load.context_tokens:,} tokens")
    held = format_bytes(plan.request_bytes)
    user.append(f"; in blocks {held}" + (" on each device" if ranks else ""))
    if plan.shared_bytes:
        user.append(f" of its own, {format_bytes(plan.shared_bytes)} shared by all")
    return [
        ("one token", token),
        ("one user", user),
        ("pool", Text(_pool(plan) if capacity.tokens else "none")),
        ("fit", _fit(plan)),
    ]


def _fit(plan: Plan) -> Text:
    """Users at the context, and the context at which the users asked for fit."""
    from rich.text import Text

    low, best, high = plan.users_fit
    users, longest = plan.load.users, plan.longest_tokens
    said = spread(f"{best:,}", f"{low:,}", f"{high:,}").append(" user" if high == 1 else " users")
    if not longest:
        return said.append(f"; not {users:,} at any context") if high else Text("none")
    return (said if high else Text("none")).append(f"; {counted(users, 'user')} at up to {counted(longest, 'token')}")


def _pool(plan: Plan) -> str:
    capacity = plan.capacity
    said = f"{capacity.tokens:,} tokens"
    if capacity.blocks and capacity.block_tokens:
        said += f", {capacity.blocks:,} blocks of {capacity.block_tokens:,}"
    return f"{said} (as {plan.setup.engine} prints it)"


def _time_rows(plan: Plan) -> list[tuple[str, Text]]:
    from rich.text import Text

    latency, load = plan.latency, plan.load
    burst = latency.burst
    if not weights_known(plan.setup):
        names = ("first token", *(["in a burst"] if load.users > 1 else []), "next token", "speed")
        return [(name, Text(NOT_KNOWN, "yellow")) for name in names]
    rows = [("first token", _seconds(latency.ttft).append(f"; {latency.ttft_bound}", "dim"))]
    if load.users > 1:
        each = " to ".join(format_seconds(x) for x in (burst.first_s, burst.last_s))
        rows.append(
            ("in a burst", Text(f"{format_seconds(burst.mean_s)} on average, {each}, when all {load.users:,} arrive"))
        )
    rows.append(("next token", _seconds(latency.tpot).append(f"; {latency.tpot_bound}", "dim")))
    rate = latency.tokens_per_s
    speed = spread(f"{rate.best:,.0f}", f"{rate.low:,.0f}", f"{rate.high:,.0f}").append(" tokens/s in all")
    return [*rows, ("speed", speed)]


def _seconds(known: Interval) -> Text:
    best, low, high = (format_seconds(x) for x in (known.best, known.low, known.high))
    return spread(best, low, high).append(" ").append(known.tag, TAG_STYLE[known.tag])


def spread(best: str, low: str, high: str) -> Text:
    """``41.1 ms (35..58 ms)``; the best alone where the ends print alike."""
    from rich.text import Text

    if low == high:
        return Text(best)
    number, _, unit = low.partition(" ")
    if unit == high.partition(" ")[2]:
        low = number
    return Text(best).append(f" ({low}..{high})", "dim")


def _list(console: Console, title: str, lines: Sequence[str], more: str) -> None:
    if not lines:
        return
    from rich.table import Table
    from rich.text import Text

    console.print(Text(f"\n{title}", "bold"))
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for line in [*lines, *([more] if more else [])]:
        grid.add_row(" -", Text(line))
    console.print(grid)


def _short(note: str) -> str:
    return note if len(note) <= _ABOUT else note[: _ABOUT - 3].rstrip() + "..."

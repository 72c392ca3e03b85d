"""Tables beside a plan: keep, offload or recompute; prefill and decode apart; first tokens over the hit rate."""

from __future__ import annotations

from math import ceil, floor
from typing import TYPE_CHECKING, Any, Final

from kvist.cli.model import light_table
from kvist.cli.plan.asked import Asked, Part
from kvist.planner.decide.hit_rate import HitRow, hit_rate_curve
from kvist.planner.decide.offload import Crossover, Decision, crossover, table
from kvist.planner.decide.split import Balance, Shipment, balance, ship
from kvist.planner.decide.tiers import Tier, usual_tiers
from kvist.planner.report import interval, weights_known
from kvist.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

RATES: Final = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95)


def _light(title: str, *columns: str) -> Table:
    return light_table(title, *columns, left=columns[:1])


def offload_part(asked: Asked) -> Part:
    """Every usual tier of the device: load a user's whole prompt from it, or compute it again."""
    setup, n = asked.plan.setup, asked.plan.load.prompt_tokens
    tiers = usual_tiers(setup.device)
    decisions = table(setup, n, tiers)
    turns = [crossover(setup, tier) for tier in tiers]
    data = {
        "tokens": n,
        "decisions": [_decision(d) for d in decisions],
        "crossovers": [_crossover(c) for c in turns],
    }

    def draw(console: Console) -> None:
        drawn = _light(
            f"A prompt of {n:,} tokens that left the pool",
            "tier",
            "bytes",
            "load",
            "recompute",
            "better",
            "from tokens",
        )
        for d, turn in zip(decisions, turns, strict=True):
            better = f"{d.choice} x{d.factor:.3g}" + ("" if d.sure else "?")
            start = "never" if turn.tokens is None else "always" if turn.tokens == 1 else f"{turn.tokens:,}"
            drawn.add_row(
                d.tier.name, format_bytes(d.bytes), format_seconds(d.load_s.best), format_seconds(d.recompute_s.best),
                better, start,
            )  # fmt: skip
        drawn.caption = "?: not at every end of the guesses; from tokens: the shortest prefix that is worth loading"
        console.print(drawn)
        for d, tier in zip(decisions, tiers, strict=True):
            console.print(f"  {tier.name}: {keep_text(d.keep_from_reuse)}", markup=False, highlight=False)
        for tier in tiers:
            console.print(f"  {tier.name}: {tier.how}", markup=False, highlight=False, style="dim")

    return Part("offload", data, draw)


def keep_text(reuse: float | None) -> str:
    """How often prompts must be asked for again to be worth storing; rounded to the safe side."""
    if reuse is None:
        return "never worth keeping: computing again is faster"
    if reuse >= 1:
        return f"worth keeping when it is asked for again {reuse:.3g} times or more"
    if reuse > 0.2:
        return f"worth keeping when at least {ceil(100 * reuse)} of 100 come back"
    return f"worth keeping when at least 1 in {floor(1 / reuse):,} comes back" if reuse > 0 else "always worth keeping"


def _tier(tier: Tier) -> dict[str, Any]:
    return {
        "name": tier.name,
        "bytes_per_s": interval(tier.bytes_per_s),
        "latency_s": interval(tier.latency_s),
        "how": tier.how,
    }


def _decision(d: Decision) -> dict[str, Any]:
    return {
        "tier": _tier(d.tier),
        "kv_format": d.kv_format.name,
        "tokens": d.n_tokens,
        "bytes": d.bytes,
        "load_s": interval(d.load_s),
        "store_s": interval(d.store_s),
        "recompute_s": interval(d.recompute_s),
        "choice": d.choice,
        "factor": d.factor,
        "sure": d.sure,
        "keep_from_reuse": d.keep_from_reuse,
        "how": d.how,
    }


def _crossover(c: Crossover) -> dict[str, Any]:
    return {
        "tier": c.tier.name,
        "kv_format": c.kv_format.name,
        "tokens": c.tokens,
        "recompute_from": c.recompute_from,
        "limit_tokens": c.limit_tokens,
        "how": c.how,
    }


def split_part(asked: Asked) -> Part:
    """This setup's prompts on one group of devices and its answers on another, over the links there usually are."""
    setup, load = asked.plan.setup, asked.plan.load
    links = [tier for tier in usual_tiers(setup.device) if tier.name in ("neighbour", "network")]
    sent = [ship(setup, load, link) for link in links]
    even = balance(setup, setup, load, links[-1])
    data = {"shipments": [_shipment(link, s) for link, s in zip(links, sent, strict=True)], "balance": _balance(even)}

    def draw(console: Console) -> None:
        title = f"A prompt of {load.prompt_tokens:,} tokens computed on one group, answered on another"
        drawn = _light(title, "link", "bytes", "transfer", "of prefill", "left at its end", "hidden from")
        for link, s in zip(links, sent, strict=True):
            drawn.add_row(
                link.name, format_bytes(s.bytes), format_seconds(s.transfer_s.best), f"{s.share:.1%}",
                format_seconds(s.exposed_s), f"{s.hide_bytes_per_s / 1e9:.3g} GB/s",
            )  # fmt: skip
        console.print(drawn)
        console.print(even.how, markup=False, highlight=False)

    return Part("split", data, draw)


def _shipment(link: Tier, s: Shipment) -> dict[str, Any]:
    return {
        "link": _tier(link),
        "kv_format": s.kv_format.name,
        "tokens": s.n_tokens,
        "bytes": s.bytes,
        "landed_bytes": s.landed_bytes,
        "ratio": s.ratio,
        "prefill_s": interval(s.prefill_s),
        "transfer_s": interval(s.transfer_s),
        "share": s.share,
        "exposed_s": s.exposed_s,
        "hide_bytes_per_s": s.hide_bytes_per_s,
        "rate_per_s": s.rate_per_s,
        "load_bytes_per_s": s.load_bytes_per_s,
        "how": s.how,
    }


def _balance(b: Balance) -> dict[str, Any]:
    return {
        "rate_per_s": b.rate_per_s,
        "prefill_s": b.prefill_s,
        "tpot_s": b.tpot_s,
        "prefill_replicas": b.prefill_replicas,
        "whole_prefill_replicas": b.whole_prefill_replicas,
        "devices_per_device": b.devices_per_device,
        "users_per_prefill_replica": b.users_per_prefill_replica,
        "how": b.how,
    }


def hit_rates_part(asked: Asked) -> Part:
    """First tokens and users over the share of the prompt that is cached and shared."""
    rates = sorted({*RATES, asked.plan.load.hit_rate})
    known = weights_known(asked.plan.setup)
    rows = hit_rate_curve(asked.plan.setup, asked.plan.load, rates)

    def draw(console: Console) -> None:
        title = f"Hit rate, prompts of {asked.plan.load.prompt_tokens:,} tokens"
        drawn = _light(title, "hit rate", "cached tokens", "first token", "saved", "users fit", "bytes saved")
        for row in rows:
            drawn.add_row(
                f"{row.rate:.0%}", f"{row.cached_tokens:,}", format_seconds(row.ttft.best) if known else "not known",
                format_seconds(row.saved_s) if row.saved_s and known else "", f"{row.users_fit[1]:,}",
                format_bytes(row.saved_bytes) if row.saved_bytes else "",
            )  # fmt: skip
        console.print(drawn)

    return Part("hit_rates", [_hit_row(row) for row in rows], draw)


def _hit_row(row: HitRow) -> dict[str, Any]:
    return {
        "rate": row.rate,
        "cached_tokens": row.cached_tokens,
        "ttft_s": interval(row.ttft),
        "users_fit": dict(zip(("low", "best", "high"), row.users_fit, strict=True)),
        "saved_s": row.saved_s,
        "saved_bytes": row.saved_bytes,
    }

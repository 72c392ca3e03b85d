"""Prompts on some devices, answers on others: what must cross between them, how fast, and how many of each balance.

A cache crosses once, whatever the ranks: heads that several ranks hold and latents that all of them hold are sent one
time and copied behind the link. Layers are sent as they are finished, so only what is left at the end delays a token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from math import ceil

from kvist.cost.interval import Interval
from kvist.errors import BadValue
from kvist.planner.decide.offload import resting_bytes
from kvist.planner.decide.tiers import Tier
from kvist.planner.plan import timing_of
from kvist.planner.setup import Load, Setup
from kvist.spec.format import KVFormat
from kvist.spec.layer import LayerSpec
from kvist.spec.place import Placement
from kvist.spec.shard import with_drafts
from kvist.spec.weights import mixer_elements, norm_elements
from kvist.units import ceil_div, format_bytes, format_seconds

STATE_BYTES = 4
"""Bytes of an element of recurrent state, for shares between layers only: what crosses is the engine's number."""


@dataclass(frozen=True, slots=True)
class Shipment:
    """One prompt's cache on its way. ``bytes`` cross; the decode ranks together then hold ``landed_bytes``.

    ``ratio`` is ``bytes`` over what the pool's own format would send, ``share`` the transfer's time over the prompt's.
    ``exposed_s`` is what is left of the transfer when the prompt is done (best guess), at the least the last layer;
    from ``hide_bytes_per_s`` on nothing but that last layer is left. ``load_bytes_per_s`` is what ``rate_per_s``
    prompts a second need on average.
    """

    kv_format: KVFormat
    n_tokens: int
    bytes: int
    landed_bytes: int
    ratio: float
    prefill_s: Interval
    transfer_s: Interval
    share: float
    exposed_s: float
    hide_bytes_per_s: float
    rate_per_s: float
    load_bytes_per_s: float
    how: str


@dataclass(frozen=True, slots=True)
class Balance:
    """How many devices compute prompts for those that answer. ``rate_per_s``: what the decode side's users send.

    ``prefill_replicas`` (exact, and whole) keep up with one decode setup; ``devices_per_device`` is prefill devices
    for each decode device, ``users_per_prefill_replica`` the other way round.
    """

    rate_per_s: float
    prefill_s: float
    tpot_s: float
    prefill_replicas: float
    whole_prefill_replicas: int
    devices_per_device: float
    users_per_prefill_replica: float
    how: str


def shipped_bytes(setup: Setup, n_tokens: int, cached_tokens: int = 0, kv_format: KVFormat | None = None) -> int:
    """Bytes of one sequence that must cross when ``cached_tokens`` are there already: every row once, block-rounded.

    That is what the tokens behind them would hold alone: their rows, their part of a window, the whole of a state.
    """
    return resting_bytes(replace(setup, place=Placement()), n_tokens - cached_tokens, kv_format)


def landed_bytes(setup: Setup, n_tokens: int, kv_format: KVFormat | None = None) -> int:
    """Bytes of one sequence over all ranks that serve it, copies included; each stage counts as the fullest."""
    return resting_bytes(setup, n_tokens, kv_format) * setup.place.attention_tp * setup.place.pp


def ship(setup: Setup, load: Load, link: Tier, kv_format: KVFormat | None = None) -> Shipment:
    """The load's prompt from the replica that computes it (``setup``) over ``link`` to a replica that answers.

    ``link`` is all that joins the two replicas. ``hit_rate`` of the prompt is on the other side already. The rate is
    what the load's users send (see ``arrival_rate``). Raises ``BadValue`` for what the engine refuses.
    """
    fmt, n, cached = kv_format or setup.kv_format, load.prompt_tokens, load.cached_tokens
    sent, own = shipped_bytes(setup, n, cached, fmt), shipped_bytes(setup, n, cached)
    prefill = timing_of(setup).prefill(n, cached, 0, n)
    transfer = link.seconds(sent)
    layers = _layer_shares(setup, n, cached, fmt)
    exposed = _exposed_s(layers, sent, prefill.best, link)
    hide = _hiding_rate(layers, sent, prefill.best)
    rate = arrival_rate(setup, load, prefill.best + exposed)
    ratio = sent / own if own else 1.0
    said = (
        f"{n - cached:,} tokens are {format_bytes(sent)} of {fmt.name}: {format_seconds(transfer.best)} over "
        f"{link.name} at {link.bytes_per_s.best / 1e9:.4g} GB/s, {transfer.best / prefill.best:.2%} of the prompt's "
        f"{format_seconds(prefill.best)}; sent layer by layer {format_seconds(exposed)} are left at its end; "
        f"{hide / 1e9:.4g} GB/s would hide all but the last layer"
    )
    return Shipment(
        fmt, n, sent, landed_bytes(setup, n, fmt), ratio, prefill, transfer, transfer.best / prefill.best, exposed,
        hide, rate, rate * sent, said,
    )  # fmt: skip


def arrival_rate(setup: Setup, load: Load, ttft_s: float | None = None) -> float:
    """Prompts a second of ``load.users`` who ask again as soon as they are answered: users / (TTFT + output x TPOT).

    ``ttft_s``: seconds to the first token; the prompt alone on ``setup`` when None.
    """
    timing = timing_of(setup)
    if ttft_s is None:
        ttft_s = timing.prefill(load.prompt_tokens, load.cached_tokens, 0, load.prompt_tokens).best
    return load.users / (ttft_s + load.output_tokens * _tpot_s(setup, load))


def balance(prefill: Setup, decode: Setup, load: Load, link: Tier | None = None) -> Balance:
    """How many replicas of ``prefill`` keep up with the users of ``decode`` (all its replicas together).

    A prompt has a prefill replica for itself; an answer is never disturbed by prompts. ``link`` adds what is left of a
    transfer to the time to the first token. Raises ``BadValue`` when the two hold different models.
    """
    if prefill.spec != decode.spec:
        raise BadValue("decode", decode.spec.name or decode.spec.architecture, "the model of the prefill setup")
    n = load.prompt_tokens
    busy = timing_of(prefill).prefill(n, load.cached_tokens, 0, n).best
    late = ship(prefill, load, link).exposed_s if link is not None else 0.0
    tpot, rate = _tpot_s(decode, load), arrival_rate(decode, load, busy + late)
    replicas = rate * busy
    per_replica = prefill.place.devices // prefill.place.dp
    said = (
        f"{load.users:,} users on {decode.place.name} send {rate:.4g} prompts a second (one every "
        f"{format_seconds(busy + late)} + {load.output_tokens:,} x {format_seconds(tpot)}); each keeps "
        f"{prefill.place.name} busy for {format_seconds(busy)}: {replicas:.3g} replicas, {ceil(replicas):,} whole ones"
    )
    return Balance(
        rate, busy, tpot, replicas, ceil(replicas), replicas * per_replica / decode.place.devices,
        load.users / replicas, said,
    )  # fmt: skip


def _tpot_s(setup: Setup, load: Load) -> float:
    """Seconds between tokens in the middle of the answers."""
    middle = max(1, load.context_tokens - load.output_tokens // 2)
    return timing_of(setup).decode(ceil_div(load.users, setup.place.dp), middle).best


def _layer_shares(setup: Setup, n: int, cached: int, fmt: KVFormat) -> tuple[tuple[float, float], ...]:
    """(share of the prompt's time, share of its bytes) of every layer: time by FLOPs, bytes by rows and state."""
    layers, hidden = with_drafts(setup.spec, setup.draft_layers).layers, setup.spec.hidden
    flops = [_flops(layer, hidden, n, cached) for layer in layers]
    held = [float(x.kv_bytes(n - cached, fmt) + x.state_elements * STATE_BYTES) for x in layers]
    all_flops, all_held = sum(flops) or 1.0, sum(held) or 1.0
    return tuple((f / all_flops, h / all_held) for f, h in zip(flops, held, strict=True))


def _flops(layer: LayerSpec, hidden: int, n: int, cached: int) -> float:
    weights = mixer_elements(layer, hidden) + norm_elements(layer, hidden)
    if layer.ffn is not None:
        weights += layer.ffn.dense_elements(hidden) + layer.ffn.active * layer.ffn.expert_elements(hidden)
    return 2.0 * (n - cached) * weights + layer.attention_flops(n - cached, n)


def _exposed_s(layers: tuple[tuple[float, float], ...], sent: int, prefill_s: float, link: Tier) -> float:
    """Seconds between the prompt's last layer and the arrival of everything, one layer sent after the other."""
    rate, free = link.bytes_per_s.best, 0.0
    for done, (_, share) in zip(accumulate(time for time, _ in layers), layers, strict=True):
        free = max(free, done * prefill_s) + share * sent / rate
    return free - prefill_s + link.latency_s.best


def _hiding_rate(layers: tuple[tuple[float, float], ...], sent: int, prefill_s: float) -> float:
    """The least rate at which, when the last layer is computed, all earlier ones have crossed."""
    need, waiting, time_left = 0.0, 0.0, 0.0
    for i in range(len(layers) - 2, -1, -1):
        waiting += layers[i][1] * sent
        time_left += layers[i + 1][0] * prefill_s
        need = max(need, waiting / time_left) if time_left else need
    return need

"""What else could be done: each variant turns a setup and a load into another plan, computed like any other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from kvist.errors import BadValue
from kvist.planner.decide.offload import decide
from kvist.planner.decide.tiers import Tier
from kvist.planner.plan import Plan, plan, timing_of
from kvist.planner.setup import Load, Setup
from kvist.spec.format import KVFormat
from kvist.spec.place import Placement
from kvist.units import ceil_div, format_bytes, format_seconds

AtPlace = Callable[[Placement], Setup]
"""The same model on the same kind of device, cut otherwise: weights differ from rank to rank."""


class Variant(Protocol):
    """One thing to do differently. ``asked``: somebody wants to know of it, so that what is impossible must be said."""

    @property
    def name(self) -> str:
        """In a few words, as advice: ``KV in fp8``."""
        ...

    @property
    def asked(self) -> bool:
        """Whether it was asked for by name."""
        ...

    def planned(self, setup: Setup, load: Load) -> tuple[Plan, str]:
        """The plan, and what it costs beside numbers (may be empty). Raises ``BadValue`` where it cannot be."""
        ...


@dataclass(frozen=True, slots=True)
class Changed:
    """Another setup."""

    name: str
    change: Callable[[Setup], Setup]
    asked: bool = False
    price: str = ""

    def planned(self, setup: Setup, load: Load) -> tuple[Plan, str]:
        """The changed setup under the same load."""
        return plan(self.change(setup), load), self.price


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """A part of every prompt that is the same for all and cached: system prompts, documents."""

    rate: float
    asked: bool = False

    @property
    def name(self) -> str:
        """``50 % of the prompt shared``."""
        return f"{self.rate:.0%} of the prompt shared and cached"

    def planned(self, setup: Setup, load: Load) -> tuple[Plan, str]:
        """The same setup, more hits."""
        if self.rate < load.hit_rate:
            raise BadValue("hit_rate", self.rate, f"at least the {load.hit_rate} there is")
        return plan(setup, replace(load, hit_rate=self.rate)), "prompts must really begin alike"


@dataclass(frozen=True, slots=True)
class Offloaded:
    """Prompts of users who come back are kept in a tier and loaded instead of computed, in a format of their own."""

    tier: Tier
    kv_format: KVFormat
    asked: bool = False

    @property
    def name(self) -> str:
        """``prompts kept in host as fp8``."""
        return f"prompts kept in {self.tier.name} as {self.kv_format.name}"

    def planned(self, setup: Setup, load: Load) -> tuple[Plan, str]:
        """The same plan with a first token that waits for the transfer and the prompt's last token."""
        base, n = plan(setup, load), load.prompt_tokens
        found = decide(setup, n, self.tier, self.kv_format, rest_tokens=1)
        if found.choice != "load":
            raise BadValue("tier", self.tier.name, "one that is faster than computing again", remedy=found.how)
        timing, middle = timing_of(setup), max(1, load.context_tokens - load.output_tokens // 2)
        answering = timing.local(ceil_div(load.users, setup.place.dp)) - 1
        last = timing.prefill(n, n - 1, answering, middle)
        ttft = found.load_s + last
        latency = replace(base.latency, ttft=ttft, ttft_bound=f"transfer from {self.tier.name}")
        stored = format_seconds(found.store_s.best)
        price = f"{format_bytes(found.bytes)} of {self.tier.name} a user and device, {stored} to store"
        return replace(base, latency=latency), price


def narrower_kv(names: Iterable[str] = ("fp8", "q8_0", "int4"), *, asked: bool = False) -> tuple[Variant, ...]:
    """KV in narrower formats; one that is not narrower is refused when it is planned."""
    return tuple(_narrow(KVFormat.planned(name), asked) for name in names)


def _narrow(fmt: KVFormat, asked: bool) -> Changed:
    def change(setup: Setup) -> Setup:
        before, after = (setup.spec.kv_bytes_per_token(f) for f in (setup.kv_format, fmt))
        if after >= before:
            raise BadValue(
                "kv_format", fmt.name, f"narrower than {setup.kv_format.name}: {after:,} B a token, not {before:,}"
            )
        return replace(setup, kv_format=fmt)

    return Changed(f"KV in {fmt.name}", change, asked, "K and V lose precision")


def narrower_weights(builders: Mapping[str, Callable[[Setup], Setup]], *, asked: bool = False) -> tuple[Variant, ...]:
    """Weights in other formats, by name; the builders know how to weigh them."""
    return tuple(
        Changed(f"weights in {name}", build, asked, "weights lose precision") for name, build in builders.items()
    )


def other_places(at_place: AtPlace, places: Iterable[Placement], *, asked: bool = False) -> tuple[Variant, ...]:
    """The model cut otherwise."""

    def moved(place: Placement) -> Changed:
        return Changed(place.name, lambda _: at_place(place), asked)

    return tuple(moved(place) for place in places)


def wider_places(setup: Setup) -> tuple[Placement, ...]:
    """Twice the devices in each direction, and attention-DP where ranks would hold copies of the same latent."""
    place = setup.place
    out = [replace(place, tp=2 * place.tp), replace(place, pp=2 * place.pp), replace(place, dp=2 * place.dp)]
    if place.tp > 1 and place.cp == 1 and not place.attention_dp and _copies(setup):
        out.append(replace(place, attention_dp=True))
    return tuple(out)


def _copies(setup: Setup) -> bool:
    """True when more ranks serve a sequence than it has cache heads to share out."""
    heads = [x.cache_heads for x in setup.spec.layers if x.owns_cache]
    return bool(heads) and min(heads) < setup.place.tp


def smaller_steps(setup: Setup, *, asked: bool = False) -> tuple[Variant, ...]:
    """Half and a quarter of the tokens of a step: smaller activations, windows that keep less, later first tokens."""

    def cut(tokens: int) -> Changed:
        return Changed(f"steps of {tokens:,} tokens", lambda s: replace(s, batched_tokens=tokens), asked)

    sizes = {max(1, setup.batched_tokens // n) for n in (2, 4)} - {setup.batched_tokens}
    return tuple(cut(n) for n in sorted(sizes, reverse=True))


def usual_variants(
    setup: Setup,
    at_place: AtPlace | None = None,
    weights: Mapping[str, Callable[[Setup], Setup]] | None = None,
    tiers: Iterable[Tier] = (),
) -> tuple[Variant, ...]:
    """What is worth a look without being asked; what turns out impossible is left out by ``advise``."""
    formats = (setup.kv_format, KVFormat.planned("fp8"))
    return (
        *narrower_kv(),
        *narrower_weights(weights or {}),
        *(other_places(at_place, wider_places(setup)) if at_place is not None else ()),
        *smaller_steps(setup),
        *(SharedPrefix(rate) for rate in (0.5, 0.9)),
        *(Offloaded(tier, fmt) for tier in tiers for fmt in dict.fromkeys(formats)),
    )

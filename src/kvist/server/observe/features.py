"""What this server can do, what is switched off or impossible, and why: nothing is accepted in silence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvist.server.config import ServeConfig
from kvist.server.served import Served
from kvist.text.tools.registry import choose


@dataclass(frozen=True, slots=True)
class Feature:
    """``why`` it is inactive, or how it is set. ``effects``: the engine's counters that show what it does."""

    name: str
    active: bool
    why: str = ""
    effects: tuple[str, ...] = ()

    def told(self, numbers: Mapping[str, float]) -> dict[str, Any]:
        """As JSON, with the counters' values."""
        fact: dict[str, Any] = {"state": "active" if self.active else "inactive"}
        if self.why:
            fact["why"] = self.why
        if self.active and self.effects:
            fact["effect"] = {name: numbers.get(name, 0) for name in self.effects}
        return fact


def features(served: Served, config: ServeConfig) -> list[Feature]:
    """Every feature, active or not."""
    return [*_cache(served, config), *_scheduling(served, config), _native_steps(served), *_answers(served, config)]


def _cache(served: Served, config: ServeConfig) -> list[Feature]:
    tenants = config.tenants
    reuse = served.engine.scheduler.cache.reuse
    if tenants.open:
        why = "no API keys: everyone is one tenant"
    else:
        why = "" if tenants.isolate else "switched off (--no-isolate): all keys share one cache"
    return [
        Feature("prefix_cache", reuse, "" if reuse else "switched off (--no-prefix-cache)", ("sched_cached_tokens",)),
        Feature("tenant_isolation", tenants.isolate and not tenants.open, why),
        Feature("cache_salt", reuse, "" if reuse else "the prefix cache is off"),
        _tiers(served),
    ]


def _tiers(served: Served) -> Feature:
    places, config = served.places, served.config.tiers
    if places is None:
        return Feature("tiers", False, "blocks live in the pool only (--tier names other places)")
    if not served.engine.scheduler.cache.reuse:
        return Feature("tiers", False, "the prefix cache is off")
    how = f"{', '.join(places.names)}: write {config.when}, load {config.load}"
    effects = ("sched_saved_blocks", "sched_lost_blocks", "sched_finds", "sched_loads", "sched_loaded_tokens")
    return Feature("tiers", True, how, effects)


def _scheduling(served: Served, config: ServeConfig) -> list[Feature]:
    sched = served.config.sched
    slo = sched.itl_slo != "off"
    prefix = sched.order == "prefix"
    many = len(config.tenants.known) > 1
    chunk = min(sched.token_budget, sched.chunk_tokens or sched.token_budget)
    cut = chunk < served.context_tokens
    return [
        Feature(
            "chunked_prefill",
            cut,
            f"chunks of {chunk} tokens at most" if cut else f"a whole context fits one step of {sched.token_budget}",
            ("sched_mixed_steps",),
        ),
        Feature("itl_slo", slo, f"--itl-slo {sched.itl_slo}", ("pace_limit_tokens",)),
        Feature("cache_aware_order", prefix, f"--order {sched.order}", ("sched_led_admissions",)),
        Feature("fair_share", many, "" if many else "fewer than two API keys"),
        Feature("speculative_decoding", False, "no drafter is loaded"),
    ]


def _native_steps(served: Served) -> Feature:
    """Also where it is active some steps go layer by layer, and are counted."""
    by_layer = served.why_by_layer
    why = f"layer by layer: {by_layer}" if by_layer else "layer by layer only where a library's products are faster"
    return Feature("native_steps", not by_layer, why, ("exec_native_steps", "exec_layered_steps"))


def _answers(served: Served, config: ServeConfig) -> list[Feature]:
    template, grammars = served.template, served.grammars
    if template is None:
        lacks = "the model has no chat template (--chat-template FILE)"
        tools = Feature("tool_calls", False, lacks)
    else:
        lacks, parser = "", choose(template.source)
        why = f"read as {parser} writes them" if parser else "the template's way to call tools is not known"
        tools = Feature("tool_calls", parser is not None, why)
    keep = config.keep_answers and template is not None
    append = config.append_only and keep
    return [
        Feature("chat", template is not None, lacks),
        tools,
        Feature("structured_output", grammars is not None, "" if grammars else served.why_no_grammars),
        Feature("keep_answers", keep, "" if keep else lacks or "switched off (--no-keep-answers)"),
        Feature("append_only", append, "" if append else lacks or "not asked for (--append-only)"),
    ]

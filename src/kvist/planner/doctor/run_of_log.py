"""How an engine was started, from what its log states: the question to put to its emulator."""

from __future__ import annotations

import re
from typing import Final

from kvist.errors import BadValue
from kvist.planner.doctor.base import EngineLog, Term
from kvist.planner.doctor.identity import identities
from kvist.planner.engines.base import Knob, Run
from kvist.planner.engines.registry import engine as engine_named
from kvist.spec.format import F16, KVFormat
from kvist.spec.model import ModelSpec
from kvist.spec.place import Placement

_NEXT_TOKEN: Final = ("mtp", "nextn")
_CONCURRENCY_FROM: Final = (0, 20, 2)
_GROUPS_FROM: Final = (0, 9, 2)
_ASYNC_FROM: Final = (0, 27)


def emulator_name(log: EngineLog) -> str:
    """The emulator that counts as this log's version does. Since 0.20.2 vLLM's tokens need a longest request."""
    if log.engine != "vllm":
        return log.engine
    version = _version(log)
    if version:
        return "vllm" if version >= _CONCURRENCY_FROM else "vllm-legacy"
    known = _positive(log, "max_model_tokens") or _count(log, "concurrency_tokens", "needed_tokens")
    return "vllm" if known and not log.all("gpu_blocks") else "vllm-legacy"


def _version(log: EngineLog) -> tuple[int, ...]:
    found = re.match(r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?", log.version)
    return tuple(int(x or 0) for x in found.groups()) if found else ()


def run_of_log(log: EngineLog, spec: ModelSpec) -> Run:
    """The run that a log describes. What the log does not state has the engine's default.

    Raises ``BadValue`` for a placement that cannot be (a context-parallel degree that does not divide...).
    """
    available = available_of_log(log)
    draft = log.word("draft_method").lower()
    return Run(
        spec=spec,
        kv_format=kv_format_of_log(log),
        place=_place(log),
        available_bytes=None if available is None else max(0, int(available.value)),
        max_model_tokens=_positive(log, "max_model_tokens") or _count(log, "concurrency_tokens", "needed_tokens"),
        sequences=_positive(log, "sequences"),
        block_tokens=_positive(log, "block_tokens"),
        batched_tokens=_positive(log, "batched_tokens"),
        prefix_caching=_prefix_caching(log),
        draft_layers=max(1, spec.draft_layers) if any(word in draft for word in _NEXT_TOKEN) else 0,
        draft_tokens=_positive(log, "draft_tokens") or 0,
        knobs=_knobs(log),
    )


def available_of_log(log: EngineLog) -> Term | None:
    """What one rank had for its cache: the least over ranks. SGLang's follows from what was free."""
    if log.engine == "vllm":
        return log.least("kv_available")
    least = min(identities(log), key=lambda i: i.expected.best, default=None)
    if least is None:
        return log.least("kv_available")
    last = log.all("kv_tokens")[-1]
    want = least.expected
    return Term("kv_available", want.best, "bytes", least.how, last.line, last.text, want.high - want.low, least.rank)


def kv_format_of_log(log: EngineLog) -> KVFormat:
    """What the cache holds. ``auto`` and words that no format has mean 16 bits."""
    seen = log.word("pool_dtype") if log.engine == "sglang" else ""
    word = (seen or log.word("kv_dtype")).lower().removeprefix("torch.").removesuffix("fn").removesuffix("_ds_mla")
    word = re.sub(r"^float8", "fp8", word)
    try:
        return KVFormat.planned(word) if word not in ("", "auto") else KVFormat(F16, F16)
    except BadValue:
        return KVFormat(F16, F16)


def _place(log: EngineLog) -> Placement:
    seen = {name: _seen(log, name.upper()) for name in ("tp", "pp", "dp")}
    tp, pp, dp = (_positive(log, name) or seen[name] for name in ("tp", "pp", "dp"))
    cp = _positive(log, "cp") or 1
    attention_dp = log.settings.get("attention_dp") is True and log.engine != "vllm"
    ep = tp if log.settings.get("expert_parallel") is True else 1
    return Placement(tp=tp, pp=pp, dp=1 if attention_dp else dp, ep=ep, cp=cp, attention_dp=attention_dp)


def _seen(log: EngineLog, kind: str) -> int:
    """Ranks of a kind that wrote lines (``TP0`` to ``TP3``: 4). At least one."""
    ranks = {t.rank for t in log.terms}
    found = [int(x.group(1)) for rank in ranks if (x := re.search(rf"\b{kind}(\d{{1,4}})\b", rank))]
    return max(found, default=0) + 1


def _positive(log: EngineLog, name: str) -> int | None:
    value = log.count(name)
    return value if value is not None and value > 0 else None


def _count(log: EngineLog, *names: str) -> int | None:
    terms = [term for name in names if (term := log.last(name)) is not None and term.value > 0]
    return int(terms[0].value) if terms else None


def _prefix_caching(log: EngineLog) -> bool:
    """As stated; version 0 of vLLM had it off, everything later on."""
    stated = log.settings.get("prefix_caching")
    return stated if isinstance(stated, bool) else not (log.engine == "vllm" and bool(log.all("cpu_blocks")))


def _knobs(log: EngineLog) -> dict[str, Knob]:
    """Switches of the emulator that the log states."""
    if log.engine in ("llama.cpp", "ik_llama.cpp"):
        return _cell_knobs(log)
    out: dict[str, Knob] = {}
    if log.engine == "vllm":
        if log.settings.get("hybrid_manager_disabled") is True:
            out["hybrid"] = False
        if "ds_mla" in log.word("kv_dtype"):
            out["latent_row"] = "fp8_ds_mla"
        version = _version(log)
        swap = log.last("cpu_blocks")
        if swap is not None:
            out["count"] = "blocks"
            stated = 0 if swap.value == 0 else log.count("swap_gib")
            out |= {"swap_gib": stated} if stated is not None and stated >= 0 else {}
        elif version and version < _GROUPS_FROM:
            out["count"] = "layers"
        if log.settings.get("async_scheduling") is True and version >= _ASYNC_FROM:
            out["steps_in_flight"] = 2
    if log.engine == "sglang":
        slots, full, window = log.last("state_slots"), log.last("full_tokens"), log.last("window_tokens")
        if slots:
            out["state_slots"] = int(slots.value)
        if full and window and full.value > 0:
            out["window_pool_percent"] = round(100 * window.value / full.value)
    return {k: v for k, v in out.items() if k in engine_named(emulator_name(log)).knobs}


def _cell_knobs(log: EngineLog) -> dict[str, Knob]:
    out: dict[str, Knob] = {}
    if cells := _positive(log, "n_ctx") or _positive(log, "kv_size"):
        out["n_ctx"] = cells
    if ubatch := _positive(log, "n_ubatch"):
        out["ubatch"] = ubatch
    streams = log.last("kv_streams")
    if streams is not None:
        out["unified"] = streams.value == 1
    elif isinstance(log.settings.get("kv_unified"), bool):
        out["unified"] = log.settings["kv_unified"] is True
    else:
        out["unified"] = True
    if log.settings.get("swa_full") is True:
        out["windows"] = "full"
    mode = log.count("mla_attn")
    if mode is not None:
        out["mla"] = {0: "expanded", 1: "twice"}.get(mode, "latent")
    elif (log.count("n_lora_kv") or 0) and (log.count("n_head_kv") or 0) > 1:
        out["mla"] = "expanded"
    cells_seen = [int(t.value) for t in log.all("kv_cells") if t.what != "draft"]
    if any(n % 256 for n in cells_seen):
        out["pad"] = 32 if all(n % 32 == 0 for n in cells_seen) else 1
    return out

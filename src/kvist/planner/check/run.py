"""From a case to the run it describes: engine, version's rules, settings from fields or words, defaults said aloud."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from kvist.errors import MissingField, ModelError
from kvist.planner.check.case import Case
from kvist.planner.check.models import Found
from kvist.planner.check.quantity import Quantity
from kvist.planner.engines.base import Knob, Run
from kvist.planner.engines.vllm_compressed import compresses
from kvist.planner.engines.vllm_formats import PACKED_LATENT, vllm_format
from kvist.spec.format import BF16, F16, KVFormat
from kvist.spec.place import Placement
from kvist.units import GIB


@dataclass(slots=True)
class Draft:
    """A run being put together. ``said`` collects what was assumed and where settings came from.

    ``unstated`` holds, for each setting that nobody stated, the other values that are documented defaults somewhere.
    """

    case: Case
    found: Found
    quantity: Quantity
    engine: str
    run: Run
    said: list[str] = field(default_factory=list)
    unstated: dict[str, tuple[object, ...]] = field(default_factory=dict)

    def set(self, **knobs: Knob) -> None:
        """Add knobs of the engine."""
        self.run = replace(self.run, knobs={**self.run.knobs, **knobs})

    def change(self, **values: object) -> None:
        """Change fields of the run."""
        self.run = replace(self.run, **values)  # type: ignore[arg-type]


def draft(case: Case, found: Found, asked: Quantity, engine: str) -> Draft:
    """The run of a case. Raises ``BadValue`` for formats and degrees that mean nothing."""
    out = Draft(case, found, asked, engine, Run(found.spec))
    if found.how not in ("exact", "same model"):
        out.said.append(f"{found.config} ({found.how}) for {case.model}")
    out.change(kv_format=_format(out), place=_place(out))
    length = asked.at_tokens or case.count("max_model_len", "max_model_tokens", "context", "tokens")
    out.change(
        max_model_tokens=length or case.words.count("max_model_tokens"),
        sequences=case.count("max_num_seqs", "n_seq") or case.words.count("sequences"),
        block_tokens=case.count("block_size", "block_tokens") or case.words.count("block_tokens"),
        available_bytes=_available(case),
    )
    _RULES[engine.split("-")[0]](out)
    return out


def _available(case: Case) -> int | None:
    """Bytes of one rank: printed as available, or what the budget's terms leave."""
    gib = case.field("available_kv_gib", "kv_cache_gib", "available_gib", "available_kv_gib_approx")
    return None if gib is None else max(0, int(gib * GIB))


def _place(out: Draft) -> Placement:
    """Degrees of parallelism: from fields, then from words; devices that nothing explains are tensor parallel."""
    words, case = out.case.words, out.case
    found = {
        "tp": case.count("tp", "tensor_parallel_size") or words.count("tp"),
        "pp": case.count("pp", "pipeline_parallel_size") or words.count("pp"),
        "cp": case.count("cp", "dcp", "decode_context_parallel_size") or words.count("cp"),
    }
    devices = case.count("num_gpus") or out.case.hardware.devices()
    splits = not out.engine.startswith(("llama", "ik", "ipex"))
    if found["tp"] is None and devices and devices > 1 and splits and devices % (found["pp"] or 1) == 0:
        found["tp"] = devices // (found["pp"] or 1)
        out.said.append(f"tp {found['tp']} from {devices} devices")
    if not splits:
        found["tp"] = found["pp"] = found["cp"] = None
    attention_dp = splits and words.says(r"\b(?:dp[- ]attention|attention[- ]dp|enable-dp-attention|adp)\b")
    degrees = {k: v for k, v in found.items() if v}
    return Placement(**degrees, attention_dp=attention_dp)


def _format(out: Draft) -> KVFormat:
    """Elements of K and V: ``K q8_0 / V q4_0``, ``fp8_e4m3``, ``auto`` (the model's 16 bits)."""
    text = str(out.case.raw.get("kv_dtype") or "").lower().strip()
    plain = KVFormat(F16, F16) if out.engine.startswith(("llama", "ik", "ipex")) else KVFormat(BF16, BF16)
    if not text or text == "auto" or "state" in text:
        if not text:
            out.said.append("KV in 16 bits (nothing said)")
        return plain
    k = re.search(r"\b(?:ctk|k)\b\W*([a-z]\w*\d\w*)", text)
    v = re.search(r"\b(?:ctv|v)\b\W*([a-z]\w*\d\w*)", text)
    if k and v:
        return KVFormat.planned(f"{k.group(1)}/{v.group(1)}")
    if k or v:
        one = KVFormat.planned((k or v).group(1))  # type: ignore[union-attr]
        return KVFormat(one.k if k else plain.k, one.v if v else plain.v)
    return vllm_format(re.split(r"[\s(]", text)[0])


def _vllm(out: Draft) -> None:
    """Version's formula, step size, drafts, states and packed latents."""
    case, words, version = out.case, out.case.words, out.case.version
    pooled = out.quantity.kind in ("gpu_blocks", "kv_tokens", "max_concurrency")
    if pooled and version and version < (0, 27) and compresses(out.found.spec.layers):
        raise ModelError("vLLM before 0.27 pools compressed attention by rules that are not modelled")
    if out.quantity.kind == "cpu_blocks" or (version and version < (0, 8)):
        out.engine = "vllm-legacy"
        out.set(count="blocks")
        swap = words.count("swap_gib")
        if swap and out.quantity.kind == "cpu_blocks":
            out.set(swap_gib=swap)
    _batched(out)
    drafts(out)
    states(out)
    if PACKED_LATENT in str(case.raw.get("kv_dtype")):
        out.set(latent_row=PACKED_LATENT)
    if words.says(_NO_HYBRID):
        out.set(hybrid=False)
        out.said.append("hybrid manager off (said in words)")
    _prefixes(out)


def _prefixes(out: Draft) -> None:
    """Prefix caching: said, or the version's default. Only recurrent states cost more with it."""
    words, version = out.case.words, out.case.version
    if words.says(_NO_PREFIXES):
        out.change(prefix_caching=False)
        out.said.append("prefix caching off (said in words)")
        return
    if not any(layer.state_elements for layer in out.found.spec.layers):
        return
    on = words.says(r"prefix[-_ ]cach|\bAPC\b|groups? x \(?2\b|x \(2\+\d")
    if not on and version:
        on = version >= _PREFIXES_FROM
        out.said.append(f"prefix caching {'on' if on else 'off'} (this version's default for hybrids)")
        out.unstated["prefix_caching"] = (not on,)
    out.change(prefix_caching=on or not version)
    if on and "state_cache" not in out.run.knobs and version and version < _PREFIXES_FROM and _mamba2(out):
        out.set(state_cache="all")


def _mamba2(out: Draft) -> bool:
    return any(getattr(layer.mixer, "kind", "") == "mamba2" for layer in out.found.spec.layers)


_PREFIXES_FROM: Final = (0, 27)
"""From here on prefix caching is on for hybrids too, and keeps the last two states; before, Mamba-2 kept one a block
(vllm-project/vllm pull request 50991)."""

_NO_HYBRID: Final = r"disable[-_]hybrid|hybrid (?:kv[- ]cache )?(?:manager )?(?:is |was )?(?:off|disabled)"
_NO_PREFIXES: Final = (
    r"(?:no|without|disable[-_d]*)\W{0,2}(?:enable\W)?prefix[-_ ]cach|prefix[-_ ]caching (?:is )?(?:off|disabled|false)"
)


def _batched(out: Draft) -> None:
    """Tokens of a step: said, or the server's default for the device's memory."""
    case, words = out.case, out.case.words
    step = case.count("max_num_batched_tokens", "batched_tokens") or words.count("batched_tokens")
    bounded = any(part.retention.bounded for layer in out.found.spec.layers for part in layer.cache_parts)
    if step is None and bounded:
        memory = case.field("total_gib") or case.hardware.memory_gib() or case.hardware.label_gb() or 0
        step = 8192 if memory >= 70 and not case.hardware.says(r"\bA100\b") else 2048
        out.said.append(f"max_num_batched_tokens {step} (a server's default for {memory:g} GB)")
        out.unstated["batched_tokens"] = tuple(other for other in _STEPS if other != step)
    out.change(batched_tokens=step)
    if case.version >= (0, 27) and bounded:
        out.set(steps_in_flight=2)
        out.said.append("two steps in flight (asynchronous scheduling, 0.27)")


_STEPS: Final = (2048, 8192, 16384)
"""Defaults of ``max_num_batched_tokens``: server and library, on devices under 70 GiB and over."""


def drafts(out: Draft) -> None:
    """Layers of next-token prediction that run beside the model, when speculation is said to be on."""
    words = out.case.words
    if words.says(r"\beagle"):
        out.change(draft_layers=1, draft_tokens=words.count("drafts") or 0)
        out.said.append("EAGLE: one draft layer like the model's own")
        return
    if not words.says(r"\bMTP\b|\bspec(?:ulative)? (?:decod|tokens)|num[-_ ]spec|\+ ?\d+ spec\b|next[-_ ]?n\b"):
        return
    if words.says(r"(?:no|without|off)\W{0,2}(?:MTP|spec)|MTP (?:off|disabled)"):
        return
    tokens = words.count("drafts") or 0
    own = out.found.spec.draft_layers
    out.change(draft_layers=min(own, 1), draft_tokens=tokens)
    out.said.append(f"speculation: {min(own, 1)} draft layer, {tokens or 'unknown number of'} tokens a step")


def _said_state_type(out: Draft) -> str:
    """The width of recurrent state that a flag in the case's words asks for; empty where none does."""
    said = re.search(
        r"mamba[-_]ssm(?:[-_]cache)?[-_]dtype\W{0,3}(float32|bfloat16|float16|fp32|bf16|fp16)", out.case.words.text
    )
    names = {"float32": "f32", "fp32": "f32", "bfloat16": "bf16", "bf16": "bf16", "float16": "f16", "fp16": "f16"}
    return names[said.group(1)] if said else ""


def states(out: Draft) -> None:
    """Width of recurrent state: as the config asks; 16 bits where a full config asks for nothing."""
    recurrent = any(layer.state_elements for layer in out.found.spec.layers)
    if not recurrent:
        return
    asked = _said_state_type(out) or out.found.spec.state_type
    if not asked and out.found.full:
        asked = "bf16"
    if asked:
        out.set(state_type=asked)
    else:
        out.said.append("width of recurrent state assumed: the config says nothing")
    mode = re.search(r"mamba[-_]cache[-_]mode\W{0,3}(all|align|none)", out.case.words.text)
    if mode:
        out.set(state_cache=mode.group(1))


def _sglang(out: Draft) -> None:
    """Slots of state and pages; the pool's tokens as printed."""
    case, words = out.case, out.case.words
    slots = words.count("state_slots") if out.quantity.kind in ("ssm", "conv") else None
    slots = slots or case.count("max_mamba_cache_size", "state_slots")
    if slots:
        out.set(state_slots=slots)
    out.change(
        block_tokens=out.run.block_tokens or words.count("page_tokens"),
        max_model_tokens=case.count("kv_tokens", "max_total_num_tokens") or out.run.max_model_tokens,
    )
    said = _said_state_type(out)
    if said:
        out.set(state_type=said)
    if out.quantity.kind == "kv_tokens":
        out.change(available_bytes=out.run.available_bytes or _pool_bytes(case), max_model_tokens=None)
        return
    if out.quantity.kind in SIZES:
        needs(out, out.run.max_model_tokens, "kv_tokens")
    elif out.quantity.kind in ("ssm", "conv"):
        needs(out, slots, "max_mamba_cache_size")
    if {part.retention.bounded for x in out.found.spec.layers for part in x.cache_parts} == {True, False}:
        out.set(window_pool_percent=100)  # the printed tokens are those of the printed pool, whichever it is


SIZES: Final = ("kv", "kv_k", "kv_v")
"""Sizes of as many tokens as something printed says."""


def needs(out: Draft, value: object, name: str) -> None:
    """A size is one of something printed: without it every number would be made up. Raises ``MissingField``."""
    if value is None:
        raise MissingField((name,), source="reported", remedy=f"{out.quantity.kind} follows from it alone")


def _pool_bytes(case: Case) -> int | None:
    """K and V as printed, together."""
    k, v, both = case.field("k_gib"), case.field("v_gib"), case.field("kv_gib")
    total = both if both is not None else (k + v if k is not None and v is not None else None)
    return None if total is None else int(total * GIB)


def _tensorrt(out: Draft) -> None:
    """Tokens of the pool as printed give its bytes, and the other way round."""
    if out.quantity.kind == "kv_tokens":
        out.change(available_bytes=out.run.available_bytes or _pool_bytes(out.case), max_model_tokens=None)
        needs(out, out.run.available_bytes, "available_kv_gib or kv_gib")
    else:
        out.change(max_model_tokens=out.case.count("kv_tokens", "max_tokens") or out.run.max_model_tokens)
        if out.quantity.kind in SIZES:
            needs(out, out.run.max_model_tokens, "kv_tokens")
    drafts(out)


def _llama(out: Draft) -> None:
    """Cells are settled in ``check_llama``, where the printed line is picked."""
    drafts(out)


def _kvist(out: Draft) -> None:
    _batched(out)
    drafts(out)


_RULES: Final[dict[str, Callable[[Draft], None]]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "tensorrt": _tensorrt,
    "llama.cpp": _llama,
    "ik_llama.cpp": _llama,
    "ipex": _llama,
    "kvist": _kvist,
}

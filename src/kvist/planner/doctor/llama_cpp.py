"""How llama.cpp and its forks write their start: ``llm_load_print_meta`` (to 2024), ``print_info``, five cache names.

Sizes are MiB throughout. A log shows the model's own shape and most of the GGUF header. Several contexts may follow
each other: a draft model's, a second one for next-token prediction, or simply the next start; ``_Run`` sorts them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Final

from kvist.planner.doctor.base import EngineLog, Setting, Term
from kvist.planner.doctor.lines import LogLine
from kvist.planner.doctor.scan import Field, Hit, Rule, rule, scan, value_of

_MIB: Final = "MiB"
_KV: Final = (
    Field("kv", _MIB),
    Field("kv_cells", "cells"),
    Field("kv_layers", "layers"),
    Field("kv_sequences", "sequences"),
    Field("kv_streams", "sequences"),
    Field("type_k", "setting"),
    Field("k", _MIB),
    Field("type_v", "setting"),
    Field("v", _MIB),
)
_SIDES: Final = r"(?:K|c\^KV) +\(<w>\): +<n> MiB(?:, V \(<w>\): +<n> MiB)?"
_STATE: Final = (
    Field("state", _MIB),
    Field("state_cells", "cells"),
    Field("state_layers", "layers"),
    Field("state_sequences", "sequences"),
    Field("r", _MIB),
    Field("s", _MIB),
)
_SIZED: Final = r": size = +<n> MiB \( *<n> cells?, +<n> layers, +<n>"
_RULES: Final = (
    rule("cells, ", rf"cache\w*{_SIZED}(?:/ *<n>)? seqs\)(?:, {_SIDES})?", *_KV),
    rule(
        "cells, ",
        rf"recurrent{_SIZED} seqs(?: +\d+ rs_seq)?\)(?:, R \(\w+\): +<n> MiB, S \(\w+\): +<n> MiB)?",
        *_STATE,
    ),
    rule("KV self size", rf"KV self size += +<n> MiB, {_SIDES}", _KV[0], *_KV[5:]),
    rule("kv self size", r"kv self size += +<n> MB", _KV[0]),
    rule("kv_size = ", r"kv_size = <n>,", Field("kv_size", "setting")),
    rule("type_k = ", r"type_k = <w>", Field("type_k", "setting")),
    rule("type_v = ", r"type_v = <w>", Field("type_v", "setting")),
    rule("creating non-SWA", r"size = +<n> cells", Field("full_cells", "setting")),
    rule("creating     SWA", r"size = +<n> cells", Field("window_cells", "setting")),
    rule("full-size SWA cache", r"using (full-size) SWA cache", Field("swa_full", "setting")),
    rule("offloaded ", r"offloaded <n>/<n> layers", Field("layers_offloaded", "setting"), Field("layers", "setting")),
    rule("MiB free", r"using device (\w+).{0,160}? <n> MiB free", Field("device", "setting"), Field("free", _MIB)),
    rule(
        "MiB free)",
        r"- (\w+) +: .{0,120}?\(<n> MiB, <n> MiB free\)",
        Field("device", "setting"),
        Field("total", _MIB),
        Field("free", _MIB),
    ),
    rule(
        "memory_breakdown_print",
        r"\| +- (\w+).{0,120}?\| *<n> = +<n> \+ \( *<n> = +<n> \+ +<n> \+ +<n>\) \+ +<n>",
        Field("device", "setting"),
        *(Field(n, _MIB) for n in ("total", "free_at_end", "used", "model_total", "context", "compute", "unaccounted")),
    ),
    rule("n_copies=", r"pipeline parallelism enabled \(n_copies=<n>\)", Field("copies", "setting")),
    rule("build: ", r"build: <w> \(", Field("version", "setting")),
    rule("file size", r"file size += +<n> (?:[KMG]iB)", Field("file", "?iB")),
    rule("model size", r"model size += +<n> (?:[KMG]iB)", Field("file", "?iB")),
)
_BUFFER: Final = re.compile(r": +(\S+)(?: (model|KV|RS|compute|output|input))? buffer size += +([\d.]+) MiB")
_BUFFERS: Final = {"model": "model_buffer", "KV": "kv_buffer", "RS": "state_buffer", "compute": "compute_buffer",
                   "output": "output_buffer", "input": "output_buffer", None: "model_buffer"}  # fmt: skip
_FACT: Final = re.compile(
    r"\b(?:llama_\w*|llm_load_print_meta|print_info|common_init\w*): +"
    r"(n_ctx_seq|n_ctx_per_seq|n_ctx_train|n_ctx|n_batch|n_ubatch|n_seq_max|flash_attn|kv_unified|mla_attn|attn_max_b"
    r"|fused_moe|arch|general\.name|n_layer|n_head|n_head_kv|n_swa|n_embd_head_k|n_embd_head_v|n_embd_k_gqa"
    r"|n_embd_v_gqa|n_embd|n_vocab|n_lora_kv|n_rot|model ftype|file type|n_embd_head_k_mla|n_embd_head_v_mla)"
    r" += +(.{1,4000})"
)
_HEADER: Final = re.compile(r"llama_model_loader: - kv +\d+: +(\S+) +(\w+(?:\[[^\]]*\])?) += +(.*)")
_LOADED: Final = re.compile(r"loaded meta data with .{0,80}? from (.+?)(?: \(version|$)")
_WORTH: Final = re.compile(r" = |  =|offloaded |build: |MiB free|loaded meta|full-size|draft|specul|mtp|n_copies")
"""Lines that can matter; the rest of a server's log is skipped."""
_DRAFT_WORD: Final = re.compile(r"draft|specul|mtp|eagle", re.IGNORECASE)
_IK_FACTS: Final = {"mla_attn", "attn_max_b", "fused_moe"}


@dataclass
class _Run:
    """One start being read: its model file, and contexts in the order they were made."""

    path: str = ""
    settings: dict[str, Setting] = field(default_factory=dict)
    metadata: dict[str, Setting] = field(default_factory=dict)
    terms: list[Term] = field(default_factory=list)
    what: str = ""
    draft: bool = False
    may_draft: bool = False
    ik: bool = False

    @property
    def has_cache(self) -> bool:
        """True once a context of the main model printed its cache."""
        return any(t.name in ("kv", "state", "kv_buffer") for t in self.terms)


class LlamaCppFormat:
    """llama.cpp, ik_llama.cpp, and programs that show their lines (ollama, LM Studio, ipex-llm...)."""

    engines = ("llama.cpp", "ik_llama.cpp")

    def parse(self, lines: list[LogLine]) -> EngineLog:
        """Terms and settings of the last start; what belongs to a draft is marked so."""
        runs = [_Run()]
        version = ""
        for line in lines:
            run = runs[-1]
            if not _WORTH.search(line.text):
                continue
            if found := _LOADED.search(line.text):
                run = _loaded(runs, found.group(1).strip())
            elif _DRAFT_WORD.search(line.text) and "token" not in line.text:
                run.may_draft = True
            _read_facts(run, line)
            for hit in scan((line,), _RULES):
                version = str(dict(hit.settings).get("version", version))
                _read_hit(run, hit)
            if "buffer size" in line.text:
                _read_buffer(run, line)
        last = next((r for r in reversed(runs) if r.terms), runs[-1])
        engine = "ik_llama.cpp" if last.ik else "llama.cpp"
        notes = (f"{len(runs)} starts in this log: the last complete one is read",) if len(runs) > 1 else ()
        return EngineLog(engine, version, _named(last), tuple(last.terms), len(lines), last.metadata, notes)


def _loaded(runs: list[_Run], path: str) -> _Run:
    """A model file was opened: the first, a draft's, or the next start's."""
    run = runs[-1]
    if run.has_cache and path != run.path and (run.may_draft or _DRAFT_WORD.search(path)):
        run.draft, run.what = True, ""
        return run
    if run.has_cache:
        runs.append(_Run(path))
        return runs[-1]
    run.path, run.settings, run.metadata = path, {}, {}
    return run


def _read_facts(run: _Run, line: LogLine) -> None:
    """Settings of the context and the model's shape; a second context of the same model is a draft's."""
    if found := _FACT.search(line.text):
        key, value = found.group(1), value_of(found.group(2).strip())
        run.ik |= key in _IK_FACTS
        if key in ("n_ctx", "n_seq_max") and run.has_cache:
            run.draft, run.what = True, ""
        if not run.draft:
            run.settings[key] = value
    elif not run.draft and (found := _HEADER.search(line.text)):
        kind, text = found.group(2), found.group(3).strip()
        if kind.startswith("arr"):
            return
        run.metadata[found.group(1)] = text if kind == "str" else value_of(text)


def _read_hit(run: _Run, hit: Hit) -> None:
    needle: str = hit.rule.needle
    if needle.startswith("creating"):
        run.what = "full layers" if "non-SWA" in needle else "windowed layers"
    run.ik |= "c^KV" in hit.line.text
    facts = dict(hit.settings)
    what = "draft" if run.draft else str(facts.pop("device", "")) or run.what
    terms = [_placed(hit.rule, t, "draft" if run.draft else what) for t in hit.terms]
    run.terms += [t for t in terms if t.name != "unaccounted" or 0 <= t.value < 2**50]
    facts.pop("version", None)
    if not run.draft:
        run.settings.update({k: v for k, v in facts.items() if k not in ("type_k", "type_v") or k not in run.settings})


def _placed(one: Rule, term: Term, what: str) -> Term:
    """A cache's lines belong to a kind of layers, others to a device or to nothing."""
    if one.needle in ("cells, ", "KV self size", "kv self size", "MiB free", "MiB free)", "memory_breakdown_print"):
        return replace(term, what="recurrent state" if term.name in _STATE_NAMES and what != "draft" else what)
    return term


_STATE_NAMES: Final = {f.name for f in _STATE}


def _read_buffer(run: _Run, line: LogLine) -> None:
    found = _BUFFER.search(line.text)
    if not found or not re.fullmatch(r"\d{1,9}\.?\d{0,4}", found.group(3)):
        return
    mib = float(found.group(3))
    device = f"draft {found.group(1)}" if run.draft else found.group(1)
    run.terms.append(
        Term(
            name=_BUFFERS[found.group(2)],
            value=mib * 2**20,
            unit="bytes",
            printed=f"{found.group(3)} MiB",
            line=line.number,
            text=line.text.strip(),
            step=0.01 * 2**20,
            what=device,
        )
    )


def _named(run: _Run) -> dict[str, Setting]:
    """The common vocabulary beside llama.cpp's own names."""
    s = run.settings
    out = dict(s)
    for ours, theirs in (("max_model_tokens", "n_ctx"), ("sequences", "n_seq_max"), ("batched_tokens", "n_ubatch")):
        if theirs in s:
            out[ours] = s[theirs]
    if "type_k" in s:
        k, v = str(s["type_k"]), str(s.get("type_v", s["type_k"]))
        out["kv_dtype"] = k if k == v else f"{k}/{v}"
    if "swa_full" in s:
        out["swa_full"] = True
    if name := s.get("general.name"):
        out["model"] = name
    elif run.path:
        out["model"] = run.path
    return out

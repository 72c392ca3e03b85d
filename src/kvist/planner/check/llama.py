"""llama.cpp and its forks: which line of the log a number is, and the cells it was counted with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

from kvist.planner.check.run import SIZES, Draft, needs
from kvist.planner.engines.base import Capacity, Line
from kvist.planner.engines.registry import engine
from kvist.spec.layer import Latent
from kvist.units import round_up


@dataclass(frozen=True, slots=True)
class Picked:
    """The line that answers, and how it was told from the others."""

    line: Line
    why: str = ""


def settle(out: Draft) -> None:
    """Slots, cells, micro-batch, streams and the layout of latents, from fields, words and printed cells."""
    case, words = out.case, out.case.words
    cells = case.count("cells", "kv_cells")
    slots = case.count("n_seq", "n_parallel") or words.count("slots") or 1
    if wants_state(out) and cells:
        slots = cells
    asked = (
        case.count("n_ctx", "ctx")
        or words.count("n_ctx")
        or case.count("max_model_len")
        or (None if wants_state(out) else cells)
    )
    out.change(sequences=slots, max_model_tokens=out.quantity.at_tokens, available_bytes=out.run.available_bytes)
    if asked:
        out.set(n_ctx=asked)
    elif out.run.max_model_tokens is None:
        if out.quantity.kind in (*SIZES, "required_kv") and not wants_state(out):
            needs(out, None, "n_ctx or cells")
        out.set(n_ctx=256)
    if words.says(r"swa[-_ ]full|full[- ]size SWA"):
        out.set(windows="full")
    devices = case.count("num_gpus") or case.hardware.devices()
    if devices and devices > 1 and of_device(out) is not None:
        out.set(devices=devices)
    rollback = words.count("rollback")
    if rollback:
        out.set(rollback=rollback)
    ubatch = case.count("n_ubatch", "ubatch") or words.count("ubatch")
    if ubatch:
        out.set(ubatch=ubatch)
    if words.says(r"(?<!non-)(?<!non )(?<!not )\bunified\b"):
        out.set(unified=True)
    if cells and not wants_state(out):
        _match_cells(out, cells, known_ubatch=bool(ubatch))
    if any(isinstance(layer.mixer, Latent) for layer in out.found.spec.layers):
        _latents(out)


def wants_state(out: Draft) -> bool:
    """True when the number is of recurrent state."""
    text = f"{out.case.raw.get('kv_dtype')} {out.case.category} {out.case.quantity}".lower()
    has = any(layer.state_elements for layer in out.found.spec.layers)
    return has and ("state" in text or "recurrent" in text or out.quantity.part == "recurrent state")


def of_device(out: Draft) -> int | None:
    """The GPU whose share is meant, when the words speak of one of several."""
    words = out.case.words
    number = words.count("device")
    if number is not None:
        return number
    return 0 if words.says(r"one of (?:the )?(?:two|three|four|eight|\d)|layer split|per (?:gpu|device)") else None


def _match_cells(out: Draft, cells: int, *, known_ubatch: bool) -> None:
    """Choose padding and streams that give the printed cells; else read the micro-batch from them."""
    for pad, unified in product((256, 32), (out.run.knobs.get("unified", False), True)):
        trial = replace(out, run=replace(out.run, knobs={**out.run.knobs, "pad": pad, "unified": unified}), said=[])
        if cells in _cells(trial):
            default = pad == 256 and unified == out.run.knobs.get("unified", False)
            out.run = trial.run
            if not default:
                out.said.append(
                    f"{cells} printed cells: padded to {pad}, {'one stream' if unified else 'a stream each'}"
                )
            return
    windows = [layer.retention.window_tokens or layer.retention.chunk_tokens or 0 for layer in out.found.spec.layers]
    size = max(windows, default=0)
    if not known_ubatch and size and cells > size:
        out.set(ubatch=cells - size)
        out.said.append(f"micro-batch {cells - size} from {cells} printed cells")


def _cells(out: Draft) -> set[int]:
    """Cells of every kind of layer, of one stream and of all."""
    capacity = engine(out.engine).capacity(out.run)
    found: set[int] = set()
    for line in capacity.lines:
        if line.name == "cells":
            each = int(line.value)
            found |= {each, each // max(1, 1 if out.run.knobs.get("unified") else out.run.sequences or 1)}
    return found


def _latents(out: Draft) -> None:
    """How latents lie: by the printed ratio of K to V, else by the words, else as the engine does it today."""
    k, v = out.case.field("kv_mib_k"), out.case.field("kv_mib_v")
    words = out.case.words
    if k:
        latent = next(layer for layer in out.found.spec.layers if isinstance(layer.mixer, Latent))
        assert isinstance(latent.mixer, Latent)
        fmt = out.run.kv_format
        ratios = {
            "latent": 0.0,
            "twice": fmt.v.row_bytes(latent.mixer.rank) / fmt.k.row_bytes(latent.mixer.rank + latent.mixer.rope_dim),
            "expanded": fmt.v.row_bytes(latent.value_dim) / fmt.k.row_bytes(latent.key_dim),
        }
        mode = min(ratios, key=lambda name: abs(ratios[name] - (v or 0.0) / k))
        out.said.append(f"latents {mode}, by the printed K:V")
    elif words.says(r"\bas MHA\b|expanded|-mla 0"):
        mode = "expanded"
    elif words.says(r"K ?\+ ?V latent|mainline|again as V|-mla 1\b"):
        mode = "twice"
    else:
        mode = "expanded" if out.engine == "ipex-llm" else "latent"
        out.said.append(f"latents {mode} (nothing said)")
    out.set(mla=mode)


def pick(out: Draft, capacity: Capacity, name: str, printed: float) -> Picked | None:
    """The line of ``name`` that the case means. Words and printed cells decide; the nearest only if neither does."""
    lines = {line.what: line for line in capacity.lines if line.name == name}
    if not lines:
        return None
    what, why = _part(out, capacity, lines)
    if what is None:
        what = min(lines, key=lambda w: abs(lines[w].value - printed))
        why = f"line '{what}' is the nearest of {len(lines)}: no words say which"
    return Picked(lines[what], why)


def _part(out: Draft, capacity: Capacity, lines: dict[str, Line]) -> tuple[str | None, str]:
    device = of_device(out) if "devices" in out.run.knobs else None
    if device is not None and f"device {device}" in lines:
        return f"device {device}", f"device {device} (said in words)"
    if wants_state(out) and "recurrent state" in lines:
        return "recurrent state", ""
    if out.quantity.part in lines:
        return out.quantity.part, ""
    kinds = [w for w in lines if w in ("full layers", "windowed layers")]
    if len(kinds) == 1:
        return kinds[0], ""
    if out.case.words.says(r"full[^|]*\+[^|]*(?:swa|window|slot)|\btotal\b|both caches"):
        return "attention", "both kinds of layers (said in words)"
    cells = out.case.count("cells", "kv_cells")
    counted = {line.what: int(line.value) for line in capacity.lines if line.name == "cells"}
    n_streams = 1 if out.run.knobs.get("unified") else out.run.sequences or 1
    same = [w for w in kinds if cells in (counted.get(w), (counted.get(w) or 0) // n_streams)]
    if len(same) == 1:
        return same[0], f"{same[0]}, by the printed {cells} cells"
    if cells and not same and cells == round_up(cells, 256):
        return None, ""
    said = [
        w
        for w, p in (("windowed layers", r"\bSWA (?:layers|KV)|window"), ("full layers", r"non-SWA|full layers"))
        if out.case.words.says(p)
    ]
    return (said[0], f"{said[0]} (said in words)") if len(said) == 1 else (None, "")

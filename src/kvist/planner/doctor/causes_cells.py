"""Why llama.cpp's buffers are as large as they are: padding, streams, windows, latents, states, drafts."""

from __future__ import annotations

from typing import Final

from kvist.planner.doctor.base import Term
from kvist.planner.doctor.case import Case, Cause
from kvist.planner.doctor.diagnosis import Finding
from kvist.spec.layer import Latent, Window
from kvist.units import MIB, ceil_div, format_bytes, round_up


def _main(case: Case, name: str) -> list[Term]:
    """Terms of the model's own caches: of each kind of layers, drafts left out."""
    return [t for t in case.log.all(name) if t.what != "draft"]


def another_model(case: Case) -> Finding | None:
    """The log prints another shape than the named model has."""
    layers = case.log.count("n_layer")
    owners = sum(1 for x in case.layers if x.owns_cache)
    seen = sum(int(t.value) for t in _main(case, "kv_layers"))
    known = len(case.run.spec.layers)
    if layers is not None and layers not in (known, known + case.run.spec.draft_layers):
        said = f"the log is of a model of {layers} layers, the named one has {known}"
    elif seen and seen != owners and case.disputed() is not None:
        said = f"the log's caches count {seen} layers, {owners} of the named model keep any"
    else:
        return None
    return Finding("another model", said, "kv")


def padded_cells(case: Case) -> Finding | None:
    """Cells of a stream are rounded up."""
    context, pad = case.log.count("n_ctx"), case.run.number("pad", 256, low=1)
    for cells in _main(case, "kv_cells"):
        streams = next((t.value for t in case.log.all("kv_streams", cells.what) if t.line == cells.line), 1.0)
        asked = ceil_div(context, int(streams)) if context and streams >= 1 else 0
        if cells.what == "windowed layers" or not asked or asked == cells.value:
            continue
        if round_up(asked, pad) == cells.value:
            said = f"{asked:,} cells were asked for a stream, {cells.value:,.0f} were made: rounded up to {pad}"
            return Finding("padded cells", said)
    return None


def separate_streams(case: Case) -> Finding | None:
    """Without a unified cache every sequence has cells of its own and can use no other's."""
    streams, context = case.log.last("kv_streams"), case.log.count("n_ctx")
    cells = next((t for t in _main(case, "kv_cells") if t.what != "windowed layers"), None)
    if streams is None or streams.value < 2 or cells is None or not context:
        return None
    if not cells.value * streams.value >= context > cells.value:
        return None
    return Finding(
        "separate streams",
        f"the {context:,} cells are split into {streams.value:.0f} streams: no sequence can be longer than "
        f"{cells.value:,.0f} tokens (--kv-unified shares them)",
    )


def window_cells(case: Case) -> Finding | None:
    """A windowed cache has room for one micro-batch and, when shared, for every sequence's window."""
    cells = next((t for t in _main(case, "kv_cells") if t.what == "windowed layers"), None)
    size = min((x.mixer.size_tokens for x in case.layers if isinstance(x.mixer, Window)), default=0)
    if cells is None or not size or not case.agrees(cells) or cells.value <= round_up(size, 256):
        return None
    full = next((t for t in _main(case, "kv_cells") if t.what == "full layers"), None)
    if full is not None and cells.value == full.value:
        return Finding(
            "windows in full",
            f"layers with a window of {size:,} keep all {cells.value:,.0f} cells: the full-size window cache is on "
            "(--swa-full), or the context is no longer than window and micro-batch",
        )
    shared = (case.run.sequences or 1) if case.run.switch("unified", False) else 1
    batch = case.run.number("ubatch", 512)
    each = f"{shared} windows of {size:,}" if shared > 1 else f"a window of {size:,}"
    return Finding(
        "cells of windows",
        f"{cells.value:,.0f} cells of windowed layers hold {each} and a micro-batch of {batch:,}, in steps of 256"
        + (": fewer slots (--parallel) make it smaller" if shared > 1 else ""),
    )


def windows_charged(case: Case) -> Finding | None:
    """This version, or a fork, has no cache for windows: every layer has all cells."""
    whole = next((t for t in _main(case, "kv") if not t.what), None)
    windowed = [x for x in case.layers if x.owns_cache and x.retention.bounded]
    if whole is None or not windowed:
        return None
    found = case.if_(knobs={"windows": "none"})
    if not case.agrees(whole, found) or case.agrees(whole, case.if_(knobs={"windows": "own"})):
        return None
    return Finding(
        "windows in full",
        f"{whole.printed} charge all cells to {len(windowed)} windowed layers: this engine keeps no windows",
        "kv" if case.differs(whole) else "",
    )


def layout_of_latents(case: Case) -> Finding | None:
    """MLA kept as all heads' keys and values, or the latent twice."""
    term = next((t for t in _main(case, "kv")), None)
    latents = [x for x in case.layers if isinstance(x.mixer, Latent)]
    if term is None or not latents:
        return None
    once = case.predicted(term, case.if_(knobs={"mla": "latent"}))
    for mode, said in (("expanded", "as keys and values of every head"), ("twice", "as K and again as V")):
        if case.agrees(term, case.if_(knobs={"mla": mode})) and once is not None and once.best:
            return Finding(
                "latents " + mode,
                f"{term.printed} keep the latent {said}: {term.value / once.best:.1f} times the "
                f"{once.best / MIB:,.0f} MiB of the latent alone",
                "kv" if case.differs(term) else "",
            )
    return None


def windows_in_f16(case: Case) -> Finding | None:
    """Some versions pack only the full layers."""
    term = next((t for t in _main(case, "kv") if t.what == "windowed layers"), None)
    if term is None or not case.differs(term) or not case.agrees(term, case.if_(knobs={"window_format": "f16"})):
        return None
    said = f"{term.printed} of windowed layers are in 16 bits, whatever the rest is packed in"
    return Finding("windows in f16", said, term.name)


def state_per_sequence(case: Case) -> Finding | None:
    """Recurrent state is set aside for every sequence, whatever its length."""
    state, cells = case.log.last("state"), case.log.last("state_cells")
    if state is None or cells is None or cells.value < 2 or not case.agrees(state):
        return None
    return Finding(
        "state per sequence",
        f"{state.printed} of recurrent state are {cells.value:.0f} sequences x "
        f"{format_bytes(state.value / cells.value)}, whatever they hold: fewer slots (--parallel) give it back",
    )


def host_cache(case: Case) -> Finding | None:
    """Layers that are not offloaded keep their cache in the host's memory."""
    buffers = [t for t in case.log.all("kv_buffer") if not t.what.startswith("draft")]
    host = sum(t.value for t in buffers if "CPU" in t.what)
    whole = sum(t.value for t in buffers)
    if not 0 < host < whole:
        return None
    said = f"{format_bytes(host)} of {format_bytes(whole)} of cache lie in the host's memory, with layers kept there"
    return Finding("cache on the host", said)


def draft_cache(case: Case) -> Finding | None:
    """A draft has a cache of its own beside the model's."""
    drafts = [t for t in case.log.all("kv") if t.what == "draft"]
    own = sum(t.value for t in _main(case, "kv"))
    if not drafts or not own:
        return None
    more = sum(t.value for t in drafts)
    said = (
        f"the draft keeps {format_bytes(more)} of its own, {100 * more / own:.0f} % of the model's {format_bytes(own)}"
    )
    return Finding("draft cache", said)


def copies_of_buffers(case: Case) -> Finding | None:
    """Pipeline parallelism keeps several copies of the compute buffers' inputs."""
    copies, compute = case.log.count("copies"), case.log.all("compute_buffer")
    if not copies or copies < 2 or not compute:
        return None
    said = f"pipeline parallelism keeps {copies} copies of inputs in compute buffers of {compute[0].printed} a device"
    return Finding("copies for pipelining", said)


CAUSES: Final[tuple[Cause, ...]] = (
    another_model, padded_cells, separate_streams, window_cells, windows_charged, layout_of_latents, windows_in_f16,
    state_per_sequence, host_cache, draft_cache, copies_of_buffers,
)  # fmt: skip

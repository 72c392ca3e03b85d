"""What a model's weights weigh: from files where they are at hand, else from the spec and the weights' format."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from kvist.cost.interval import Interval, Tag
from kvist.cost.work import Widths
from kvist.errors import CorruptFile
from kvist.gguf_header import TENSOR_TYPES, Header
from kvist.planner.weights.files import folder_facts, gguf_headers, gguf_parts
from kvist.planner.weights.format import PARTS, WeightFormat, format_of
from kvist.planner.weights.quantisation import unknown_method, weight_format_of
from kvist.spec.model import ModelSpec
from kvist.spec.place import Placement
from kvist.spec.shard import rank_weights, shard
from kvist.spec.weight_kinds import Stored, kinds_text, loaded_kinds
from kvist.units import round_up

__all__ = [
    "WeightFacts",
    "WeightFormat",
    "assumed_weights",
    "countable",
    "rank_weight_bytes",
    "unknown_method",
    "weight_format_of",
    "weights_at",
    "widths_of",
]

_PADDED = ("mxfp4", "nvfp4")
_KERNEL_WIDTH = 256
"""Kernels for 4-bit floats want widths that are multiples of it, and engines pad the weights (vllm-project/vllm,
model_executor/layers/quantization/mxfp4.py)."""


@dataclass(frozen=True, slots=True)
class WeightFacts:
    """Bytes of all weights and how they are known. 0 bytes: not known at all.

    ``exact``: summed from headers or stated by an index; ``measured``: sizes of files; ``assumed``: elements times
    bits. ``beside_elements`` are weights beside the decoder (vision, audio), ``draft_bytes`` those of next-token
    prediction, which engines leave out unless they speculate; both are in ``total_bytes`` where they are in the files.
    ``kinds``: bytes of each kind of matrix that kvist's loader makes of the files; ``repacked``: how much larger than
    the files' all weights are because they were loaded so.
    """

    total_bytes: int
    tag: Tag
    how: str
    format: WeightFormat = field(default_factory=WeightFormat)
    beside_elements: int = 0
    draft_bytes: int = 0
    kinds: Mapping[str, int] = field(default_factory=dict)
    repacked: float = 1.0

    def as_loaded(self) -> WeightFacts:
        """The same weights as kvist's own loader keeps them; unchanged where the files are not at hand."""
        if not self.kinds or not self.total_bytes:
            return self
        how = f"{self.how}, loaded as {kinds_text(self.kinds, 'packed')}"
        loaded = sum(self.kinds.values())
        return replace(self, total_bytes=loaded, draft_bytes=0, how=how, repacked=loaded / self.total_bytes)

    def on_rank(self, spec: ModelSpec, place: Placement | None = None, stage: int = 0) -> Interval:
        """Bytes on one rank of ``stage``, drafts left out: the total, shared out as the format's sum says.

        Raises ``BadValue`` for a placement that the model does not allow, ``ModelError`` when nothing is known.
        """
        place = place or Placement()
        loaded = self.total_bytes - self.draft_bytes
        if loaded and not countable(spec):
            return _even_share(loaded, self.tag, place)
        rank = rank_weight_bytes(spec, self.format, place, stage, beside_elements=self.beside_elements)
        if self.tag == "assumed":
            return rank
        whole = rank_weight_bytes(spec, self.format, beside_elements=self.beside_elements)
        scale = loaded / whole.low
        if self.format.name not in _PADDED:
            return Interval.exactly(rank.low * scale, self.tag)
        return Interval(rank.low * scale, rank.best * scale, rank.high * scale, self.tag)

    def packed_as(self, spec: ModelSpec, fmt: WeightFormat) -> WeightFacts:
        """The same weights in another format: counted anew, never from the files."""
        elements = round(8 * self.total_bytes / self.format.bits_per_weight.best)
        return assumed_weights(spec, fmt, beside_elements=self.beside_elements, elements=elements)


def _even_share(total_bytes: int, tag: Tag, place: Placement) -> Interval:
    """A rank's share where parts are not known: embedding, head and norms make stages and ranks differ."""
    ranks = place.tp * place.pp
    share = total_bytes / ranks
    return Interval.exactly(share, tag) if ranks == 1 else Interval(0.95 * share, share, 1.15 * share, "assumed")


def countable(spec: ModelSpec) -> bool:
    """False for a spec that is only the shape of a cache."""
    return not spec.shape_only or bool(spec.hidden and spec.vocab and any(layer.ffn for layer in spec.layers))


def rank_weight_bytes(
    spec: ModelSpec, fmt: WeightFormat, place: Placement | None = None, stage: int = 0, *, beside_elements: int = 0
) -> Interval:
    """Bytes of the weights on one rank of ``stage``. Norms, routers and towers (``beside_elements``) stay wide.

    Raises ``BadValue`` when heads or experts do not divide, ``ModelError`` for a spec that is only a shape.
    """
    place = place or Placement()
    counted, cut = rank_weights(spec, place, stage), shard(spec, place, stage)
    routers = min(counted.ffn, sum(x.ffn.experts for x in cut.layers if x.ffn is not None) * spec.hidden)
    elements = {part: getattr(counted, part) for part in PARTS} | {"ffn": counted.ffn - routers}
    wide = routers + counted.norms + (-(-beside_elements // place.tp) if stage == 0 else 0)
    total = Interval.exactly(2.0 * wide, "assumed")
    for part, n in elements.items():
        bits = fmt.bits(part)
        if part == "experts" and n and fmt.name in _PADDED:
            bits = _padded(bits, cut)
        total += bits.times(n / 8)
    return total


def _padded(bits: Interval, cut: ModelSpec) -> Interval:
    """Bits of an expert's weight where kernels want full tiles: at best none is added, at worst on both sides."""
    ffns = [x.ffn for x in cut.layers if x.ffn is not None and x.ffn.experts]
    width, side = max(f.expert_width for f in ffns), max(f.expert_dim for f in ffns) or cut.hidden
    inner, outer = round_up(width, _KERNEL_WIDTH) / width, round_up(side, _KERNEL_WIDTH) / side
    return Interval(bits.low, bits.best * inner, bits.high * inner * outer)


def assumed_weights(spec: ModelSpec, fmt: WeightFormat, *, beside_elements: int = 0, elements: int = 0) -> WeightFacts:
    """Facts of weights that are not at hand: elements times bits.

    Where the spec is only a shape, ``elements`` (all weights, as published) are taken as packed alike; without them the
    weights are not known: 0 bytes.
    """
    if countable(spec):
        total = round(rank_weight_bytes(spec, fmt, beside_elements=beside_elements).low)
        source = "elements counted from the config"
    elif elements:
        total, source = round(elements * fmt.bits_per_weight.best / 8), f"{elements / 1e9:.4g} B elements as published"
    else:
        return WeightFacts(0, "assumed", "only the shape of the cache is known", fmt, beside_elements)
    towers = f", {beside_elements / 1e9:.2f} B more beside the decoder" if beside_elements else ""
    packed = f", {fmt.bits_per_weight.best:.4g} bits each" + (" where packed" if fmt.text != fmt.name else "")
    return WeightFacts(total, "assumed", f"{source}{towers}, {fmt.text}{packed}", fmt, beside_elements)


def weights_at(path: Path, spec: ModelSpec) -> WeightFacts | None:
    """Facts of the weights at a path: a GGUF file, a folder, or the folder of a config; None when none are there.

    Raises ``CorruptFile`` for files that contradict themselves.
    """
    if path.suffix == ".gguf":
        return _gguf_facts(gguf_headers(path), path)
    folder = path if path.is_dir() else path.parent
    found = folder_facts(folder, len(spec.layers))
    if found is None:
        return None
    config = _json(folder / "config.json") or {}
    fmt = weight_format_of(config, _json(folder / "hf_quant_config.json"), spec)
    return WeightFacts(found.total_bytes, "exact" if found.exact else "measured", found.how, fmt,
                       draft_bytes=found.draft_bytes, kinds=_loadable(found.stored))  # fmt: skip


def _gguf_facts(headers: tuple[Header, ...], path: Path) -> WeightFacts:
    total = sum(t.n_bytes for header in headers for t in header.tensors.values())
    shares = {part: {kind: n / sum(kinds.values()) for kind, n in kinds.items()}
              for part, kinds in gguf_parts(headers).items()}  # fmt: skip
    fmt = format_of({"head": shares.get("embedding", {"f16": 1.0}), **shares}, "f16")
    stated = headers[0].values.get("split.count", 1)
    missing = isinstance(stated, int) and stated > len(headers)
    how = f"header of {path.name}" if len(headers) == 1 else f"headers of {len(headers)} GGUF files"
    if missing:
        return WeightFacts(total, "measured", f"{how}, of {stated}: the others are not here", fmt)
    stored = {n: (t.type_name, t.shape[::-1]) for header in headers for n, t in header.tensors.items()}
    return WeightFacts(total, "exact", how, fmt, kinds=_loadable(stored))


def _loadable(stored: Stored) -> dict[str, int]:
    """Bytes by kind that kvist's loader makes of these tensors; none for types or shapes that it does not read."""
    reads = {*(name for name, _, _ in TENSOR_TYPES.values()), "F32", "F16", "BF16", "F64"}
    known = all(kind in reads and not kind.startswith("I") or kind.startswith("IQ") for kind, _ in stored.values())
    return loaded_kinds(stored, "packed") if known and all(len(s) in (1, 2) for _, s in stored.values()) else {}


def widths_of(spec: ModelSpec, fmt: WeightFormat) -> Widths:
    """Bytes of a weight as a step reads it: what every token passes, routed experts, the head."""
    counted = rank_weights(spec, Placement())
    dense = fmt.bits("attention").times(counted.attention) + fmt.bits("ffn").times(counted.ffn)
    n = counted.attention + counted.ffn
    head = fmt.bits("head" if counted.head else "embedding").best / 8
    return Widths(dense.best / n / 8 if n else 2.0, fmt.bits("experts").best / 8, head)


def _json(path: Path) -> dict[str, object] | None:
    """A JSON object; None when there is no such file. Raises ``CorruptFile``."""
    if not path.is_file():
        return None
    try:
        data = json.loads(path.read_bytes())
    except (ValueError, RecursionError, OSError) as error:
        raise CorruptFile(f"{path} is not JSON: {error}", remedy="fetch it again") from error
    return data if isinstance(data, dict) else None

"""A model's weights as the decoder wants them: merged, reordered, packed as in the file or in one float type.

Files are read some rows at a time into place, so the peak is the weights plus a small buffer. Every name and shape is
checked before the first byte is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import torch

from kvist.errors import BadValue, CorruptFile, ModelError
from kvist.kernels.matrix import Matrix
from kvist.model.names import Namer, Want, check_shapes
from kvist.model.reading import Progress, Reader
from kvist.model.source import Source
from kvist.model.wants import layer_wants, model_wants
from kvist.spec.model import ModelSpec
from kvist.spec.weight_kinds import DTYPES

Tensor = torch.Tensor

__all__ = ["DTYPES", "LayerWeights", "Progress", "Weights", "load_weights", "open_source", "read_weights"]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Weights of one layer. Matrices are [out, in]; norms and biases are float32 tensors; what a layer lacks is None.

    ``qkv`` [(q_heads + kv_heads) * key_dim + kv_heads * value_dim, hidden] (q alone when the layer reads another's
    cache), ``o`` [hidden, q_heads * value_dim], ``gate_up`` [2 * width, hidden], ``down`` [hidden, width].
    MLA: ``q`` [q_heads * (nope + rope), hidden] or ``q_a`` [q_rank, hidden], ``q_a_norm``, ``q_b``; ``kv_a``
    [rank + rope, hidden], ``kv_a_norm``; absorbed, one a head: ``w_uk`` [rank, nope], ``w_uv`` [value_dim, rank].
    """

    o: Matrix
    gate_up: Matrix
    down: Matrix
    attn_norm: Tensor | None = None
    attn_post_norm: Tensor | None = None
    ffn_norm: Tensor | None = None
    ffn_post_norm: Tensor | None = None
    qkv: Matrix | None = None
    qkv_bias: Tensor | None = None
    o_bias: Tensor | None = None
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None
    q: Matrix | None = None
    q_a: Matrix | None = None
    q_a_norm: Tensor | None = None
    q_b: Matrix | None = None
    kv_a: Matrix | None = None
    kv_a_norm: Tensor | None = None
    w_uk: tuple[Matrix, ...] = ()
    w_uv: tuple[Matrix, ...] = ()

    def parts(self) -> Iterator[Matrix | Tensor]:
        """What lies in memory."""
        for field in fields(self):
            value = getattr(self, field.name)
            for one in value if isinstance(value, tuple) else (value,):
                if one is not None:
                    yield one


@dataclass(frozen=True, slots=True)
class Weights:
    """All weights. A tied ``head`` is the same matrix as ``embed``. ``ignored`` names tensors of the file left out."""

    embed: Matrix
    final_norm: Tensor
    head: Matrix
    layers: tuple[LayerWeights, ...]
    ignored: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int:
        """Bytes in memory, shared storage counted once."""
        return sum(self.kind_bytes.values())

    @property
    def kind_bytes(self) -> dict[str, int]:
        """Bytes in memory of each kind of matrix, most first; norms and biases count as ``f32``."""
        parts = [self.embed, self.final_norm, self.head, *(part for layer in self.layers for part in layer.parts())]
        each = {part.data.data_ptr(): _kind_and_bytes(part) for part in parts}
        total: dict[str, int] = {}
        for kind, n_bytes in each.values():
            total[kind] = total.get(kind, 0) + n_bytes
        return dict(sorted(total.items(), key=lambda pair: -pair[1]))


def _kind_and_bytes(part: Matrix | Tensor) -> tuple[str, int]:
    return ("f32", part.numel() * part.element_size()) if isinstance(part, Tensor) else (part.kind, part.bytes)


def load_weights(
    path: str | Path, spec: ModelSpec, *, dtype: str = "f32", on_tensor: Progress | None = None
) -> Weights:
    """Read the weights of ``spec`` from a GGUF file, a safetensors file, or a folder with (sharded) safetensors.

    ``dtype``: ``packed`` (as the file has them), ``int8``, ``f32`` or ``bf16``: see ``spec/weight_kinds.py``.

    Raises ``CorruptFile`` or ``ModelError`` naming the tensor when something is missing, unknown, misshapen or of a
    type that cannot be converted, before anything is loaded.
    """
    if dtype not in DTYPES:
        raise BadValue("dtype", dtype, f"one of {', '.join(DTYPES)}")
    return read_weights(open_source(Path(path)), spec, dtype=dtype, on_tensor=on_tensor)


def open_source(path: Path) -> Source:
    """The source for a path, by what lies there."""
    from kvist.model.weights_gguf import GgufSource
    from kvist.model.weights_safetensors import SafetensorsSource

    if path.is_file():
        return GgufSource(path) if path.suffix == ".gguf" else SafetensorsSource(path)
    if not path.is_dir():
        raise CorruptFile(f"{path} does not exist", remedy="give a .gguf file, a .safetensors file or a model folder")
    if any(path.glob("*.safetensors*")):
        return SafetensorsSource(path)
    found = sorted(path.glob("*.gguf"))
    if len(found) == 1:
        return GgufSource(found[0])
    raise CorruptFile(
        f"{path} holds no safetensors and {len(found)} GGUF files",
        remedy="a model folder holds model.safetensors, an index with shards, or exactly one GGUF file",
    )


def read_weights(source: Source, spec: ModelSpec, *, dtype: str, on_tensor: Progress | None = None) -> Weights:
    """As ``load_weights``, from an opened source."""
    namer = Namer(source.scheme, source.shapes)
    outer = model_wants(spec, namer)
    inner = [layer_wants(spec, layer, namer) for layer in spec.layers]
    wants = [*outer, *(w for layer in inner for w in layer)]
    ignored = _ignored(source, spec, wants)
    check_shapes(wants, source.shapes.__getitem__)
    read = Reader(source, dtype, on_tensor, wants)
    top: dict[str, Any] = {want.slot: read(want) for want in outer}
    layers = []
    for wanted, layer in zip(inner, spec.layers, strict=True):
        slots: dict[str, Any] = {want.slot: read(want) for want in wanted}
        if "kv_b" in slots:
            slots |= _absorb(slots.pop("kv_b").data, layer.q_heads, layer.attention.nope_dim)
        layers.append(LayerWeights(**slots))
    return Weights(top["embed"], top["final_norm"], top.get("head", top["embed"]), tuple(layers), ignored)


def _absorb(kv_b: Tensor, heads: int, nope_dim: int) -> dict[str, tuple[Matrix, ...]]:
    """Cut ``kv_b`` [heads * (nope + value), rank] into the absorbed ``w_uk`` and ``w_uv`` of each head."""
    per_head = kv_b.view(heads, -1, kv_b.shape[1])
    return {
        "w_uk": tuple(Matrix.of(head[:nope_dim].t().contiguous()) for head in per_head),
        "w_uv": tuple(Matrix.of(head[nope_dim:].contiguous()) for head in per_head),
    }


_NOT_OURS: Final = re.compile(
    r"rotary_emb\.inv_freq$|(^|\.)(vision_\w+|visual|multi_modal_projector|audio_\w+|embed_vision|embed_audio)\."
)


def _ignored(source: Source, spec: ModelSpec, wants: Iterable[Want]) -> tuple[str, ...]:
    """Tensors that a text decoder leaves alone. Raises ``ModelError`` for any other that no want claims."""
    claimed = {piece.name for want in wants for piece in want.pieces}
    extra = sorted(set(source.shapes) - claimed)
    further = _further_layers(extra, spec)
    strange = [name for name in extra if not (_layer_of(name) in further or _may_ignore(name, spec))]
    if strange:
        shown = ", ".join(f"{n} {list(source.shapes[n])}" for n in strange[:3])
        raise ModelError(
            f"the file has tensors without a place in a {spec.architecture} model ({len(strange)}): {shown}",
            remedy="ignoring them could change the model's answers; check that config and weights belong together",
        )
    return tuple(extra)


_LAYER: Final = re.compile(r"(?:layers|blk)\.(\d+)\.")
_PREDICTS_FURTHER: Final = re.compile(r"eh_proj|enorm|hnorm|shared_head|nextn")


def _further_layers(names: Iterable[str], spec: ModelSpec) -> set[int]:
    """Layers past the model's own that predict further tokens (MTP), known by tensors that only those have."""
    marked = {_layer_of(name) for name in names if _PREDICTS_FURTHER.search(name)}
    return {index for index in marked if index is not None and index >= len(spec.layers)}


def _layer_of(name: str) -> int | None:
    found = _LAYER.search(name)
    return int(found.group(1)) if found else None


def _may_ignore(name: str, spec: ModelSpec) -> bool:
    if _NOT_OURS.search(name):
        return True
    if spec.tied_embeddings and re.search(r"(^|\.)(lm_head|output)\.weight$", name):
        return True
    if name.startswith("rope_freqs."):  # the header's reader has made factors of it
        return all(la.attention.rope is None or la.attention.rope.kind == "factors" for la in spec.layers)
    index = _layer_of(name)
    if index is None or index >= len(spec.layers):
        return False
    own_kv = spec.layers[index].owns_cache
    return not own_kv and re.search(r"\.(k_proj|v_proj|k_norm|v_norm|attn_k|attn_v|attn_k_norm)\.", name) is not None

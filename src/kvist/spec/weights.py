"""How many weights a model has, by part: arithmetic on a ``ModelSpec``, no file is opened.

Exact for decoders that the spec describes fully. Multi-token-prediction layers and vision towers are not part of a
spec and not counted (its ``notes`` say so); what a reader knows of exotic parts comes in as ``extra_elements``.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvist.errors import ModelError
from kvist.spec.layer import Compressed, Latent, LayerSpec, NoMixer, Recurrent, Shared
from kvist.spec.model import ModelSpec


@dataclass(frozen=True, slots=True)
class WeightElements:
    """Weights by part. ``attention`` holds all mixers, ``ffn`` what every token passes (routers too), ``experts`` all
    routed experts, ``active_experts`` the share of them that one token passes. A tied head counts once, as embedding.
    """

    embedding: int
    attention: int
    ffn: int
    experts: int
    active_experts: int
    norms: int
    head: int

    @property
    def total(self) -> int:
        """All weights."""
        return self.embedding + self.attention + self.ffn + self.experts + self.norms + self.head

    @property
    def active(self) -> int:
        """Weights that belong to one token's path, embedding and head included, as model cards count them."""
        return self.total - self.experts + self.active_experts

    @property
    def read_per_step(self) -> int:
        """Weights read for one token: ``active`` without the embedding table, unless the head needs it."""
        return self.active - (self.embedding if self.head else 0)


def mixer_elements(layer: LayerSpec, hidden: int) -> int:
    """Weights of a layer's mixer, its ``extra_elements`` included."""
    a, q, kv = layer.attention, layer.q_heads, layer.kv_heads
    if isinstance(layer.mixer, Recurrent | NoMixer | Compressed):
        return layer.extra_elements
    out = q * layer.value_dim * hidden + (hidden if a.out_bias else 0) + (q if a.sink_logits else 0)
    if isinstance(layer.mixer, Latent):
        return out + _latent_elements(layer, hidden) + layer.extra_elements
    own = not isinstance(layer.mixer, Shared)
    rows = q * layer.key_dim + (kv * (layer.key_dim + layer.value_dim) if own else 0)
    norms = {"none": 0, "head": layer.key_dim * (1 + own), "full": (q + kv * own) * layer.key_dim}[a.qk_norm]
    return out + hidden * rows + (rows if a.qkv_bias else 0) + norms + layer.extra_elements


def _latent_elements(layer: LayerSpec, hidden: int) -> int:
    """Down and up projections of MLA, and the norms between them."""
    assert isinstance(layer.mixer, Latent)
    a, q, rank, row = layer.attention, layer.q_heads, layer.mixer.rank, layer.mixer.rank + layer.mixer.rope_dim
    query = hidden * a.q_rank + a.q_rank + a.q_rank * q * layer.key_dim if a.q_rank else hidden * q * layer.key_dim
    bias = row + a.q_rank if a.qkv_bias else 0
    return query + hidden * row + rank + rank * q * (a.nope_dim + layer.value_dim) + bias


def norm_elements(layer: LayerSpec, hidden: int) -> int:
    """Norms before (and after) a layer's mixer and feed-forward part."""
    parts = int(not isinstance(layer.mixer, NoMixer)) + int(layer.ffn is not None)
    return hidden * parts * (2 if layer.norms == "sandwich" else 1)


def weight_elements(spec: ModelSpec) -> WeightElements:
    """Weights by part. Raises ``ModelError`` for a spec that is only a shape."""
    if spec.shape_only and not (spec.hidden and spec.vocab and any(layer.ffn for layer in spec.layers)):
        raise ModelError(
            f"weights of {spec.name or spec.architecture} cannot be counted from the shape of its cache",
            remedy="use a full config.json, or pass the number of weights",
        )
    hidden = spec.hidden
    ffns = [layer.ffn for layer in spec.layers if layer.ffn is not None]
    return WeightElements(
        embedding=spec.vocab * hidden + spec.extra_elements,
        attention=sum(mixer_elements(layer, hidden) for layer in spec.layers),
        ffn=sum(ffn.dense_elements(hidden) for ffn in ffns),
        experts=sum(ffn.experts * ffn.expert_elements(hidden) for ffn in ffns),
        active_experts=sum(ffn.active * ffn.expert_elements(hidden) for ffn in ffns),
        norms=sum(norm_elements(layer, hidden) for layer in spec.layers) + hidden,
        head=0 if spec.tied_embeddings else spec.vocab * hidden,
    )

"""What the decoder can run. Everything else is refused when it is built, with the layer and the reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kvist.errors import ModelError
from kvist.spec.layer import Chunked, Full, Latent, LayerSpec, Shared, Window
from kvist.spec.model import ModelSpec

_ACTIVATIONS: Final = ("silu", "gelu_tanh", "gelu", "relu")


def refuse_unsupported(spec: ModelSpec) -> None:
    """Raise ``ModelError`` if any part of ``spec`` has no code behind it."""
    reasons = list(_model_reasons(spec))
    for layer in spec.layers:
        reasons += [f"layer {layer.index}: {reason}" for reason in _layer_reasons(spec, layer)]
    if reasons:
        more = f" (and {len(reasons) - 1} more reasons)" if len(reasons) > 1 else ""
        raise ModelError(
            f"kvist cannot run this {spec.architecture} model: {reasons[0]}{more}",
            remedy="kvist model shows what its cache would be",
        )


def _model_reasons(spec: ModelSpec) -> Iterator[str]:
    if spec.shape_only:
        yield "its description has shapes only"
    yield from (f"{name} is not implemented" for name in spec.unsupported)
    if not spec.layers:
        yield "it has no layers"
    if spec.final_norm != "rms":
        yield f"the final norm is a {spec.final_norm} norm, not an RMS norm"


def _layer_reasons(spec: ModelSpec, layer: LayerSpec) -> Iterator[str]:
    mixer, attention = layer.mixer, layer.attention
    if not isinstance(mixer, Full | Window | Chunked | Latent | Shared):
        yield f"mixer {type(mixer).__name__} is not implemented"
        return
    if getattr(mixer, "index_dim", 0) or attention.top_rows:
        yield "sparse attention (an indexer chooses rows) is not implemented"
    if attention.sink_logits:
        yield "attention sinks as learned logits are not implemented"
    if attention.rope is not None and not attention.rope.supported:
        yield f"rotary positions of kind {attention.rope.kind.partition(':')[2]} are not implemented"
    if layer.kv_heads < 1 or layer.q_heads % layer.kv_heads:
        yield f"{layer.q_heads} query heads do not divide among {layer.kv_heads} KV heads"
    if isinstance(mixer, Latent):
        yield from _latent_reasons(layer, mixer)
    elif attention.rope is not None and attention.rope.dim > layer.key_dim:
        yield f"{attention.rope.dim} rotated dims do not fit a head of {layer.key_dim}"
    if isinstance(mixer, Shared):
        yield from _shared_reasons(spec, layer, mixer)
    yield from _ffn_reasons(layer)


def _latent_reasons(layer: LayerSpec, mixer: Latent) -> Iterator[str]:
    if layer.attention.nope_dim < 1:
        yield "latent attention without an un-rotated part of a head is not implemented"
    if layer.attention.qkv_bias or layer.attention.out_bias or layer.attention.qk_norm != "none":
        yield "latent attention with biases or head norms is not implemented"
    if layer.attention.rope is not None and layer.attention.rope.dim != mixer.rope_dim:
        yield f"rotation of {layer.attention.rope.dim} dims in a latent layer that rotates {mixer.rope_dim}"


def _shared_reasons(spec: ModelSpec, layer: LayerSpec, mixer: Shared) -> Iterator[str]:
    if not 0 <= mixer.with_layer < layer.index:
        yield f"it reads the cache of layer {mixer.with_layer}, which does not come before it"
        return
    owner = spec.layers[mixer.with_layer]
    if not isinstance(owner.mixer, Full | Window | Chunked):
        yield f"it reads the cache of layer {owner.index}, which keeps no K and V"
    elif (owner.kv_heads, owner.key_dim, owner.value_dim) != (layer.kv_heads, layer.key_dim, layer.value_dim):
        yield f"its heads differ from those of layer {owner.index}, whose cache it reads"
    elif mixer.window_tokens != owner.retention.window_tokens:
        yield f"its window ({mixer.window_tokens}) differs from that of layer {owner.index}, whose cache it reads"


def _ffn_reasons(layer: LayerSpec) -> Iterator[str]:
    ffn = layer.ffn
    if ffn is None:
        yield "a layer without a feed-forward part is not implemented"
        return
    if ffn.experts:
        yield f"a mixture of {ffn.experts} experts is not implemented"
        return
    if not ffn.gated:
        yield "a feed-forward part without a gate is not implemented"
    if ffn.activation not in _ACTIVATIONS or ffn.clamp:
        yield f"activation {ffn.activation}{' with a clamp' if ffn.clamp else ''} is not implemented"

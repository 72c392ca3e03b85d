"""What one rank sees of a model: the same ``ModelSpec``, cut. Every number of a rank follows from its own spec.

Rules, the engines' own: query heads must divide; KV heads divide, or are replicated when there are fewer than ranks;
an MLA latent is kept whole by every rank; recurrent heads divide; pipeline stages hold whole layers.
"""

from __future__ import annotations

from dataclasses import replace

from kvist.errors import BadValue
from kvist.spec.ffn import Ffn
from kvist.spec.layer import LayerSpec, Mixer, Recurrent, Shared
from kvist.spec.model import ModelSpec
from kvist.spec.place import Placement
from kvist.spec.weights import WeightElements, weight_elements
from kvist.units import ceil_div, round_up


def stages(n_layers: int, pp: int) -> tuple[tuple[int, int], ...]:
    """``[first, last)`` layers of each stage. What does not divide goes to stages from the last but one backwards.

    The last stage also has the head, so it is spared (the rule of vLLM's ``get_pp_indices``).
    """
    if pp > n_layers:
        raise BadValue("pp", pp, f"at most one stage per layer: the model has {n_layers}")
    sizes = [n_layers // pp] * pp
    for i in range(n_layers % pp):
        sizes[max(0, pp - 2 - i)] += 1
    ends = [sum(sizes[: i + 1]) for i in range(pp)]
    return tuple((end - size, end) for size, end in zip(sizes, ends, strict=True))


def with_drafts(spec: ModelSpec, layers: int) -> ModelSpec:
    """The model with ``layers`` next-token-prediction layers behind it: each is like its last full-attention layer.

    Raises ``BadValue`` when the model has no layer that keeps everything, or a negative count is asked for.
    """
    if layers < 0:
        raise BadValue("draft_layers", layers, "a count >= 0")
    whole = [layer for layer in spec.layers if layer.owns_cache and not layer.retention.bounded]
    if layers and not whole:
        raise BadValue("draft_layers", layers, "0: no layer of the model keeps every token, so none can be its draft")
    n = len(spec.layers)
    return replace(spec, layers=(*spec.layers, *(replace(whole[-1], index=n + i) for i in range(layers))))


def shard(spec: ModelSpec, place: Placement, stage: int = 0) -> ModelSpec:
    """The spec that one rank of ``stage`` sees. Layers keep their indices; ``hidden`` and ``vocab`` stay whole.

    Raises ``BadValue`` naming the heads that do not divide. Weight bytes of files are not carried over: see
    ``rank_weights``.
    """
    if not 0 <= stage < place.pp:
        raise BadValue("stage", stage, f"a stage from 0 to {place.pp - 1}")
    first, last = stages(len(spec.layers), place.pp)[stage]
    kept = _any_heads(spec, place.attention_tp) if spec.shape_only else spec.layers
    kept = kept[first:last]
    for layer in kept:
        if isinstance(layer.mixer, Shared) and not first <= layer.mixer.with_layer < last:
            raise BadValue(
                "pp",
                place.pp,
                f"stages that keep layer {layer.index} with layer {layer.mixer.with_layer}, whose cache it reads",
            )
    return replace(spec, layers=tuple(_layer(layer, place) for layer in kept), weight_bytes=0)


def _any_heads(spec: ModelSpec, tp: int) -> tuple[LayerSpec, ...]:
    """A mere shape of a cache may not know its query heads; the cache does not depend on them, so any will do."""
    return tuple(replace(layer, q_heads=round_up(layer.q_heads, tp)) for layer in spec.layers)


def _layer(layer: LayerSpec, place: Placement) -> LayerSpec:
    tp = place.attention_tp
    return replace(
        layer,
        mixer=_mixer(layer, tp),
        q_heads=_query_heads(layer, tp),
        kv_heads=kv_heads_of_rank(layer.kv_heads, tp),
        extra_elements=ceil_div(layer.extra_elements, tp),
        ffn=_ffn(layer.ffn, place) if layer.ffn is not None else None,
    )


def kv_heads_of_rank(kv_heads: int, tp: int) -> int:
    """``kv_heads / tp``, or one when there are fewer heads than ranks (each head then lies on several)."""
    if kv_heads == 0:
        return 0
    if kv_heads >= tp:
        if kv_heads % tp:
            raise BadValue("tp", tp, f"a divisor of the {kv_heads} KV heads ({kv_heads % tp} left over)")
        return kv_heads // tp
    if tp % kv_heads:
        raise BadValue("tp", tp, f"a multiple of the {kv_heads} KV heads, which are replicated")
    return 1


def _query_heads(layer: LayerSpec, tp: int) -> int:
    if layer.q_heads % tp:
        raise BadValue("tp", tp, f"a divisor of the {layer.q_heads} query heads of layer {layer.index}")
    return layer.q_heads // tp


def _mixer(layer: LayerSpec, tp: int) -> Mixer:
    mixer = layer.mixer
    if not isinstance(mixer, Recurrent):
        return mixer
    if mixer.state_elements % tp:
        raise BadValue("tp", tp, f"a divisor of the {mixer.kind} state of layer {layer.index}")
    return replace(mixer, state_elements=mixer.state_elements // tp, conv_elements=ceil_div(mixer.conv_elements, tp))


def _ffn(ffn: Ffn, place: Placement) -> Ffn:
    tp = place.tp
    if place.ep > 1 and ffn.experts:
        if ffn.experts % place.ep:
            raise BadValue("ep", place.ep, f"a divisor of the {ffn.experts} experts")
        inner = ceil_div(ffn.expert_width, max(1, tp // place.ep))
        shared = ceil_div(ffn.shared_width, tp)
        return replace(ffn, experts=ffn.experts // place.ep, expert_width=inner, shared_width=shared)
    return replace(
        ffn,
        width=ceil_div(ffn.width, tp),
        shared_width=ceil_div(ffn.shared_width, tp),
        expert_width=ceil_div(ffn.expert_width, tp),
    )


def rank_weights(spec: ModelSpec, place: Placement, stage: int = 0) -> WeightElements:
    """Weights that one rank of ``stage`` holds: the embedding on the first stage, the head on the last.

    Vocabulary rows are cut by ``tp``; norms and MLA's down projections are replicated. With a tied head the last stage
    holds the embedding as well. Raises ``ModelError`` for a spec that is only a shape.
    """
    cut = weight_elements(shard(spec, place, stage))
    rows = ceil_div(spec.vocab, place.tp) * spec.hidden
    extra = ceil_div(spec.extra_elements, place.tp)
    last = stage == place.pp - 1
    return replace(
        cut,
        embedding=rows + extra if stage == 0 else rows if last and spec.tied_embeddings else 0,
        head=rows if last and not spec.tied_embeddings else 0,
        active_experts=min(cut.active_experts, cut.experts),
    )

"""From layers to a ``ModelSpec``: the fields every decoder config shares, and what is said about those it lacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kvist.spec.ffn import Activation
from kvist.spec.hf_fields import Fields
from kvist.spec.hf_heads import HIDDEN, KV_HEADS, MAX_DIM, Q_HEADS
from kvist.spec.layer import LayerSpec
from kvist.spec.model import ModelSpec

CONTEXT: Final = "max_position_embeddings|model_max_length|n_positions|max_seq_len|seq_length|max_sequence_length"
VOCAB: Final = "vocab_size|padded_vocab_size"
LAYERS: Final = "num_hidden_layers|n_layer|n_layers|num_layers"
MTP: Final = "num_nextn_predict_layers|mtp_num_hidden_layers|num_mtp_layers|num_mtp_modules"
EPS: Final = "rms_norm_eps|layernorm_epsilon|norm_epsilon|layer_norm_epsilon|layer_norm_eps|norm_eps"
_TOWERS: Final = ("vision_config", "audio_config", "vision_tower_config")

_ACTIVATIONS: Final[dict[str, Activation]] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
    "swigluoai": "swiglu_oai",
}


def require_decoder(f: Fields, *names: str, heads: bool = True) -> None:
    """Name every absent field that a full description needs, all at once."""
    wanted = [LAYERS, HIDDEN, VOCAB, CONTEXT, *names]
    if heads:
        wanted.append(Q_HEADS)
        grouped = f.has(f"{KV_HEADS}|multi_query|multi_query_attention") or "num_key_value_heads" in f.raw
        wanted += [] if grouped else ["num_key_value_heads"]
    f.require(*wanted)


def hidden_size(f: Fields) -> int:
    """Width of the residual stream."""
    return f.integer(HIDDEN, high=MAX_DIM)


def activation(f: Fields, default: Activation = "silu") -> Activation:
    """The activation of the feed-forward part; ``other`` for one that no decoder here computes."""
    name = f.text_or("hidden_activation|hidden_act|mlp_hidden_act|activation_function|activation", "")
    return _ACTIVATIONS.get(name, "other") if name else default


def tied(f: Fields, default: bool) -> bool:
    """Whether the head is the embedding, transposed. A wrapper's word counts where the text config is silent."""
    if f.has("tie_word_embeddings"):
        return f.flag("tie_word_embeddings", default)
    return Fields(f.outer, f.source).flag("tie_word_embeddings", default)


def layer_kinds(f: Fields, allowed: Sequence[str]) -> list[str] | None:
    """``layer_types``, checked against what the family knows; None when absent."""
    n = f.layers()
    kinds = f.texts("layer_types", n)
    for kind in kinds or ():
        if kind not in allowed:
            raise f.bad("layer_types", kind, f"one of {', '.join(allowed)}")
    return kinds


def every_nth_full(n_layers: int, interval: int) -> list[bool]:
    """True where a layer is full: the last of every ``interval``."""
    return [(i + 1) % interval == 0 for i in range(n_layers)]


def notes_of(f: Fields) -> tuple[str, ...]:
    """What a reader of the numbers should know: parts not counted, values taken from the family."""
    notes: list[str] = []
    mtp = f.integer_or(MTP, 0)
    if mtp:
        notes.append(f"{mtp} multi-token-prediction layer{'s are' if mtp > 1 else ' is'} not counted")
    towers = [tower for tower in _TOWERS if f.outer is not f.raw and isinstance(f.outer.get(tower), dict)]
    notes += [f"the {tower.partition('_')[0]} tower is not counted" for tower in towers]
    if f.assumed:
        notes.append(f"absent from the config, taken from the family: {', '.join(dict.fromkeys(f.assumed))}")
    return tuple(notes)


def assemble(
    f: Fields,
    architecture: str,
    layers: Sequence[LayerSpec],
    *,
    eps: float = 1e-6,
    is_tied: bool = False,
    unsupported: Sequence[str] = (),
    extra_notes: Sequence[str] = (),
) -> ModelSpec:
    """The ``ModelSpec`` of a family without softcaps, scales or offsets (those use ``dataclasses.replace``)."""
    missing = list(unsupported)
    if any(layer.ffn is not None and layer.ffn.activation == "other" for layer in layers):
        missing.append(f"activation {f.get('hidden_activation|hidden_act|mlp_hidden_act|activation_function')}")
    kinds = {layer.attention.rope.kind for layer in layers if layer.attention.rope is not None}
    missing += [f"rotary positions of kind {k.partition(':')[2]}" for k in sorted(kinds) if k.startswith("unsupported")]
    norm_eps = f.assume(EPS, eps)
    return ModelSpec(
        architecture=architecture,
        hidden=hidden_size(f),
        layers=tuple(layers),
        vocab=f.integer(VOCAB),
        context_tokens=f.integer(CONTEXT),
        norm_eps=norm_eps,
        tied_embeddings=tied(f, is_tied),
        notes=(*notes_of(f), *extra_notes),
        unsupported=tuple(dict.fromkeys(missing)),
    )

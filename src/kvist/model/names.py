"""Which tensors of a file make up which weights: two name tables, one plan.

A *want* is one ready tensor of the model (``qkv``, ``gate_up``, ...). It is filled from *pieces*: one or more tensors
of the file, one below the other. Some files hold the same rows in one tensor already, so a want has alternatives; the
first whose tensors are all there is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from kvist.errors import CorruptFile


@dataclass(frozen=True, slots=True)
class HalfOrder:
    """Rows to reorder: in each of ``heads`` heads of ``head_dim`` rows, the ``rope_dim`` rows from ``offset`` on."""

    heads: int
    head_dim: int
    offset: int
    rope_dim: int


@dataclass(frozen=True, slots=True)
class Piece:
    """``rows`` rows from the tensor called ``name``; ``half`` if neighbouring pairs must become halves."""

    name: str
    rows: int
    half: HalfOrder | None = None


@dataclass(frozen=True, slots=True)
class Want:
    """One tensor of the model. ``small`` ones (norms, biases) stay float32; ``offset`` is added (norm weights)."""

    slot: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]
    small: bool = False
    offset: float = 0.0


@dataclass(frozen=True, slots=True)
class Scheme:
    """One way of naming tensors. ``layer`` stands before every layer part; norms are named by the layer's style."""

    layer: str
    parts: Mapping[str, str]
    norms: Mapping[str, Mapping[str, str]]
    prefixes: tuple[str, ...] = ("",)
    bare: Collection[str] = field(default=())
    """Parts that may stand without the prefix."""


_HF_PARTS: Final = {
    "embed": "embed_tokens", "final_norm": "norm", "head": "lm_head",
    "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj",
    "qkv": "self_attn.qkv_proj", "q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm",
    "q_a": "self_attn.q_a_proj", "q_a_norm": "self_attn.q_a_layernorm", "q_b": "self_attn.q_b_proj",
    "kv_a": "self_attn.kv_a_proj_with_mqa", "kv_a_norm": "self_attn.kv_a_layernorm", "kv_b": "self_attn.kv_b_proj",
    "k_b": "self_attn.k_b_proj", "v_b": "self_attn.v_b_proj",
    "gate": "mlp.gate_proj", "up": "mlp.up_proj", "gate_up": "mlp.gate_up_proj", "down": "mlp.down_proj",
}  # fmt: skip

HF: Final = Scheme(
    layer="layers.{i}.",
    parts=_HF_PARTS,
    norms={
        "pre": {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"},
        "sandwich": {
            "attn_norm": "input_layernorm",
            "attn_post_norm": "post_attention_layernorm",
            "ffn_norm": "pre_feedforward_layernorm",
            "ffn_post_norm": "post_feedforward_layernorm",
        },
        "post": {"attn_post_norm": "post_attention_layernorm", "ffn_post_norm": "post_feedforward_layernorm"},
    },
    prefixes=("model.", "language_model.model.", "model.language_model.", "language_model.", ""),
    bare=("head",),
)

_GGUF_PARTS: Final = {
    "embed": "token_embd", "final_norm": "output_norm", "head": "output",
    "q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output",
    "qkv": "attn_qkv", "q_norm": "attn_q_norm", "k_norm": "attn_k_norm",
    "q_a": "attn_q_a", "q_a_norm": "attn_q_a_norm", "q_b": "attn_q_b",
    "kv_a": "attn_kv_a_mqa", "kv_a_norm": "attn_kv_a_norm", "kv_b": "attn_kv_b", "k_b": "attn_k_b", "v_b": "attn_v_b",
    "gate": "ffn_gate", "up": "ffn_up", "gate_up": "ffn_up", "down": "ffn_down",
}  # fmt: skip

_GGUF_POST: Final = {"attn_post_norm": "post_attention_norm", "ffn_post_norm": "post_ffw_norm"}
_GGUF_PRE: Final = {"attn_norm": "attn_norm", "ffn_norm": "ffn_norm"}

GGUF: Final = Scheme(
    layer="blk.{i}.",
    parts=_GGUF_PARTS,
    norms={"pre": _GGUF_PRE, "post": _GGUF_POST, "sandwich": {**_GGUF_PRE, **_GGUF_POST}},
)


class Namer:
    """Finds the names of one file. ``present`` are the file's tensor names."""

    def __init__(self, scheme: Scheme, present: Collection[str]) -> None:
        self._scheme = scheme
        self._present = present
        probe = scheme.parts["embed"] + ".weight"
        self.prefix = next((p for p in scheme.prefixes if p + probe in present), scheme.prefixes[0])

    def name(self, part: str, layer: int | None = None, *, norms: str = "pre", suffix: str = ".weight") -> str:
        """File name of a part: ``name("q", 3)`` is ``model.layers.3.self_attn.q_proj.weight`` in one scheme."""
        stem = self._scheme.parts.get(part) or self._scheme.norms[norms][part]
        if layer is not None:
            return self.prefix + self._scheme.layer.format(i=layer) + stem + suffix
        whole = self.prefix + stem + suffix
        if part in self._scheme.bare and whole not in self._present:
            outer = self.prefix.removesuffix("model.") + stem + suffix
            return outer if outer in self._present else stem + suffix
        return whole

    def has(self, *names: str) -> bool:
        """Whether the file has all of these."""
        return all(n in self._present for n in names)

    def pick(self, *alternatives: tuple[Piece, ...]) -> tuple[Piece, ...]:
        """The first alternative that is whole. Raises ``CorruptFile`` naming what the first one lacks."""
        for pieces in alternatives:
            if self.has(*(p.name for p in pieces)):
                return pieces
        missing = next(p for p in alternatives[0] if not self.has(p.name))
        raise CorruptFile(
            f"the weights lack tensor {missing.name} ({missing.rows} rows)",
            remedy="download the model again, or check that the config describes these weights",
        )


def check_shapes(wants: Collection[Want], shape_of: Callable[[str], tuple[int, ...]]) -> None:
    """Every piece has the rows and columns its want needs. Raises ``CorruptFile`` with both shapes."""
    for want in wants:
        for piece in want.pieces:
            expected, found = (piece.rows, *want.shape[1:]), tuple(shape_of(piece.name))
            if found != expected:
                raise CorruptFile(
                    f"tensor {piece.name} has shape {list(found)}, expected {list(expected)}",
                    remedy="the weights and the config or header do not belong together",
                )

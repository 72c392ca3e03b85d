"""The tensors a model needs, from its spec: what to call them, what shape they have, how their rows are ordered."""

from __future__ import annotations

from kvist.model.names import HalfOrder, Namer, Piece, Want
from kvist.spec.layer import Latent, LayerSpec, Shared
from kvist.spec.model import ModelSpec


def model_wants(spec: ModelSpec, namer: Namer) -> list[Want]:
    """Tensors outside the layers. A tied head is no tensor of its own."""

    def whole(part: str, rows: int) -> tuple[Piece, ...]:
        return namer.pick((Piece(namer.name(part), rows),))

    table = (spec.vocab, spec.hidden)
    wants = [
        Want("embed", table, whole("embed", spec.vocab)),
        Want("final_norm", (spec.hidden,), whole("final_norm", spec.hidden), True, spec.norm_weight_offset),
    ]
    if not spec.tied_embeddings:
        wants.append(Want("head", table, whole("head", spec.vocab)))
    return wants


def layer_wants(spec: ModelSpec, layer: LayerSpec, namer: Namer) -> list[Want]:
    """Tensors of one layer."""
    build = _LayerWants(spec, layer, namer)
    build.norms()
    if isinstance(layer.mixer, Latent):
        build.latent(layer.mixer)
    else:
        build.attention()
    build.feed_forward()
    return build.wants


class _LayerWants:
    """Collects the wants of one layer."""

    def __init__(self, spec: ModelSpec, layer: LayerSpec, namer: Namer) -> None:
        self.spec, self.layer, self.namer = spec, layer, namer
        self.wants: list[Want] = []

    def _piece(self, part: str, rows: int, half: HalfOrder | None = None, suffix: str = ".weight") -> Piece:
        return Piece(self.namer.name(part, self.layer.index, norms=self.layer.norms, suffix=suffix), rows, half)

    def _norm(self, slot: str, dim: int, half: HalfOrder | None = None) -> None:
        piece = self._piece(slot, dim, half)
        self.wants.append(Want(slot, (dim,), self.namer.pick((piece,)), True, self.spec.norm_weight_offset))

    def _matrix(self, slot: str, columns: int, *alternatives: tuple[Piece, ...]) -> None:
        pieces = self.namer.pick(*alternatives)
        self.wants.append(Want(slot, (sum(p.rows for p in pieces), columns), pieces))

    def _bias(self, slot: str, *alternatives: tuple[Piece, ...]) -> None:
        pieces = self.namer.pick(*alternatives)
        self.wants.append(Want(slot, (sum(p.rows for p in pieces),), pieces, True))

    def norms(self) -> None:
        """Norms around attention and the feed-forward part, by the layer's style."""
        names = {
            "pre": ("attn_norm", "ffn_norm"),
            "post": ("attn_post_norm", "ffn_post_norm"),
            "sandwich": ("attn_norm", "attn_post_norm", "ffn_norm", "ffn_post_norm"),
        }[self.layer.norms]
        for slot in names:
            self._norm(slot, self.spec.hidden)

    def attention(self) -> None:
        """Merged ``qkv`` (only q when the cache is another layer's), ``o``, head norms."""
        layer, hidden = self.layer, self.spec.hidden
        q_rows, k_rows = layer.q_heads * layer.key_dim, layer.kv_heads * layer.key_dim
        v_rows = layer.kv_heads * layer.value_dim
        q_half, k_half = self._half(layer.q_heads, layer.key_dim), self._half(layer.kv_heads, layer.key_dim)
        reads_only = isinstance(layer.mixer, Shared)

        def pieces(suffix: str) -> list[tuple[Piece, ...]]:
            q = self._piece("q", q_rows, q_half, suffix)
            if reads_only:
                return [(q,)]
            k, v = self._piece("k", k_rows, k_half, suffix), self._piece("v", v_rows, None, suffix)
            apart = (q, k, v)
            merged = (self._piece("qkv", q_rows + k_rows + v_rows, None, suffix),)
            return [apart] if q_half else [apart, merged]

        self._matrix("qkv", hidden, *pieces(".weight"))
        if layer.attention.qkv_bias:
            self._bias("qkv_bias", *pieces(".bias"))
        self._matrix("o", layer.q_heads * layer.value_dim, (self._piece("o", hidden),))
        if layer.attention.out_bias:
            self._bias("o_bias", (self._piece("o", hidden, suffix=".bias"),))
        if layer.attention.qk_norm != "none":
            whole = layer.attention.qk_norm == "full"
            q_dim, q_heads = (q_rows, layer.q_heads) if whole else (layer.key_dim, 1)
            k_dim, k_heads = (k_rows, layer.kv_heads) if whole else (layer.key_dim, 1)
            self._norm("q_norm", q_dim, self._half(q_heads, layer.key_dim))
            if not reads_only:
                self._norm("k_norm", k_dim, self._half(k_heads, layer.key_dim))

    def latent(self, mixer: Latent) -> None:
        """Queries (through a narrow layer or not), the latent's projection, and the two halves that are absorbed."""
        layer, hidden = self.layer, self.spec.hidden
        nope, heads = layer.attention.nope_dim, layer.q_heads
        head_dim, q_rank = nope + mixer.rope_dim, layer.attention.q_rank
        q_half = self._half(heads, head_dim, offset=nope)
        if q_rank:
            self._matrix("q_a", hidden, (self._piece("q_a", q_rank),))
            self._norm("q_a_norm", q_rank)
            self._matrix("q_b", q_rank, (self._piece("q_b", heads * head_dim, q_half),))
        else:
            self._matrix("q", hidden, (self._piece("q", heads * head_dim, q_half),))
        rows = mixer.rank + mixer.rope_dim
        self._matrix("kv_a", hidden, (self._piece("kv_a", rows, self._half(1, rows, offset=mixer.rank)),))
        self._norm("kv_a_norm", mixer.rank)
        self._absorbed(mixer.rank, nope)
        self._matrix("o", heads * layer.value_dim, (self._piece("o", hidden),))

    def _absorbed(self, rank: int, nope: int) -> None:
        heads, value = self.layer.q_heads, self.layer.value_dim
        k_b, v_b = self._piece("k_b", heads), self._piece("v_b", heads)
        if self.namer.has(k_b.name, v_b.name):
            self.wants.append(Want("w_uk", (heads, rank, nope), (k_b,)))
            self.wants.append(Want("w_uv", (heads, value, rank), (v_b,)))
        else:
            self._matrix("kv_b", rank, (self._piece("kv_b", heads * (nope + value)),))

    def feed_forward(self) -> None:
        """Merged ``gate_up`` and ``down``."""
        ffn, hidden = self.layer.ffn, self.spec.hidden
        assert ffn is not None
        for suffix, add in ((".weight", True), (".bias", ffn.bias)):
            if not add:
                continue
            apart = (self._piece("gate", ffn.width, None, suffix), self._piece("up", ffn.width, None, suffix))
            merged = (self._piece("gate_up", 2 * ffn.width, None, suffix),)
            down = (self._piece("down", hidden, None, suffix),)
            if suffix == ".weight":
                self._matrix("gate_up", hidden, apart, merged)
                self._matrix("down", ffn.width, down)
            else:
                self._bias("gate_up_bias", apart, merged)
                self._bias("down_bias", down)

    def _half(self, heads: int, head_dim: int, *, offset: int = 0) -> HalfOrder | None:
        """How to reorder rows that were stored with neighbouring pairs; None when they are in half order already."""
        rope = self.layer.attention.rope
        return HalfOrder(heads, head_dim, offset, rope.dim) if rope is not None and rope.interleaved else None

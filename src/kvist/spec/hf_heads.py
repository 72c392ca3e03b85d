"""Heads and their widths: the numbers that decide the size of a cache, under all their names. Nothing is guessed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvist.spec.hf_fields import Fields

MAX_HEADS: Final = 65_536
MAX_DIM: Final = 1 << 20

Q_HEADS: Final = "num_attention_heads|n_head|n_heads|num_heads"
HIDDEN: Final = "hidden_size|n_embd|d_model|dim"
KV_HEADS: Final = (
    "num_key_value_heads|num_kv_heads|n_kv_heads|n_head_kv|num_attention_groups|"
    "multi_query_group_num|num_query_groups|n_kv_groups|num_kv_groups"
)
HEAD_DIM: Final = "head_dim|attention_head_dim|kv_channels"


@dataclass(frozen=True, slots=True)
class Heads:
    """Query heads, KV heads and the width of one head."""

    q: int
    kv: int
    dim: int


def query_heads(f: Fields) -> int:
    """Query heads, required."""
    return f.integer(Q_HEADS, high=MAX_HEADS)


def head_dim(f: Fields, q_heads: int, *, derived: bool = True) -> int:
    """An explicit ``head_dim`` first, then ``hidden_size / num_attention_heads`` where the family allows it.

    Families whose heads are not a share of the hidden width (Qwen3, Gemma, gpt-oss...) must say it themselves.
    """
    if f.has(HEAD_DIM):
        return f.integer(HEAD_DIM, high=MAX_DIM)
    if not derived:
        f.require("head_dim", remedy="add head_dim to the config: in this family it does not follow from hidden_size")
    f.require(f"head_dim|{HIDDEN}")
    hidden = f.integer(HIDDEN, high=MAX_DIM)
    if hidden % q_heads:
        raise f.bad("head_dim (hidden_size / num_attention_heads)", hidden / q_heads, "a whole number")
    return hidden // q_heads


def kv_heads(f: Fields, q_heads: int) -> int:
    """KV heads from whichever name the config uses: a count, a number of groups, or a ``multi_query`` flag.

    An explicit null means multi-head attention (every query head has its own), as transformers reads it; an absent
    field does not mean anything and raises ``MissingField``.
    """
    if f.has(KV_HEADS):
        heads = f.integer(KV_HEADS, high=MAX_HEADS)
    elif f.has("multi_query|multi_query_attention"):
        heads = 1 if f.flag("multi_query|multi_query_attention", False) else q_heads
    elif "num_key_value_heads" in f.raw:
        heads = q_heads
    else:
        f.require(
            "num_key_value_heads",
            remedy='add it; if every query head has its own K and V, write "num_key_value_heads": null',
        )
        heads = q_heads
    if q_heads % heads:
        raise f.bad("num_key_value_heads", heads, f"a divisor of {q_heads} query heads")
    return heads


def read_heads(f: Fields, *, derived: bool = True) -> Heads:
    """All three, with every absent field named at once."""
    f.require(Q_HEADS, *([] if derived else [HEAD_DIM]))
    q = query_heads(f)
    return Heads(q, kv_heads(f, q), head_dim(f, q, derived=derived))

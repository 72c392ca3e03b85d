"""What ranks send each other in one step: bytes that leave one rank, and how many times all wait for all.

A ring all-reduce moves ``2 (n - 1) / n`` of the vector through every rank (Patarasuk and Yuan, JPDC 2009); all-to-all
moves each token's row to the ranks of its experts and back; a stage sends its rows to the next one.
"""

from __future__ import annotations

from kvist.cost.roofline import Traffic
from kvist.spec.layer import NoMixer
from kvist.spec.model import ModelSpec
from kvist.spec.place import Placement


def traffic(
    rank: ModelSpec, place: Placement, tokens: int, *, link_bytes_per_s: float, element_bytes: float = 2.0
) -> Traffic:
    """Traffic of one rank (its stage's layers in ``rank``) in a step of ``tokens``.

    Where attention is whole, the feed-forward part gathers the tokens of all ranks of the group and scatters them back.
    """
    row = rank.hidden * element_bytes * tokens
    everyone = row * place.sequence_ranks
    bytes_, messages = 0.0, 0
    for layer in rank.layers:
        if place.attention_tp > 1 and not isinstance(layer.mixer, NoMixer):
            bytes_ += 2 * (place.tp - 1) / place.tp * row
            messages += 1
        if layer.ffn is None:
            continue
        if place.ep > 1 and layer.ffn.experts:
            bytes_ += 2 * row * layer.ffn.active * (place.ep - 1) / place.ep / place.attention_tp
            messages += 2
        elif place.tp > 1:
            bytes_ += 2 * (place.tp - 1) / place.tp * everyone
            messages += 1
    if place.cp > 1:  # partial outputs and their log-sum-exp are gathered over the ranks that split the rows
        heads = sum(layer.q_heads * (layer.value_dim + 1) for layer in rank.layers if layer.owns_cache)
        bytes_ += heads * 4.0 * tokens * (place.cp - 1)
        messages += len(rank.layers)
    if place.pp > 1:
        bytes_ += row
        messages += 1
    return Traffic(bytes_, messages, link_bytes_per_s)

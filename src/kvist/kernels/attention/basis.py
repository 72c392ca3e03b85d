"""The basis in which a format keeps K and V: rotated by a Hadamard matrix, K less a static mean.

Attention does not notice either. Rotation keeps q . k when q is rotated too, and the weighted sum of rotated V is the
rotated sum, which is rotated back. A mean that all keys of a head lack changes all scores of a query by the same
amount, which the softmax cancels. Rows that are kept exactly beside packed ones are kept in the same basis.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvist.spec.format import KVFormat


@dataclass(frozen=True, slots=True)
class Basis:
    """``k_mean`` float32 [kv_heads, key_dim] is subtracted from rotated-by-position keys (None: nothing is)."""

    k_rotated: bool = False
    v_rotated: bool = False
    k_mean: torch.Tensor | None = None

    @staticmethod
    def of(fmt: KVFormat, k_mean: torch.Tensor | None = None) -> Basis:
        """The basis of a format."""
        return Basis(fmt.k.rotated, fmt.v.rotated, k_mean)


PLAIN = Basis()
"""As they are."""

"""What a model is, said once: read by the planner, the cost model, the layout, the allocator and the decoder."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from kvist.spec.format import KVFormat
from kvist.spec.layer import LayerSpec


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder-only Transformer as numbers.

    ``norm_weight_offset`` is added to every RMS-norm weight (1.0 for Gemma checkpoints that store ``w - 1``).
    ``weight_bytes`` is 0 when unknown. ``shape_only`` marks a spec read from a minimal description: good for memory,
    not for running. ``unsupported`` names parts of the computation that no field here describes (memory is right all
    the same): a decoder refuses a model that has any. ``notes`` are sentences a reader wants people to see (for example
    streams that are not counted). ``extra_elements`` counts weights outside the layers that follow from no field.
    ``draft_layers`` is how many next-token-prediction layers (MTP) come with the weights; they are not in ``layers``.
    ``state_type`` is the element type asked for recurrent state (``f32``, ``bf16``, ``f16``; empty: unsaid),
    ``state_chunk_tokens`` the chunk of its kernel (0: unsaid).
    """

    architecture: str
    hidden: int
    layers: tuple[LayerSpec, ...]
    vocab: int
    context_tokens: int
    norm_eps: float = 1e-5
    norm_weight_offset: float = 0.0
    tied_embeddings: bool = False
    embedding_scale: float = 1.0
    logit_softcap: float = 0.0
    logit_scale: float = 1.0
    final_norm: Literal["rms", "layer"] = "rms"
    weight_bytes: int = 0
    name: str = ""
    shape_only: bool = False
    notes: tuple[str, ...] = field(default=())
    unsupported: tuple[str, ...] = field(default=())
    extra_elements: int = 0
    draft_layers: int = 0
    state_type: str = ""
    state_chunk_tokens: int = 0

    def kv_bytes_per_token(self, fmt: KVFormat) -> int:
        """Bytes that one more token adds while no window is full: the sum over layers that own a cache."""
        return sum(layer.kv_bytes_per_token(fmt) for layer in self.layers)

    def kv_bytes(self, n_tokens: int, fmt: KVFormat) -> int:
        """Bytes of rows in memory while the last of ``n_tokens`` is computed.

        Windows hold ``min(window, n_tokens)`` rows; blocks are not rounded and recurrent state is not counted.
        """
        return sum(layer.kv_bytes(n_tokens, fmt) for layer in self.layers)

    @property
    def state_elements(self) -> int:
        """Elements of recurrent state per sequence, all layers."""
        return sum(layer.state_elements for layer in self.layers)

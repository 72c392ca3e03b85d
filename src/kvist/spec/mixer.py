"""Mixers: how a layer brings tokens together, and by that what it has to remember. Plain facts, no arithmetic."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Full:
    """Every earlier token is visible and kept.

    ``index_dim`` is the width of a sparse-attention indexer's key, kept beside K and V (MiniMax-M3; 0: none).
    """

    index_dim: int = 0


@dataclass(frozen=True, slots=True)
class Window:
    """The last ``size_tokens`` tokens (the query's own included) and the first ``sinks`` are visible."""

    size_tokens: int
    sinks: int = 0


@dataclass(frozen=True, slots=True)
class Chunked:
    """Only tokens of the query's own chunk of ``size_tokens`` are visible (Llama 4)."""

    size_tokens: int


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): one row of ``rank + rope_dim`` a token, no V.

    ``index_dim`` is the width of a sparse-attention indexer's key, kept beside the latent (0: none).
    """

    rank: int
    rope_dim: int
    index_dim: int = 0


@dataclass(frozen=True, slots=True)
class Compressed:
    """DeepSeek-V4: a window of rows that serve as key and value at once, and one row for every ``ratio`` older tokens.

    ``ratio`` 0: the window only. ``index_dim``: an indexer's key beside every compressed row. ``buffer_elements``:
    what the compressor holds of tokens that do not fill a row yet (a state: it cannot be rolled back).
    """

    window_tokens: int
    ratio: int = 0
    index_dim: int = 0
    buffer_elements: int = 0


@dataclass(frozen=True, slots=True)
class Recurrent:
    """State of fixed size instead of per-token KV (SSM, gated delta rule, linear attention).

    ``conv_elements`` are the past inputs of its short filter, ``conv_steps`` of them for each channel.
    """

    kind: str
    state_elements: int
    conv_elements: int = 0
    conv_steps: int = 3


@dataclass(frozen=True, slots=True)
class Shared:
    """Reads the cache of layer ``with_layer``; owns nothing."""

    with_layer: int
    window_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class NoMixer:
    """The layer has no attention and no state (pure FFN blocks of some hybrids)."""


Mixer = Full | Window | Chunked | Latent | Compressed | Recurrent | Shared | NoMixer

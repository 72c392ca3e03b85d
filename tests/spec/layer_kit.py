"""Layers and models made by hand, for tests of arithmetic."""

from kvist.spec.layer import Chunked, Compressed, Full, Latent, LayerSpec, NoMixer, Recurrent, Shared, Window
from kvist.spec.model import ModelSpec


def layer(mixer=None, *, index=0, q=8, kv=8, key=128, value=None):
    return LayerSpec(
        index=index,
        mixer=mixer if mixer is not None else Full(),
        q_heads=q,
        kv_heads=kv,
        key_dim=key,
        value_dim=key if value is None else value,
    )


def model(*layers, **more):
    """A model of these layers, renumbered."""
    from dataclasses import replace

    numbered = tuple(replace(x, index=i) for i, x in enumerate(layers))
    return ModelSpec("test", hidden=64, layers=numbered, vocab=100, context_tokens=1 << 20, **more)


def uniform(n, **shape):
    return model(*(layer(**shape) for _ in range(n)))


__all__ = [
    "Chunked", "Compressed", "Full", "Latent", "NoMixer", "Recurrent", "Shared", "Window", "layer", "model", "uniform",
]  # fmt: skip

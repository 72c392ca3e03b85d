"""The shape of a cache from a llama.cpp log alone: what it prints of the model is enough to check its own sizes."""

from __future__ import annotations

import re
from typing import Final

from kvist.planner.doctor.base import EngineLog
from kvist.spec.layer import Full, Latent, LayerSpec, Mixer, NoMixer, Recurrent, Window
from kvist.spec.model import ModelSpec

_MAX_LAYERS: Final = 2048
_MAX_DIM: Final = 1 << 20


def spec_of_log(log: EngineLog) -> ModelSpec | None:
    """A spec good for memory only, or None when the log does not print the model's shape.

    Which layers have a window, and which a recurrent state, follows from how many layers each cache line counts: enough
    for sizes, not for running.
    """
    n = log.count("n_layer") or 0
    if not 0 < n <= _MAX_LAYERS:
        return None
    kv_heads, q_heads = _per_layer(log, "n_head_kv", n), _per_layer(log, "n_head", n)
    key, value = log.count("n_embd_head_k"), log.count("n_embd_head_v")
    if not (kv_heads and key and value and 0 < key <= _MAX_DIM and 0 < value <= _MAX_DIM):
        return None
    attending = sum(1 for heads in kv_heads if heads)
    mixers = _mixers(log, n, kv_heads)
    rank = log.count("n_lora_kv") or _header(log, "attention.kv_lora_rank")
    rotated = log.count("n_rot") or 0
    key = log.count("n_embd_head_k_mla") or _header(log, "attention.key_length_mla") or key
    value = log.count("n_embd_head_v_mla") or _header(log, "attention.value_length_mla") or value
    layers = []
    for i, mixer in enumerate(mixers):
        owns = isinstance(mixer, Full | Window)
        if rank and isinstance(mixer, Full):
            mixer = Latent(rank, rotated)
        layers.append(
            LayerSpec(
                index=i,
                mixer=mixer,
                q_heads=(q_heads[i] if q_heads else kv_heads[i]) if owns else 0,
                kv_heads=kv_heads[i] if owns else 0,
                key_dim=key if owns else 0,
                value_dim=value if owns else 0,
            )
        )
    assert len(layers) == n and attending <= n
    return ModelSpec(
        architecture=log.word("arch") or "gguf",
        hidden=log.count("n_embd") or 0,
        layers=tuple(layers),
        vocab=log.count("n_vocab") or 0,
        context_tokens=log.count("n_ctx_train") or 0,
        name=log.word("general.name"),
        shape_only=True,
        notes=("read from the log: only sizes of the cache are known",),
    )


def _per_layer(log: EngineLog, name: str, n: int) -> list[int]:
    """One count per layer: printed as one number, or as a list where layers differ."""
    numbers = [int(x) for x in re.findall(r"\d{1,6}", log.word(name))]
    if len(numbers) == 1:
        return numbers * n
    return numbers[:n] if len(numbers) >= n else []


def _header(log: EngineLog, key: str) -> int:
    """A whole number of the GGUF header below the architecture's name."""
    value = log.metadata.get(f"{log.metadata.get('general.architecture', '')}.{key}")
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _mixers(log: EngineLog, n: int, kv_heads: list[int]) -> list[Mixer]:
    """What each layer keeps, by the counts that cache lines print."""
    windowed, plain = log.last("kv_layers", "windowed layers"), log.last("kv_layers", "")
    n_window = int(windowed.value) if windowed else 0
    size = log.count("n_swa") or 0
    state = _state(log)
    n_state = n - int(plain.value) if plain and plain.value <= n and all(kv_heads) else 0
    out: list[Mixer] = []
    for i, heads in enumerate(kv_heads):
        if not heads:
            out.append(state if state else NoMixer())
        elif state and n_state and _nth(i, n, n_state):
            out.append(state)
        elif size and n_window and _nth(i, n, n_window):
            out.append(Window(size))
        else:
            out.append(Full())
    return out


def _nth(i: int, n: int, marked: int) -> bool:
    """Spread ``marked`` of ``n`` evenly: True for layer ``i`` when it is one of them."""
    return (i + 1) * marked // n > i * marked // n


def _state(log: EngineLog) -> Recurrent | None:
    """Recurrent state of one layer: ``inner x state`` and ``(kernel - 1) x (inner + 2 x groups x state)`` elements."""
    inner, size = _header(log, "ssm.inner_size"), _header(log, "ssm.state_size")
    kernel, groups = _header(log, "ssm.conv_kernel"), _header(log, "ssm.group_count")
    if not (inner and size and kernel):
        return None
    return Recurrent("state", inner * size, (kernel - 1) * (inner + 2 * groups * size))

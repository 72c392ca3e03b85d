"""The file of a calibration: safetensors, with the model's digest, the tokens seen and a digest of it all as metadata.

A reader computes the digest again: a file that is damaged, of another model, or that does not fit the layers is
refused, never used in part.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load as read_tensors
from safetensors.torch import save as to_bytes

from kvist.errors import BadValue, CorruptFile, UsageError
from kvist.kernels.codec.calibration import MEANS, REMEDY, SCALES, Calibration, LayerStatistics

FORMAT: Final = "kvist.calibration.1"


def save(calibration: Calibration, path: str | Path) -> None:
    """Write aside, then rename: ``path`` holds the old file or the new one, whole. Raises ``UsageError``."""
    metadata = {
        "format": FORMAT,
        "model": calibration.model.hex(),
        "tokens": str(calibration.tokens),
        "digest": calibration.digest.hex(),
    }
    try:
        _replace(Path(path), to_bytes(calibration.tensors(), metadata))
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}", remedy="check the path") from error


def load(path: str | Path, *, model: bytes, shapes: Mapping[int, tuple[int, int]]) -> Calibration:
    """What :func:`save` wrote, for the model with digest ``model``.

    ``shapes``: (heads, key dim) of every layer that owns keys. Raises ``CorruptFile`` for a file that cannot be read,
    is damaged, of another model, lacks a layer or has one too many, or holds what is no number, no scale or of another
    shape; the message names layer and value.
    """
    tensors, metadata = _read(Path(path))
    if metadata.get("format") != FORMAT:
        raise CorruptFile(f"{path} is no calibration: format {metadata.get('format')!r}, not {FORMAT!r}", remedy=REMEDY)
    if metadata.get("model") != model.hex():
        other = str(metadata.get("model"))[:16]
        raise CorruptFile(f"{path} was made for model {other}..., not {model.hex()[:16]}...", remedy=REMEDY)
    try:
        _check_names(set(tensors), shapes)
        layers = {index: _layer(tensors, index, shape) for index, shape in shapes.items()}
        found = Calibration(model, _tokens(metadata), layers)
    except BadValue as error:
        raise CorruptFile(f"{path}: {error.what}", remedy=REMEDY) from error
    if metadata.get("digest") != found.digest.hex():
        raise CorruptFile(f"{path} is damaged: its digest is not that of what it holds", remedy=REMEDY)
    return found


def _read(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    try:
        data = path.read_bytes()
        tensors = read_tensors(data)
    except OSError as error:
        raise CorruptFile(f"{path} cannot be read: {error.strerror}", remedy="check the path") from error
    except (SafetensorError, KeyError, ValueError) as error:
        raise CorruptFile(f"{path} is damaged or no calibration: {error}", remedy=REMEDY) from error
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return tensors, header.get("__metadata__") or {}


def _check_names(found: set[str], shapes: Mapping[int, tuple[int, int]]) -> None:
    expected = {f"{index}.{name}" for index in shapes for name in (*MEANS, *SCALES)}
    for name in sorted(expected - found):
        index, _, what = name.partition(".")
        raise BadValue(f"layer {index} {what}", None, f"statistics of {len(shapes)} layers")
    for name in sorted(found - expected):
        raise BadValue("layer", name, f"those of layers {', '.join(map(str, sorted(shapes)))}")


def _layer(tensors: Mapping[str, torch.Tensor], index: int, shape: tuple[int, int]) -> LayerStatistics:
    for name, wanted in (*((name, shape) for name in MEANS), *((name, (1,)) for name in SCALES)):
        tensor = tensors[f"{index}.{name}"]
        if tensor.dtype != torch.float32 or tensor.shape != wanted:
            raise BadValue(f"layer {index} {name}", f"{tensor.dtype} {list(tensor.shape)}", f"float32 {list(wanted)}")
    mean, pre_rope_mean = (tensors[f"{index}.{name}"] for name in MEANS)
    k_scale, v_scale = (float(tensors[f"{index}.{name}"]) for name in SCALES)
    return LayerStatistics(mean, pre_rope_mean, k_scale, v_scale)


def _tokens(metadata: Mapping[str, Any]) -> int:
    text = str(metadata.get("tokens"))
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise BadValue("tokens", text, "a whole number")
    return int(text)


def _replace(path: Path, data: bytes) -> None:
    aside = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    try:
        with aside.open("xb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        aside.replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            aside.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)

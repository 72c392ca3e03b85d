"""The root of every block key: whatever changes what a block's bytes mean changes it, and nothing else does (F017)."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from kvist.config import CacheConfig, EngineConfig, SchedConfig  # noqa: E402
from kvist.runtime.build import BuildOptions, _fingerprint  # noqa: E402
from kvist.spec.format import KVFormat  # noqa: E402
from kvist.spec.layer import Attention, Full, LayerSpec, Window  # noqa: E402
from kvist.spec.layout import plan_layout  # noqa: E402
from kvist.spec.model import ModelSpec  # noqa: E402
from kvist.spec.rope import Rope  # noqa: E402


class Words:
    """As much of a tokenizer as is asked for."""

    def __init__(self, digest=b"words" * 3 + b"1"):
        self.digest = lambda: digest


def spec_of(rope=Rope(8, 1e4), mixer=Full(), **attention):  # noqa: B008
    how = Attention(rope=rope, **attention)
    return ModelSpec("tiny", 32, tuple(LayerSpec(i, mixer, 4, 2, 8, 8, attention=how) for i in range(2)), 100, 256)


def fingerprint(path, spec=None, words=None, fmt="f16", block_tokens=32, **options):
    spec = spec or spec_of()
    cache = CacheConfig(format=fmt, block_tokens=block_tokens)
    layout = plan_layout(spec, KVFormat.parse(fmt), block_tokens=block_tokens)
    options.setdefault("engine", EngineConfig(cache))
    return _fingerprint(path, spec, layout, words or Words(), BuildOptions(**options))


@pytest.fixture
def weights(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(bytes(range(256)) * 40)
    return path


CHANGES = {
    "tokenizer": {"words": Words(b"words" * 3 + b"2")},
    "rope base": {"spec": spec_of(Rope(8, 1e5))},
    "rope kind": {"spec": spec_of(Rope(8, 1e4, "linear", 2.0))},
    "window": {"spec": spec_of(mixer=Window(64))},
    "format": {"fmt": "f32"},
    "format of v": {"fmt": "f16/f32"},
    "block size": {"block_tokens": 64},
    "dtype": {"dtype": "bf16"},
    "numerics": {"numerics": "invariant"},
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_changes_the_bytes_changes_the_fingerprint(weights, name):
    assert fingerprint(weights, **CHANGES[name]) != fingerprint(weights)


def test_no_two_of_the_changes_give_the_same(weights):
    assert len({fingerprint(weights, **c) for c in ({}, *CHANGES.values())}) == len(CHANGES) + 1


@pytest.mark.parametrize("at", [0, 5000, -1])
def test_one_bit_of_the_weights_changes_the_fingerprint(weights, at):
    before = fingerprint(weights)
    raw = bytearray(weights.read_bytes())
    raw[at] ^= 1
    weights.write_bytes(raw)
    assert fingerprint(weights) != before


def test_a_folder_counts_every_weights_file(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.safetensors").write_bytes(name.encode() * 100)
    before = fingerprint(tmp_path)
    (tmp_path / "b.safetensors").write_bytes(b"c" * 100)
    assert fingerprint(tmp_path) != before


BESIDE = {
    "norm": {"norm_eps": 1e-3},
    "embedding": {"embedding_scale": 5.0},
    "scale": {"layers": spec_of(scale=0.5).layers},
    "softcap": {"layers": spec_of(softcap=30.0).layers},
}


@pytest.mark.parametrize("name", BESIDE)
def test_what_the_config_says_beside_the_weights_counts_too(tmp_path, name):
    """A folder's numbers are in config.json, which is no weights file: the second layer's K depends on all of these."""
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    assert fingerprint(tmp_path, spec=replace(spec_of(), **BESIDE[name])) != fingerprint(tmp_path)


def test_what_does_not_change_the_bytes_does_not_change_the_fingerprint(weights, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    moved = tmp_path / "elsewhere" / "other name.gguf"
    moved.write_bytes(weights.read_bytes())
    assert fingerprint(moved) == fingerprint(weights)
    engine = EngineConfig(CacheConfig(blocks=7), SchedConfig(token_budget=9))
    assert fingerprint(weights, engine=engine, threads=2, poison=True) == fingerprint(weights)


def test_two_processes_agree(weights):
    """Whatever their hash seeds."""
    for seed in ("1", "random"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, Path(__file__), weights], capture_output=True, text=True, env=env, timeout=120
        )
        assert done.stdout.strip() == fingerprint(weights).hex(), done.stderr


if __name__ == "__main__":
    print(fingerprint(Path(sys.argv[1])).hex())

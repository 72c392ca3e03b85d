"""Digests tell weights apart; descriptors of variants are complete and found by name."""

import hashlib

import pytest
from gguf_maker import KEYS, blocks, build

from kvist.errors import BadValue, CorruptFile
from kvist.spec.digest import DIGEST_BYTES, weights_digest
from kvist.spec.shelves import VARIANTS, variant


def test_every_byte_counts(tmp_path):
    data = build("llama", KEYS, blocks())
    path = tmp_path / "a.gguf"
    path.write_bytes(data)
    digest = weights_digest(path)
    assert len(digest) == DIGEST_BYTES and weights_digest(path) == digest
    for at in (5, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert weights_digest(path) != digest


def test_a_file_may_be_renamed_and_a_folder_moved(tmp_path):
    (tmp_path / "a.gguf").write_bytes(b"weights")
    (tmp_path / "b.gguf").write_bytes(b"weights")
    assert weights_digest(tmp_path / "a.gguf") == weights_digest(tmp_path / "b.gguf")
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "model-1.safetensors").write_bytes(b"x")
        (folder / "model-2.safetensors").write_bytes(b"y")
        (folder / "config.json").write_text(name)
    assert weights_digest(tmp_path / "one") == weights_digest(tmp_path / "two")
    (tmp_path / "two" / "model-2.safetensors").rename(tmp_path / "two" / "model-0.safetensors")
    assert weights_digest(tmp_path / "one") != weights_digest(tmp_path / "two")


def test_bytes_do_not_move_between_files(tmp_path):
    digests = set()
    for name, (a, b) in {"one": (b"xy", b"z"), "two": (b"x", b"yz")}.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "a.safetensors").write_bytes(a)
        (folder / "b.safetensors").write_bytes(b)
        digests.add(weights_digest(folder))
    assert len(digests) == 2


def test_nothing_to_read(tmp_path):
    with pytest.raises(CorruptFile, match="no .safetensors"):
        weights_digest(tmp_path)
    with pytest.raises(CorruptFile, match="cannot be read"):
        weights_digest(tmp_path / "none.gguf")


def test_it_is_blake2b_over_the_whole_file(tmp_path):
    (tmp_path / "a.gguf").write_bytes(b"weights" * 1000)
    inner = hashlib.blake2b(b"weights" * 1000, digest_size=32).digest()
    outer = hashlib.blake2b(b"\0" * 8 + inner, digest_size=32, person=b"kvist.weights.1").digest()
    assert weights_digest(tmp_path / "a.gguf") == outer


def test_variants():
    assert {(v.shelf, v.name) for v in VARIANTS} >= {
        ("kernels/attention", "reference"),
        ("kernels/attention", "native"),
        ("cache/evict", "lru"),
        ("sched/order", "fcfs"),
        ("kernels/codec", "f16"),
    }
    assert len({(v.shelf, v.name) for v in VARIANTS}) == len(VARIANTS)
    assert all(v.summary for v in VARIANTS)
    assert variant("cache/evict", "lru").needs == ()
    with pytest.raises(BadValue, match="one of fcfs"):
        variant("sched/order", "lifo")

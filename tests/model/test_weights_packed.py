"""Packed weights from files: what a file's integers say is what lies in memory, whatever merges or reorders rows."""

import os
import subprocess
import sys

import gguf
import numpy as np
import pytest
import torch
import transformers
from gguf import GGMLQuantizationType as Kind
from gguf_copy import metadata, tensors_of, write

from kvist.errors import BadValue, CorruptFile, ModelError
from kvist.kernels.matrix import Matrix
from kvist.kernels.packing import quantise_w8
from kvist.model import gguf_packed
from kvist.model.names import HalfOrder, Piece, Want
from kvist.model.reading import Reader
from kvist.model.weights import load_weights
from kvist.model.weights_gguf import GgufSource
from kvist.planner.weights.facts import weights_at
from kvist.runtime.packaged import packaged_model
from kvist.spec.hf import read_config
from kvist.spec.read import read_spec
from kvist.spec.weight_kinds import loaded_kinds, matrix_kind

RNG = np.random.default_rng(0)
SIZES = {kind.name: size for kind, size in gguf.GGML_QUANT_SIZES.items()}


def blocks(kind: str, rows: int, columns: int) -> np.ndarray:
    """Random bytes of a type with sane scales: every bit pattern of the integers comes up."""
    elements, size = SIZES[kind]
    raw = RNG.integers(0, 256, (rows, columns // elements, size), dtype=np.uint8)
    for at in {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q4_1": (0, 2), "Q5_1": (0, 2), "Q6_K": (208,), "Q2_K": (80, 82),
               "Q3_K": (108,)}.get(kind, (0,)):  # fmt: skip
        raw[..., at : at + 2] = RNG.normal(0, 0.01, raw.shape[:2]).astype(np.float16)[..., None].view(np.uint8)
    return raw.reshape(rows, -1)


def floats(kind: str, raw: np.ndarray) -> np.ndarray:
    return gguf.quants.dequantize(raw, Kind[kind])


def file_of(path, tensors: dict[str, tuple[str, np.ndarray]]):
    writer = gguf.GGUFWriter(path, "llama")
    for name, (kind, raw) in tensors.items():
        writer.add_tensor(name, raw, raw_dtype=Kind[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufSource(path)


def read(source, want: Want, dtype="packed") -> Matrix:
    return Reader(source, dtype, None, [want])(want)


def one(source, rows: int, columns: int, dtype="packed", half=None) -> Matrix:
    return read(source, Want("o", (rows, columns), (Piece("a", rows, half),)), dtype)


@pytest.mark.parametrize("rows", [1, 16, 33, 700])
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_plain_blocks_are_kept_bit_by_bit(tmp_path, kind, rows):
    raw = blocks(kind, rows, 416)
    matrix = one(file_of(tmp_path / "m.gguf", {"a": (kind, raw)}), rows, 416)
    assert matrix.kind == ("w8" if kind == "Q8_0" else "w4")
    assert np.array_equal(matrix.dequantised().numpy(), floats(kind, raw))
    padded = -(-rows // 16) * 16
    assert matrix.bytes == padded * 13 * (34 if matrix.kind == "w8" else 20)


def test_q4_k_keeps_its_integers_and_rounds_its_scales(tmp_path):
    raw = blocks("Q4_K", 40, 768)
    matrix = one(file_of(tmp_path / "m.gguf", {"a": ("Q4_K", raw)}), 40, 768)
    want, got = floats("Q4_K", raw), matrix.dequantised().numpy()
    assert matrix.kind == "w4"
    room = np.abs(want).reshape(40, -1, 32).max(2, keepdims=True) + 0.01 * 63 * 4  # d sc q and dmin m may cancel
    assert (np.abs(got - want).reshape(40, -1, 32) <= room * 2.0**-10).all() and not np.array_equal(got, want)


@pytest.mark.parametrize("kind", ["Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"])
def test_other_types_become_eight_bits(tmp_path, kind):
    raw = blocks(kind, 40, 768)
    matrix = one(file_of(tmp_path / "m.gguf", {"a": (kind, raw)}), 40, 768)
    want = floats(kind, raw).reshape(40, -1, 32)
    got = matrix.dequantised().numpy().reshape(want.shape)
    top = np.abs(want).max(2, keepdims=True)
    assert matrix.kind == "w8"
    assert (np.abs(got - want) <= top / 127 * 0.57 + 1e-6).all()


@pytest.mark.parametrize("kind", ["F16", "BF16", "F32"])
def test_floats_stay_as_stored(tmp_path, kind):
    values = RNG.normal(size=(20, 40)).astype(np.float32)
    source = file_of(tmp_path / "m.gguf", {"a": (kind, gguf.quants.quantize(values, Kind[kind]))})
    matrix = one(source, 20, 40)
    assert matrix.kind == kind.lower()
    assert np.array_equal(matrix.dequantised().numpy(), floats(kind, gguf.quants.quantize(values, Kind[kind])))
    assert one(source, 20, 40, "int8").kind == kind.lower(), "rows of 40 have no whole groups"


def test_int8_packs_floats_from_any_file(tmp_path):
    values = RNG.normal(size=(50, 64)).astype(np.float32)
    source = file_of(tmp_path / "m.gguf", {"a": ("F32", values)})
    assert torch.equal(one(source, 50, 64, "int8").data, quantise_w8(values).data)


@pytest.mark.parametrize("kinds,merged", [
    (("Q4_K", "Q4_1", "Q4_0"), "w4"), (("Q4_K", "Q4_K", "Q6_K"), "w8"), (("Q8_0", "Q4_1", "Q8_0"), "w8"),
    (("Q4_K", "Q4_K", "F16"), "f16"), (("Q4_0", "BF16", "F16"), "f32"),
])  # fmt: skip
def test_merged_pieces_of_different_types(tmp_path, kinds, merged):
    """Pieces of 21, 600 and 5 rows: tiles straddle them. No row loses more than 1/254 of its group's largest."""
    rows = (21, 600, 5)
    raws = [gguf.quants.quantize(RNG.normal(size=(n, 512)).astype(np.float32), Kind[k])
            if k in ("F16", "BF16") else blocks(k, n, 512) for n, k in zip(rows, kinds, strict=True)]  # fmt: skip
    source = file_of(tmp_path / "m.gguf", {c: (k, raw) for c, k, raw in zip("abc", kinds, raws, strict=True)})
    want = Want("qkv", (626, 512), tuple(Piece(c, n) for c, n in zip("abc", rows, strict=True)))
    matrix = read(source, want)
    whole = np.concatenate([floats(k, raw) for k, raw in zip(kinds, raws, strict=True)]).reshape(626, -1, 32)
    assert matrix.kind == merged
    off = np.abs(matrix.dequantised().numpy().reshape(whole.shape) - whole)
    top = np.abs(whole).max(2, keepdims=True)
    assert (off <= top / 127 * 0.57 + 0.01 * 63 * 4 * 2.0**-10).all()


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "Q6_K"])
def test_rows_are_reordered_before_they_are_tiled(tmp_path, kind):
    """Neighbouring pairs to halves in 600 heads' worth of rows, in pieces that end within heads."""
    half, raw = HalfOrder(20, 60, 20, 40), blocks(kind, 1200, 512)
    matrix = one(file_of(tmp_path / "m.gguf", {"a": (kind, raw)}), 1200, 512, half=half)
    order = np.concatenate([h * 60 + np.r_[0:20, 20:60:2, 21:60:2] for h in range(20)])
    plain = one(file_of(tmp_path / "n.gguf", {"a": (kind, raw[order])}), 1200, 512)
    assert torch.equal(matrix.data, plain.data)


@pytest.mark.parametrize("kind,at", [("Q4_0", 0), ("Q4_1", 0), ("Q4_1", 2), ("Q4_K", 0), ("Q4_K", 2), ("Q8_0", 0),
                                     ("Q6_K", 208), ("Q5_0", 0)])  # fmt: skip
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_scales_that_are_no_numbers_are_refused_by_name(tmp_path, kind, at, value):
    raw = blocks(kind, 40, 512)
    raw[37, SIZES[kind][1] + at :][:2] = np.array([value], np.float16).view(np.uint8)
    with pytest.raises(CorruptFile, match=rf"tensor a \({kind}\) cannot be packed.*finite"):
        one(file_of(tmp_path / "m.gguf", {"a": (kind, raw)}), 40, 512)


def test_a_minimum_that_f16_cannot_hold_is_refused(tmp_path):
    raw = blocks("Q4_0", 16, 32)
    raw[3, :2] = np.array([9000], np.float16).view(np.uint8)
    with pytest.raises(CorruptFile, match="tensor a"):
        one(file_of(tmp_path / "m.gguf", {"a": ("Q4_0", raw)}), 16, 32)


def test_a_file_that_shrinks_is_noticed(tmp_path):
    source = file_of(tmp_path / "m.gguf", {"a": ("Q8_0", blocks("Q8_0", 64, 512))})
    os.truncate(tmp_path / "m.gguf", os.path.getsize(tmp_path / "m.gguf") - 3000)
    with pytest.raises(CorruptFile, match="shorter"):
        one(source, 64, 512)


def test_integers_are_no_weights(tmp_path):
    source = file_of(tmp_path / "m.gguf", {"a": ("I32", RNG.integers(0, 9, (16, 32)).astype(np.int32))})
    with pytest.raises(ModelError, match="a is stored as I32"):
        one(source, 16, 32)


def test_which_kind():
    assert matrix_kind(["Q4_K"], 512, "packed", plain=True) == "bf16"
    assert matrix_kind(["F16"], 512, "int8", plain=True) == "f16"
    assert matrix_kind(["Q4_K"], 512, "int8") == "w8" and matrix_kind(["Q4_K"], 512, "f32") == "f32"
    assert set(gguf_packed.DIRECT) == {("w4", "Q4_0"), ("w4", "Q4_1"), ("w4", "Q4_K"), ("w8", "Q8_0")}


def test_the_packaged_model_takes_what_its_file_takes():
    """Every tensor keeps its bits, so the weights weigh what the file's tensors weigh; the planner knows it before."""
    path = packaged_model()
    spec = read_spec(path)
    packed, wide = load_weights(path, spec, dtype="packed"), load_weights(path, spec)
    assert list(packed.kind_bytes) == ["w4", "w8", "f32"]
    assert packed.total_bytes <= 1.05 * spec.weight_bytes
    facts = weights_at(path, spec).as_loaded()
    assert facts.kinds == packed.kind_bytes and facts.total_bytes == packed.total_bytes
    assert packed.head is packed.embed
    for a, b in ((packed.layers[7], wide.layers[7]),):
        for slot in ("qkv", "o", "gate_up", "down"):
            assert torch.equal(getattr(a, slot).dequantised(), getattr(b, slot).data)
    ids = np.array([0, 49151, 777, 777])
    assert torch.equal(packed.embed.rows(ids), wide.embed.data[ids])
    with pytest.raises(IndexError):
        packed.embed.rows([49152])


def test_loading_holds_little_more_than_the_weights():
    code = """if True:
        import re
        from pathlib import Path
        from kvist.model import weights_gguf
        from kvist.model.weights import load_weights
        from kvist.runtime.packaged import packaged_model
        from kvist.spec.read import read_spec
        def peak():  # of this program; getrusage's would be that of the program that started it
            return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
        path = packaged_model(); spec = read_spec(path)
        before = peak()
        held = load_weights(path, spec, dtype="packed")
        print((peak() - before) / held.total_bytes)
    """
    grown = float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert 0.5 < grown < 1.35


@pytest.mark.parametrize("kind", [Kind.F32, Kind.BF16, Kind.Q4_0, Kind.Q8_0, Kind.Q5_1])
def test_the_planner_knows_a_small_model_too(tmp_path, kind):
    config = transformers.LlamaConfig(
        vocab_size=81, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=1, head_dim=20, max_position_embeddings=64, tie_word_embeddings=kind == Kind.Q8_0,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    path = tmp_path / "m.gguf"
    write(path, "llama", metadata(model, "llama"), tensors_of(model, permute=True), kind=kind)
    weights = load_weights(path, read_spec(path), dtype="packed")
    assert weights_at(path, read_spec(path)).as_loaded().kinds == weights.kind_bytes


@pytest.mark.parametrize("dtype", ["packed", "int8"])
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_folders_keep_their_type_or_become_eight_bits(tmp_path, stored, dtype):
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=81, hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, head_dim=10, max_position_embeddings=64,
    )).to(stored)  # fmt: skip
    model.save_pretrained(tmp_path)
    spec = read_config(model.config.to_dict())
    weights = load_weights(tmp_path, spec, dtype=dtype)
    layer, own = weights.layers[0], {torch.float32: "f32", torch.bfloat16: "bf16"}[stored]
    assert layer.o.kind == own, "rows of 40"
    assert layer.qkv.kind == weights.embed.kind == ("w8" if dtype == "int8" else own)
    down = model.state_dict()["model.layers.0.mlp.down_proj.weight"].float()
    room = down.abs().max() / 127 * 0.51 if dtype == "int8" else 0
    assert ((layer.down.dequantised() - down).abs() <= room).all()
    if dtype == "packed":
        assert weights_at(tmp_path, spec).as_loaded().kinds == weights.kind_bytes


def test_weights_that_are_no_numbers_are_refused_by_name(tmp_path):
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=80, hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16,
    ))  # fmt: skip
    spec = read_config(model.config.to_dict())
    model.lm_head.weight.data[3, 4] = torch.nan
    model.save_pretrained(tmp_path)
    for dtype, what in (("int8", "cannot be packed"), ("f32", "NaN or infinite"), ("bf16", "NaN or infinite")):
        with pytest.raises(CorruptFile, match=f"lm_head.weight .*{what}"):
            load_weights(tmp_path, spec, dtype=dtype)
    model.lm_head.weight.data[3, 4] = 0
    model.model.norm.weight.data[5] = torch.inf
    model.save_pretrained(tmp_path)
    with pytest.raises(CorruptFile, match="model.norm.weight has numbers that are NaN or infinite"):
        load_weights(tmp_path, spec, dtype="packed")


def test_loaded_kinds_counts_whole_tiles():
    stored = {"blk.0.attn_q.weight": ("Q4_0", (17, 64)), "blk.0.attn_k.weight": ("Q4_0", (5, 64)),
              "blk.1.attn_q.weight": ("Q8_0", (17, 64)), "n": ("F16", (7,)),
              "rope_freqs.weight": ("F32", (4,))}  # fmt: skip
    assert loaded_kinds(stored, "packed") == {"w8": 2 * 2 * 544, "w4": 2 * 2 * 320, "f32": 28}
    with pytest.raises(BadValue, match="packed"):
        load_weights("x", None, dtype="q4")

"""Weights from files: everything found and merged, or an error that names the tensor. Damaged files never crash."""

import json
import random
import shutil
import struct
from dataclasses import replace

import gguf
import numpy as np
import pytest
import torch
import transformers
from gguf import GGMLQuantizationType as Kind
from gguf_copy import metadata, tensors_of, write
from safetensors.torch import load_file, save_file
from tiny_models import make

from kvist.errors import BadValue, CorruptFile, ModelError
from kvist.model.single import SingleSequence
from kvist.model.weights import load_weights
from kvist.spec.hf import read_config
from kvist.spec.read import read_spec

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """(folder with safetensors, model, spec)."""
    model = make("llama")
    folder = tmp_path_factory.mktemp("llama")
    model.save_pretrained(folder)
    return folder, model, read_config(model.config.to_dict())


@pytest.fixture(scope="module")
def llama_gguf(tmp_path_factory, llama):
    path = tmp_path_factory.mktemp("gguf") / "llama.gguf"
    write(path, "llama", metadata(llama[1], "llama"), tensors_of(llama[1], permute=True))
    return path


def rewritten(folder, target, change):
    """A copy of the model whose tensors went through ``change``."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, target / "model.safetensors")
    return target


def same(a, b):
    pairs = [(getattr(a, n), getattr(b, n)) for n in ("embed", "final_norm", "head")]
    for one, other in zip(a.layers, b.layers, strict=True):
        pairs += [(getattr(one, n), getattr(other, n)) for n in type(one).__dataclass_fields__]
    return all(_same(x, y) for x, y in pairs)


def _same(x, y):
    if isinstance(x, tuple):
        return len(x) == len(y) and all(map(_same, x, y))
    return (x is None and y is None) or torch.equal(x.data, y.data)


def test_merged_tensors_hold_the_parts_in_order(llama):
    folder, model, spec = llama
    weights = load_weights(folder, spec)
    state = model.state_dict()
    for i, layer in enumerate(weights.layers):
        at = f"model.layers.{i}."
        qkv = torch.cat([state[f"{at}self_attn.{p}_proj.weight"] for p in "qkv"])
        gate_up = torch.cat([state[f"{at}mlp.{p}_proj.weight"] for p in ("gate", "up")])
        assert torch.equal(layer.qkv.data, qkv) and torch.equal(layer.gate_up.data, gate_up)
        assert torch.equal(layer.down.data, state[f"{at}mlp.down_proj.weight"])
        assert layer.qkv_bias is None and layer.q_norm is None and layer.w_uk == ()
    assert torch.equal(weights.head.data, state["lm_head.weight"]) and weights.ignored == ()
    assert weights.total_bytes == sum(p.numel() * 4 for p in model.parameters())


def test_bf16_keeps_norms_and_biases_wide(tmp_path):
    model = make("qwen2-tied")
    model.save_pretrained(tmp_path)
    spec = read_config(model.config.to_dict())
    wide, narrow = load_weights(tmp_path, spec), load_weights(tmp_path, spec, dtype="bf16")
    layer = narrow.layers[0]
    assert layer.qkv.kind == layer.down.kind == narrow.embed.kind == "bf16"
    assert layer.attn_norm.dtype == layer.qkv_bias.dtype == torch.float32
    assert torch.equal(layer.qkv.data, wide.layers[0].qkv.data.bfloat16())
    assert narrow.head is narrow.embed, "a tied head is the embedding"
    with pytest.raises(BadValue, match="packed, int8, f32, bf16"):
        load_weights(tmp_path, spec, dtype="f16")


def test_gemma_norms_have_their_one_added(tmp_path):
    model = make("gemma3")
    model.save_pretrained(tmp_path)
    weights = load_weights(tmp_path, read_config(model.config.to_dict()))
    stored = model.state_dict()
    assert torch.equal(weights.final_norm, 1 + stored["model.norm.weight"])
    assert torch.equal(weights.layers[1].k_norm, 1 + stored["model.layers.1.self_attn.k_norm.weight"])


def test_shards_are_one_model(tmp_path, llama):
    folder, model, spec = llama
    model.save_pretrained(tmp_path, max_shard_size="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 3
    assert same(load_weights(tmp_path, spec), load_weights(folder, spec))
    shard = sorted(tmp_path.glob("*.safetensors"))[1]
    shard.rename(tmp_path / "elsewhere.bin")
    with pytest.raises(CorruptFile, match=rf"lists {shard.name} \(\d+ tensors\), which is missing"):
        load_weights(tmp_path, spec)


@pytest.mark.parametrize(
    "index,words",
    [
        ("{", "not an index"),
        ('{"weight_map": [1]}', "not an index"),
        ('{"weight_map": {"a": "../a.safetensors"}}', "not a file of its folder"),
        ('{"weight_map": {"a": 3}}', "not a file of its folder"),
    ],
)
def test_a_damaged_index_is_refused(tmp_path, llama, index, words):
    shutil.copy(llama[0] / "model.safetensors", tmp_path / "model-1.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(CorruptFile, match=words):
        load_weights(tmp_path, llama[2])


def test_an_index_that_promises_too_much(tmp_path, llama):
    shutil.copy(llama[0] / "model.safetensors", tmp_path / "m.safetensors")
    names = [*load_file(llama[0] / "model.safetensors"), "model.more.weight"]
    places = {"weight_map": dict.fromkeys(names, "m.safetensors")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(places))
    with pytest.raises(CorruptFile, match=r"promises tensor model.more.weight in m.safetensors"):
        load_weights(tmp_path, llama[2])


K_PROJ = "model.layers.1.self_attn.k_proj.weight"


@pytest.mark.parametrize(
    "change,error,words",
    [
        (lambda t: t.pop(K_PROJ), CorruptFile, rf"lack tensor {K_PROJ} \(60 rows\)"),
        (lambda t: t.pop("lm_head.weight"), CorruptFile, "lack tensor lm_head.weight"),
        (lambda t: t.pop("model.norm.weight"), CorruptFile, "lack tensor model.norm.weight"),
        (lambda t: t.update({K_PROJ: torch.zeros(48, 60)}), CorruptFile, r"\[48, 60\], expected \[60, 48\]"),
        (lambda t: t.update({"model.norm.weight": torch.zeros(49)}), CorruptFile, r"norm.weight has shape \[49\]"),
        (lambda t: t.update({K_PROJ[:-6] + "bias": torch.zeros(60)}), ModelError, r"\(1\): \S+k_proj.bias \[60\]"),
        (lambda t: t.update({"model.layers.0.x": torch.zeros(1)}), ModelError, r"without a place in a llama"),
        (lambda t: t.update({K_PROJ: torch.zeros(60, 48, dtype=torch.float8_e4m3fn)}), ModelError, "stored as F8_E4M3"),
    ],
)
def test_what_is_missing_strange_or_misshapen_is_named(tmp_path, llama, change, error, words):
    rewritten(llama[0], tmp_path, change)
    with pytest.raises(error, match=words):
        load_weights(tmp_path, llama[2])


def test_what_a_text_decoder_may_ignore_is_listed(tmp_path, llama):
    further = ["model.layers.3.eh_proj.weight", "model.layers.3.mlp.x.weight"]  # a layer that predicts one token more
    extra = ["model.layers.0.self_attn.rotary_emb.inv_freq", "vision_tower.x.weight", *further]
    rewritten(llama[0], tmp_path, lambda t: t.update({name: torch.zeros(3) for name in extra}))
    weights = load_weights(tmp_path, llama[2])
    assert weights.ignored == tuple(sorted(extra))
    assert same(weights, load_weights(llama[0], llama[2]))


def test_names_may_stand_inside_a_bigger_model(tmp_path, llama):
    def move(tensors):
        for name in list(tensors):
            tensors["language_model." + name] = tensors.pop(name)

    rewritten(llama[0], tmp_path, move)
    assert same(load_weights(tmp_path, llama[2]), load_weights(llama[0], llama[2]))


def test_half_precision_files_are_widened(tmp_path, llama):
    folder, _, spec = llama
    rewritten(folder, tmp_path, lambda t: t.update({n: v.half() for n, v in t.items()}))
    weights = load_weights(tmp_path, spec)
    assert weights.layers[0].qkv.kind == "f32"
    assert torch.equal(weights.layers[0].qkv.data, load_weights(folder, spec).layers[0].qkv.data.half().float())


def test_progress_counts_stored_bytes(llama, llama_gguf):
    for path, spec in ((llama[0], llama[2]), (llama_gguf, read_spec(llama_gguf))):
        seen = []
        load_weights(path, spec, on_tensor=lambda done, total, seen=seen: seen.append((done, total)))
        done, totals = zip(*seen, strict=True)
        assert list(done) == sorted(set(done)) and set(totals) == {done[-1]}
        assert len(seen) == 3 + 3 * 9 and done[-1] == sum(p.numel() * 4 for p in llama[1].parameters())


def test_gguf_holds_the_same_model(llama, llama_gguf):
    """Rows of Q and K come back from neighbouring pairs into half order, bit by bit."""
    spec = read_spec(llama_gguf)
    assert spec.layers[0].attention.rope.interleaved
    assert same(load_weights(llama_gguf, spec), load_weights(llama[0], llama[2]))
    plain = replace(spec, layers=tuple(_not_interleaved(layer) for layer in spec.layers))
    assert not same(load_weights(llama_gguf, plain), load_weights(llama[0], llama[2])), "the permutation acts"


def _not_interleaved(layer):
    return replace(layer, attention=replace(layer.attention, rope=replace(layer.attention.rope, interleaved=False)))


QUANTISED = [Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0]


@pytest.mark.parametrize("kind", QUANTISED, ids=lambda k: k.name)
def test_gguf_types_are_converted(tmp_path, kind):
    """Widths of 64, so that every matrix is really stored in the type."""
    config = transformers.LlamaConfig(
        vocab_size=80, hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=64, tie_word_embeddings=True,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    tensors = tensors_of(model, permute=True)
    write(tmp_path / "m.gguf", "llama", metadata(model, "llama"), tensors, kind=kind)
    weights = load_weights(tmp_path / "m.gguf", read_spec(tmp_path / "m.gguf"))
    down = tensors["blk.0.ffn_down.weight"]
    expected = gguf.quants.dequantize(gguf.quants.quantize(down, kind), kind)
    assert np.array_equal(weights.layers[0].down.data.numpy(), expected)
    assert not np.array_equal(expected, down)
    assert weights.head is weights.embed


@pytest.mark.parametrize("split", [False, True], ids=["kv_b", "k_b and v_b"])
def test_gguf_of_a_latent_model(tmp_path, split):
    """Both ways of storing the up-projection, rotated rows as neighbouring pairs."""
    model = make("deepseek-v3")
    model.save_pretrained(tmp_path / "hf")
    spec = read_config(model.config.to_dict())
    tensors = tensors_of(model, permute=False)
    if split:
        for i in range(len(spec.layers)):
            kv_b = tensors.pop(f"blk.{i}.attn_kv_b.weight").reshape(4, 12 + 10, 24)
            tensors[f"blk.{i}.attn_k_b.weight"] = np.ascontiguousarray(kv_b[:, :12].swapaxes(1, 2))
            tensors[f"blk.{i}.attn_v_b.weight"] = np.ascontiguousarray(kv_b[:, 12:])
    write(tmp_path / "m.gguf", "deepseek2", {}, tensors)
    weights = load_weights(tmp_path / "m.gguf", spec)
    assert same(weights, load_weights(tmp_path / "hf", spec))
    latent = weights.layers[0]
    state = model.state_dict()["model.layers.0.self_attn.kv_b_proj.weight"].view(4, 22, 24)
    assert torch.equal(latent.w_uk[2].data, state[2, :12].T) and torch.equal(latent.w_uv[3].data, state[3, 12:])


def test_a_type_that_cannot_be_converted_is_named(tmp_path, llama_gguf):
    data = bytearray(llama_gguf.read_bytes())
    name = b"blk.1.ffn_up.weight"
    at = data.index(name) + len(name) + 4 + 2 * 8
    assert struct.unpack_from("<I", data, at) == (0,)
    struct.pack_into("<I", data, at, 26)  # I32: as wide as F32
    (tmp_path / "m.gguf").write_bytes(data)
    with pytest.raises(ModelError, match=r"blk.1.ffn_up.weight is stored as I32, which cannot be converted"):
        load_weights(tmp_path / "m.gguf", read_spec(llama_gguf))


@pytest.mark.parametrize("what", ["safetensors", "gguf"])
@pytest.mark.parametrize("keep", [0, 5, 100, 3000, 30_000, -100, -1])
def test_a_truncated_file_is_refused_with_numbers(tmp_path, llama, llama_gguf, what, keep):
    source = llama[0] / "model.safetensors" if what == "safetensors" else llama_gguf
    spec = llama[2] if what == "safetensors" else read_spec(llama_gguf)
    data = source.read_bytes()
    path = tmp_path / f"m.{what}"
    path.write_bytes(data[:keep])
    with pytest.raises(CorruptFile, match=r"\d|empty"):
        load_weights(path, spec)
    path.write_bytes(data)
    load_weights(path, spec)


@pytest.mark.parametrize("what", ["safetensors", "gguf"])
def test_damaged_headers_never_crash(tmp_path, llama, llama_gguf, what):
    """Random bytes of the header are changed: the model loads (with its shapes intact) or a ModelError says why."""
    source = llama[0] / "model.safetensors" if what == "safetensors" else llama_gguf
    spec = llama[2] if what == "safetensors" else read_spec(llama_gguf)
    data, draw = source.read_bytes(), random.Random(1)
    header = 8 + struct.unpack("<Q", data[:8])[0] if what == "safetensors" else data.index(b"output_norm") + 400
    path, refused = tmp_path / f"m.{what}", 0
    for _ in range(150):
        damaged = bytearray(data)
        for _ in range(draw.choice([1, 1, 2, 8])):
            damaged[draw.randrange(header)] = draw.choice([0, 1, 0x22, 0x7F, 0xFF, draw.randrange(256)])
        path.write_bytes(damaged)
        try:
            assert load_weights(path, spec).embed.data.shape == (spec.vocab, spec.hidden)
        except ModelError:
            refused += 1
    assert refused > 75


@pytest.mark.parametrize(
    "names,words",
    [
        ((), "no safetensors and 0 GGUF"),
        (("a.gguf", "b.gguf"), "2 GGUF"),
        (("a.safetensors", "b.safetensors"), "2 safetensors"),
    ],
)
def test_a_folder_must_say_which_file(tmp_path, llama, names, words):
    for name in names:
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(CorruptFile, match=words):
        load_weights(tmp_path, llama[2])
    with pytest.raises(CorruptFile, match="does not exist"):
        load_weights(tmp_path / "nowhere", llama[2])


def test_a_folder_with_one_gguf_will_do(tmp_path, llama_gguf):
    shutil.copy(llama_gguf, tmp_path)
    spec = read_spec(tmp_path)
    assert SingleSequence(spec, load_weights(tmp_path, spec)).feed([1, 2], 0).shape == (2, spec.vocab)

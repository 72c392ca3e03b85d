"""What weights weigh: formats, configs' quantisation, files' headers, and the bytes that real engines printed."""

import json
import struct
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "spec"))

from gguf_maker import KEYS, build
from hypothesis import given
from hypothesis import strategies as st

from kvist.errors import BadValue, CorruptFile, ModelError
from kvist.planner.models.catalogue import spec_named
from kvist.planner.models.towers import tower_elements
from kvist.planner.weights.facts import (
    WeightFacts,
    assumed_weights,
    rank_weight_bytes,
    weight_format_of,
    weights_at,
    widths_of,
)
from kvist.planner.weights.files import folder_facts, is_draft, safetensors_spans
from kvist.planner.weights.format import PARTS, WeightFormat, bits_of
from kvist.planner.weights.module_names import names_of
from kvist.planner.weights.quantisation import unknown_method
from kvist.spec.hf import read_config, read_shape
from kvist.spec.place import Placement
from kvist.spec.weights import weight_elements
from kvist.units import GIB
from shared_configs import CONFIGS, LLAMA, config, llama, needs_shared

# --- formats ---


def test_formats_read_back_what_they_write():
    for text in ("bf16", "f32", "fp8", "mxfp4(experts)", "fp8(attention,ffn)+mxfp4(experts)", "int4-g32(experts)",
                 "nvfp4(attention:0.5,ffn,experts)", "q8_0", "f16+int4", "nf4-dq"):  # fmt: skip
        assert WeightFormat.parse(WeightFormat.parse(text).text) == WeightFormat.parse(text)
    assert WeightFormat.parse("fp8").text == "fp8"


def test_what_a_quantisation_leaves_alone():
    fp8 = WeightFormat.parse("fp8")
    assert [fp8.bits(part).low for part in PARTS] == [16, 8, 8, 8, 16]
    assert fp8.name == "fp8" and WeightFormat.parse("bf16").name == "bf16"
    assert [WeightFormat.parse("q8_0").bits(part).best for part in PARTS] == [8.5] * 5
    half = WeightFormat.parse("nvfp4(attention:0.5)")
    assert half.bits("attention").best == pytest.approx(0.5 * 16 + 0.5 * 4.5)


def test_bits_of_packed_types():
    assert bits_of("nvfp4").best == 4 + 8 / 16
    assert bits_of("mxfp4").best == 4 + 8 / 32
    assert bits_of("int4-g128").low == 4 + 16 / 128
    assert bits_of("q4_k").best == 8 * 144 / 256
    assert bits_of("fp8").best == pytest.approx(8 + 32 / 128**2, abs=1e-3)
    nf4 = 4 + 8 / 64 + 32 / (64 * 256)
    assert bits_of("nf4-dq").low == pytest.approx(nf4, abs=1e-3)


@pytest.mark.parametrize("text", ["", "fp9", "fp8(", "fp8(all)", "fp8(ffn:2)", "fp8(ffn:x)", "int4-g0", "+", "a" * 99])
def test_nonsense_formats_are_refused(text):
    with pytest.raises(BadValue, match="weights_format"):
        WeightFormat.parse(text)


@given(st.text(max_size=30))
def test_any_text_is_a_format_or_a_bad_value(text):
    try:
        WeightFormat.parse(text)
    except BadValue:
        pass


# --- configs ---

METHODS = [
    ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8"),
    ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, "int4-g128"),
    ({"quant_method": "gptq", "bits": 4, "group_size": 32}, "int4-g32"),
    ({"quant_method": "gptq", "bits": 8, "group_size": 128}, "int8"),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True}, "nf4-dq"),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "nf4"),
    ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8"),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}, "nvfp4"),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["*.self_attn*"]}, "nvfp4(ffn,experts)"),
    ({"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}, "mxfp4(ffn,experts)"),
]


@pytest.mark.parametrize("raw,text", METHODS, ids=[x[1] for x in METHODS])
def test_methods_by_name(raw, text):
    found = weight_format_of(LLAMA | {"torch_dtype": "bfloat16", "quantization_config": raw})
    assert {part: found.elements(part) for part in ("attention", "ffn", "head", "embedding")} == {
        part: WeightFormat.parse(text).elements(part) for part in ("attention", "ffn", "head", "embedding")
    }


def packed(bits, kind, size, **more):
    group = {"targets": ["Linear"], "weights": {"num_bits": bits, "type": kind, "group_size": size}, **more}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": ["lm_head"]}


@pytest.mark.parametrize(
    "raw,element",
    [(packed(8, "float", None), "fp8"), (packed(8, "int", None), "int8"), (packed(4, "int", 32), "int4-g32"),
     (packed(4, "float", 16), "nvfp4"), (packed(4, "float", 32, format="mxfp4-pack-quantized"), "mxfp4")],
)  # fmt: skip
def test_compressed_tensors(raw, element):
    assert weight_format_of(LLAMA | {"quantization_config": raw}).elements("ffn") == ((element, 1.0),)


def test_some_layers_left_alone_give_a_share():
    raw = {"quant_method": "fp8", "modules_to_not_convert": ["model.layers.0.self_attn", "model.layers.0.mlp*"]}
    found = weight_format_of(LLAMA | {"quantization_config": raw})
    assert found.elements("attention") == (("bf16", 0.25), ("fp8", 0.75))
    assert found.elements("ffn") == (("bf16", 0.25), ("fp8", 0.75))


PATTERNS = [
    ("lm_head", "3.self_attn.q_proj", False),
    ("self_attn", "3.self_attn.q_proj", True),
    ("model.layers.3.self_attn*", "3.self_attn.q_proj", True),
    ("model.layers.3.self_attn*", "13.self_attn.q_proj", False),
    ("model.layers.*.self_attn", "3.self_attn.q_proj", True),
    ("re:.*self_attn.*", "3.self_attn.q_proj", True),
    (r"re:.*mlp\.(gate|up|down)_proj.*", "3.mlp.up_proj", True),
    (r"re:.*mlp\.(gate|up|down)_proj.*", "3.mlp.experts.0.up_proj", False),
    (r"re:model\.layers\.\d+\.mlp.*", "3.mlp.up_proj", True),
    ("gate", "3.mlp.gate_proj", False),
    ("vision_tower.layers.3.mlp*", "3.mlp.up_proj", False),
    ("mtp.layers.0*", "0.mlp.up_proj", False),
]


@pytest.mark.parametrize("pattern,module,listed", PATTERNS)
def test_lists_of_modules(pattern, module, listed):
    assert names_of([pattern]).match(module) == listed


def test_an_expression_that_backtracks_is_never_run():
    start = time.perf_counter()
    assert not names_of(["re:(a+)+$", "re:(.*)*x(.*)*y", "re:(((((((a|b)|c)|d)|e)|f)|g)|h)" * 20]).match("a" * 40)
    assert time.perf_counter() - start < 1


def test_dtypes_without_quantisation():
    assert weight_format_of({"torch_dtype": "float16"}).text == "f16"
    assert weight_format_of({"dtype": "torch.float32"}).text == "f32"
    assert weight_format_of({}).text == "bf16"


def test_an_unknown_method_is_named():
    raw = LLAMA | {"quantization_config": {"quant_method": "aqlm"}}
    assert unknown_method(raw) == "aqlm" and unknown_method(LLAMA) == ""
    assert weight_format_of(raw).bits("ffn").best == pytest.approx(8, abs=0.1)


READ = {
    "deepseek-ai__DeepSeek-V3": "fp8",
    "deepseek-ai__DeepSeek-V4-Flash": "fp8(attention,ffn)+mxfp4(experts)",
    "nvidia__DeepSeek-V4-Pro-NVFP4": "fp8(attention,ffn)+nvfp4(experts)",
    "openai__gpt-oss-120b": "mxfp4(experts)",
    "moonshotai__Kimi-K2.5": "int4-g32(experts)",
    "moonshotai__Kimi-K3": "mxfp4(experts)",
    "nvidia__MiniMax-M3-NVFP4": "mxfp8(attention,ffn)+nvfp4(experts)",
    "nvidia__Gemma-4-26B-A4B-NVFP4": "nvfp4(experts)",
    "nvidia__Gemma-4-31B-IT-NVFP4": "nvfp4(ffn)",
    "nvidia__GLM-5.2-NVFP4": "nvfp4(experts)",
    "RedHatAI__Llama-4-Scout-17B-16E-Instruct-FP8-dynamic": "fp8(ffn,experts)",
    "Qwen__Qwen3-235B-A22B-FP8": "fp8",
    "meta-llama__Llama-2-7b-hf": "f16",
    "Qwen__Qwen3-32B": "bf16",
}


@needs_shared
@pytest.mark.parametrize("stem", READ)
def test_published_configs(stem):
    raw = config(stem)
    assert weight_format_of(raw, None, read_config(raw)).text == READ[stem]


@given(junk=st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=9),
                         lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=9), x, max_size=3)),
       key=st.sampled_from(["quant_method", "quant_algo", "config_groups", "ignore", "quantized_layers", "bits",
                            "modules_to_not_convert", "group_size"]))  # fmt: skip
def test_strange_quantisation_never_breaks(junk, key):
    raw = {"quant_method": "modelopt", "config_groups": {"a": {"weights": {}}}, key: junk}
    assert weight_format_of(LLAMA | {"quantization_config": raw}).bits("ffn").best > 0


# --- arithmetic ---


def test_bytes_are_elements_times_bits():
    spec = read_config(llama())
    counted = weight_elements(spec)
    assert rank_weight_bytes(spec, WeightFormat()).best == 2 * counted.total
    fp8 = rank_weight_bytes(spec, WeightFormat.parse("fp8"))
    assert fp8.low == counted.attention + counted.ffn + 2 * (counted.embedding + counted.head + counted.norms)
    assert fp8.low < fp8.best < fp8.high
    assert rank_weight_bytes(spec, WeightFormat(), beside_elements=1000).best == 2 * (counted.total + 1000)


def test_ranks_and_stages_add_up():
    spec = read_config(llama())
    whole = rank_weight_bytes(spec, WeightFormat()).best
    norms = weight_elements(spec).norms * 2
    two = rank_weight_bytes(spec, WeightFormat(), Placement(tp=2)).best
    assert 2 * two == whole + norms  # norms are on both
    stages = [rank_weight_bytes(spec, WeightFormat(), Placement(pp=2), i).best for i in (0, 1)]
    assert sum(stages) == pytest.approx(whole, rel=1e-3)
    with pytest.raises(BadValue):
        rank_weight_bytes(spec, WeightFormat(), Placement(tp=3))


def test_widths_follow_the_format():
    spec = read_config(llama())
    assert widths_of(spec, WeightFormat()).dense == 2.0
    found = widths_of(spec, WeightFormat.parse("fp8"))
    assert found.dense == pytest.approx(1.0, rel=0.01) and found.head == 2.0


def test_a_shape_has_weights_only_if_they_are_published():
    shape = read_shape({"num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 64})
    assert assumed_weights(shape, WeightFormat()).total_bytes == 0
    with pytest.raises(ModelError):
        assumed_weights(shape, WeightFormat()).on_rank(shape)
    facts = assumed_weights(shape, WeightFormat(), elements=10**9)
    assert facts.total_bytes == 2 * 10**9
    assert facts.on_rank(shape).best == 2 * 10**9
    share = facts.on_rank(shape, Placement(tp=2))
    assert share.low < share.best == 10**9 < share.high
    assert facts.packed_as(shape, WeightFormat.parse("nvfp4")).total_bytes == pytest.approx(4.5e9 / 8, rel=0.01)


def test_towers():
    tower = {"hidden_size": 8, "num_hidden_layers": 2, "intermediate_size": 16, "patch_size": 4}
    encoder = 2 * (4 * 64 + 2 * 8 * 16) + 3 * 16 * 8
    assert tower_elements({"hidden_size": 32, "vision_config": tower}) == encoder + 8 * 32
    assert tower_elements(LLAMA) == 0
    assert tower_elements({"vision_config": {"hidden_size": "x", "depth": -1}}) == 0


@needs_shared
def test_published_towers():
    """8.77 B and 4.44 B weights in all, as published, of which the decoder has 8.19 B and 4.02 B."""
    assert tower_elements(config("Qwen__Qwen3-VL-8B-Instruct")) == pytest.approx(0.576e9, rel=0.02)
    assert tower_elements(config("Qwen__Qwen3-VL-4B-Instruct")) == pytest.approx(0.415e9, rel=0.02)


PRINTED = [
    ("Qwen/Qwen3-32B", "", Placement(), 61.03, 0.01),
    ("Qwen/Qwen3-32B", "", Placement(tp=2), 30.59, 0.01),
    ("meta-llama/Meta-Llama-3-8B", "", Placement(), 14.96, 0.01),
    ("meta-llama/Llama-3.1-8B-Instruct", "", Placement(), 14.9888, 0.01),
    ("meta-llama/Llama-3.2-3B-Instruct", "", Placement(), 6.02, 0.01),
    ("Qwen/Qwen3-0.6B", "", Placement(), 1.12, 0.01),
    ("mistralai/Mistral-Small-3.2-24B-Instruct-2506", "", Placement(), 44.76, 0.01),
    ("openai/gpt-oss-120b", "", Placement(), 64.38, 0.04),
    ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "", Placement(tp=2), 33.88, 0.04),
    ("Qwen/Qwen3-8B-FP8", "", Placement(), 8.9638, 0.04),
    ("meta-llama/Llama-3.1-70B-Instruct", "int8", Placement(), 67.7229, 0.04),
    ("microsoft/phi-4", "bnb-4bit", Placement(), 8.49, 0.04),
]
"""GiB of weights that vLLM printed (../shared/cases/capacity_cases.jsonl names each log)."""


@pytest.mark.parametrize("name,fmt,place,gib,within", PRINTED)
def test_what_an_engine_printed(name, fmt, place, gib, within):
    entry = spec_named(name)
    used = WeightFormat.parse(fmt or entry.weights_format)
    found = rank_weight_bytes(entry.spec, used, place, beside_elements=entry.tower_elements)
    assert found.best / GIB == pytest.approx(gib, rel=within)


@needs_shared
def test_the_printed_numbers_are_the_cases_own():
    lines = (CONFIGS.parents[1] / "cases" / "capacity_cases.jsonl").read_text().splitlines()
    cases = [json.loads(line) for line in lines]
    printed = {case["reported"]["weights_gib"] for case in cases if "weights_gib" in case.get("reported", {})}
    assert {row[3] for row in PRINTED} <= printed


# --- files ---


def safetensors(path, tensors, kind="BF16", size=2, spoil=None):
    """A file with zeros: name -> shape."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in tensors.items():
        n = size
        for dim in shape:
            n *= dim
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + n]}
        at += n
    if spoil:
        spoil(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(at))
    return at


def test_headers_are_summed(tmp_path):
    total = safetensors(tmp_path / "model.safetensors", {"a": [3, 4], "b": [5]})
    assert {n: s.n_bytes for n, s in safetensors_spans(tmp_path / "model.safetensors").items()} == {"a": 24, "b": 10}
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    facts = weights_at(tmp_path, read_config(LLAMA))
    assert (facts.total_bytes, facts.tag) == (total, "exact")
    assert "headers" in facts.how


def test_an_index_names_the_files(tmp_path):
    index = {"metadata": {"total_size": 999}, "weight_map": {"a": "x-1.safetensors", "b": "x-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert folder_facts(tmp_path, 4).total_bytes == 999
    safetensors(tmp_path / "x-1.safetensors", {"a": [10]})
    safetensors(tmp_path / "x-2.safetensors", {"b": [10]})
    safetensors(tmp_path / "consolidated.safetensors", {"a": [1000]})
    assert folder_facts(tmp_path, 4).total_bytes == 40
    (tmp_path / "model.safetensors.index.json").unlink()
    assert folder_facts(tmp_path, 4).total_bytes == 40
    assert folder_facts(tmp_path / "nothing", 4) is None


def test_bin_files_are_measured_not_exact(tmp_path):
    (tmp_path / "pytorch_model-00001.bin").write_bytes(bytes(77))
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert weights_at(tmp_path, read_config(LLAMA)).tag == "measured"


def test_draft_layers_are_told_apart(tmp_path):
    safetensors(tmp_path / "model.safetensors", {"model.layers.3.w": [8], "model.layers.4.w": [16], "mtp.fc.w": [4]})
    found = folder_facts(tmp_path, 4)
    assert (found.total_bytes, found.draft_bytes) == (56, 40)
    assert is_draft("model.mtp.0.w", 9) and not is_draft("model.layers.8.mlp.w", 9)


def test_totals_of_files_are_shared_out():
    spec = read_config(llama())
    whole = rank_weight_bytes(spec, WeightFormat()).best
    facts = WeightFacts(round(whole * 1.1), "exact", "files")
    assert facts.on_rank(spec).best == pytest.approx(whole * 1.1)
    half = facts.on_rank(spec, Placement(tp=2))
    assert half.best == pytest.approx(1.1 * rank_weight_bytes(spec, WeightFormat(), Placement(tp=2)).best)
    assert half.tag == "exact"


SPOILT = [
    ("shape and bytes differ", lambda h: h["a"].update(shape=[99])),
    ("beyond the end", lambda h: h["a"].update(data_offsets=[0, 10**15])),
    ("backwards", lambda h: h["a"].update(data_offsets=[9, 3])),
    ("negative", lambda h: h["a"].update(data_offsets=[-3, 3])),
    ("no shape", lambda h: h["a"].pop("shape")),
    ("not an object", lambda h: h.update(a=3)),
    ("text for a shape", lambda h: h["a"].update(shape="xx")),
]


@pytest.mark.parametrize("what,spoil", SPOILT, ids=[x[0] for x in SPOILT])
def test_headers_that_contradict_themselves(tmp_path, what, spoil):
    safetensors(tmp_path / "model.safetensors", {"a": [3, 4]}, spoil=spoil)
    with pytest.raises(CorruptFile, match=r"model\.safetensors: tensor 'a'"):
        safetensors_spans(tmp_path / "model.safetensors")


@pytest.mark.parametrize("data", [b"", b"1234567", struct.pack("<Q", 1 << 62), struct.pack("<Q", 40) + b"{}",
                                  struct.pack("<Q", 2) + b"[]", struct.pack("<Q", 2) + b"{x"])  # fmt: skip
def test_truncated_files(tmp_path, data):
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(CorruptFile, match=r"model\.safetensors"):
        safetensors_spans(tmp_path / "model.safetensors")


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("junk") / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(data)) + data)
    try:
        assert isinstance(safetensors_spans(path), dict)
    except CorruptFile:
        pass


@pytest.mark.parametrize("index", ['{"weight_map": {"a": "../../etc/passwd"}}', "[]", "{", '{"weight_map": 3}',
                                   '{"weight_map": {}, "metadata": {"total_size": -1}}'])  # fmt: skip
def test_bad_indexes(tmp_path, index):
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(CorruptFile, match=r"index"):
        folder_facts(tmp_path, 4)


def test_an_index_may_not_leave_the_folder(tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "..", "b": ".hidden/../x"}}')
    with pytest.raises(CorruptFile):
        folder_facts(tmp_path, 4)


def test_a_gguf_header_gives_bytes_and_format(tmp_path):
    path = tmp_path / "tiny.gguf"
    tensors = [("token_embd.weight", (64, 64)), ("blk.0.attn_q.weight", (64, 64)), ("blk.0.ffn_up.weight", (64, 96)),
               ("blk.0.attn_norm.weight", (64,))]  # fmt: skip
    path.write_bytes(build("llama", KEYS, tensors))
    facts = weights_at(path, read_config(LLAMA))
    assert (facts.total_bytes, facts.tag) == (4 * (2 * 64 * 64 + 64 * 96 + 64), "exact")
    assert facts.format.elements("attention") == facts.format.elements("head") == (("f32", 1.0),)
    assert "header of tiny.gguf" in facts.how


def test_parts_of_a_split_gguf_are_added(tmp_path):
    for i in (1, 2):
        part = tmp_path / f"tiny-0000{i}-of-00002.gguf"
        part.write_bytes(build("llama", {**KEYS, "split.count": 2}, [(f"blk.{i}.attn_q.weight", (64, 64))]))
    first = tmp_path / "tiny-00001-of-00002.gguf"
    spec = read_config(LLAMA)
    assert weights_at(first, spec).total_bytes == 2 * 4 * 64 * 64
    part.unlink()
    alone = weights_at(first, spec)
    assert alone.tag == "measured" and "of 2" in alone.how


def test_a_step_reads_weights_as_they_were_loaded():
    """Records that are larger than what the file holds take as much longer to read."""
    from kvist.cost.catalogue import device
    from kvist.planner.ask import _widths
    from kvist.spec.read import read_spec
    from real_model import packaged

    spec = read_spec(packaged())
    facts = weights_at(packaged(), spec)
    assert facts.repacked == facts.as_loaded().repacked == 1, "4- and 8-bit types are copied"
    packed = replace(facts, kinds={"w8": 3 * facts.total_bytes}).as_loaded()
    assert packed.repacked == 3 and packed.total_bytes == 3 * facts.total_bytes
    ours, theirs = (_widths(f, spec, device("H100")) for f in (packed, facts))
    for part in ("dense", "expert", "head"):
        assert getattr(ours, part) == pytest.approx(3 * getattr(theirs, part))
    assert ours.activation == theirs.activation == 2
    assert not replace(facts, total_bytes=0).as_loaded().total_bytes

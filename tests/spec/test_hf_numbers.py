"""What a decoder computes with: scales, norms, biases, rotations, routers; both generations of key names."""

import math
import warnings

import pytest

from kvist.errors import CorruptFile, MissingField, ModelError
from kvist.spec.hf import read_config
from kvist.spec.layer import Router
from kvist.spec.rope import Rope, yarn_mscale
from shared_configs import GEMMA3, MLA, REMOVED, bent, llama


def attention(cfg, i=0):
    return read_config(cfg).layers[i].attention


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}


class TestRope:
    def test_plain(self):
        assert attention(llama(rope_theta=5e5)).rope == Rope(64, 5e5)

    def test_an_absent_base_is_said_to_be_assumed(self):
        spec = read_config(llama(rope_theta=REMOVED, rms_norm_eps=REMOVED))
        assert spec.layers[0].attention.rope == Rope(64, 10_000.0) and spec.norm_eps == 1e-6
        assert spec.notes == ("absent from the config, taken from the family: rope_theta, rms_norm_eps",)

    def test_both_generations(self):
        old = llama(rope_theta=7.0, rope_scaling={"type": "linear", "factor": 2.0})
        new = llama(rope_theta=REMOVED, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 7.0})
        nested = llama(
            rope_theta=REMOVED,
            rope_parameters={"full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 7.0}},
        )
        assert attention(old) == attention(new) == attention(nested)
        assert attention(old).rope == Rope(64, 7.0, "linear", 2.0)

    def test_llama3(self):
        scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": 512}  # fmt: skip
        rope = attention(llama(rope_scaling=scaling)).rope
        assert rope == Rope(64, 10_000.0, "llama3", 8.0, 512, 1.0, 4.0)
        frequencies, plain = rope.inverse_frequencies(), Rope(64, 10_000.0).inverse_frequencies()
        assert frequencies[0] == plain[0] and frequencies[-1] == plain[-1] / 8
        with pytest.raises(MissingField, match="low_freq_factor"):
            read_config(llama(rope_scaling=dict(scaling, low_freq_factor=None)))

    def test_equal_llama3_factors_make_a_step_without_a_warning(self):
        rope = Rope(64, 5e5, "llama3", 16.0, 8192, 1.0, 1.0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            values = rope.inverse_frequencies()
        plain = Rope(64, 5e5).inverse_frequencies()
        assert set((plain / values).round(6)) == {1.0, 16.0}

    def test_yarn(self):
        rope = attention(llama(rope_scaling=YARN)).rope
        assert (rope.kind, rope.factor, rope.original_context_tokens, rope.truncate) == ("yarn", 4.0, 512, True)
        assert rope.attention_factor == pytest.approx(0.1 * math.log(4) + 1)
        assert attention(llama(rope_scaling=YARN | {"attention_factor": 0.9})).rope.attention_factor == 0.9
        both = attention(llama(rope_scaling=YARN | {"mscale": 1.0, "mscale_all_dim": 0.5})).rope
        assert both.attention_factor == pytest.approx(yarn_mscale(4.0) / yarn_mscale(4.0, 0.5))
        assert attention(llama(rope_scaling=YARN | {"truncate": False})).rope.truncate is False
        implied = attention(llama(rope_scaling=dict(YARN, factor=None))).rope
        assert implied.factor == 2048 / 512

    @pytest.mark.parametrize("kind", ["dynamic", "longrope", "su", "brand_new"])
    def test_what_the_decoder_cannot_turn_is_named(self, kind):
        spec = read_config(llama(rope_scaling={"type": kind, "factor": 2.0}))
        name = {"su": "longrope"}.get(kind, kind)
        assert spec.layers[0].attention.rope.kind == f"unsupported:{name}"
        assert spec.unsupported == (f"rotary positions of kind {name}",)
        with pytest.raises(ModelError, match=name):
            spec.layers[0].attention.rope.inverse_frequencies()

    def test_part_of_a_head(self):
        glm = llama(model_type="glm4", head_dim=64, partial_rotary_factor=0.25, attention_bias=True)
        assert attention(glm).rope == Rope(16, 10_000.0, interleaved=True)
        assert attention(bent(glm, partial_rotary_factor=REMOVED)).rope.dim == 32
        m2 = llama(model_type="minimax_m2", head_dim=64, rotary_dim=32, num_local_experts=4, num_experts_per_tok=2)
        assert attention(m2).rope.dim == 32
        with pytest.raises(CorruptFile, match="partial_rotary_factor"):
            read_config(llama(partial_rotary_factor=1.5))

    def test_smollm3_has_layers_without(self):
        ropes = [x.attention.rope for x in read_config(llama(model_type="smollm3", rope_theta=2e6)).layers]
        assert ropes == [Rope(64, 2e6)] * 3 + [None]
        listed = read_config(llama(model_type="smollm3", no_rope_layers=[0, 1, 1, 1]))
        assert [x.attention.rope is None for x in listed.layers] == [True, False, False, False]

    def test_gemma3_has_two(self):
        old = read_config(GEMMA3 | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}})
        assert old.layers[0].attention.rope == Rope(96, 10_000.0)
        assert old.layers[5].attention.rope == Rope(96, 1e6, "linear", 8.0)
        new = bent(GEMMA3, rope_theta=REMOVED, rope_local_base_freq=REMOVED) | {
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000},
                "full_attention": {"rope_type": "linear", "rope_theta": 1_000_000, "factor": 8.0},
            }
        }
        assert read_config(new).layers == old.layers


class TestScales:
    def test_one_over_root_of_head_dim(self):
        assert attention(llama()).scale == 64**-0.5
        assert attention(llama(head_dim=100)).scale == 100**-0.5

    def test_gemma_says_its_own(self):
        assert attention(GEMMA3).scale == 168**-0.5
        assert attention(bent(GEMMA3, query_pre_attn_scalar=REMOVED)).scale == 256**-0.5

    def test_granite_multiplies(self):
        granite = llama(model_type="granite", attention_multiplier=0.25, embedding_multiplier=12.0, logits_scaling=8.0,
                        residual_multiplier=0.22)  # fmt: skip
        spec = read_config(granite)
        assert spec.layers[0].attention.scale == 0.25
        assert (spec.embedding_scale, spec.logit_scale) == (12.0, 0.125)
        assert spec.unsupported == ("residuals scaled by 0.22",)
        assert read_config(granite | {"residual_multiplier": 1.0}).unsupported == ()

    def test_mla_with_yarn_in_all_dims(self):
        assert attention(MLA).scale == 48**-0.5
        yarn = {
            "type": "yarn",
            "factor": 40,
            "original_max_position_embeddings": 512,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        }
        expected = 48**-0.5 * (0.1 * math.log(40) + 1) ** 2
        assert attention(MLA | {"rope_scaling": yarn}).scale == pytest.approx(expected)
        assert attention(MLA | {"rope_scaling": yarn}).rope.attention_factor == pytest.approx(1.0)
        assert attention(MLA | {"rope_scaling": dict(yarn, mscale_all_dim=0.707, mscale=0.707)}).scale == pytest.approx(
            48**-0.5 * (0.0707 * math.log(40) + 1) ** 2
        )
        assert attention(MLA | {"rope_scaling": dict(yarn, mscale_all_dim=None, mscale=None)}).scale == 48**-0.5

    def test_mla_projections(self):
        a = attention(MLA)
        assert (a.q_rank, a.nope_dim, a.rope.dim, a.rope.interleaved) == (96, 32, 16, True)
        assert attention(MLA | {"q_lora_rank": None}).q_rank == 0
        assert attention(MLA | {"rope_interleave": False}).rope.interleaved is False
        with pytest.raises(MissingField, match="q_lora_rank"):
            read_config(bent(MLA, q_lora_rank=REMOVED))
        layer = read_config(MLA).layers[0]
        assert (layer.q_heads, layer.kv_heads, layer.key_dim, layer.value_dim) == (8, 1, 48, 24)

    def test_caps_and_embedding(self):
        gemma2 = llama(model_type="gemma2", sliding_window=64, head_dim=64)
        spec = read_config(gemma2)
        assert (spec.layers[0].attention.softcap, spec.logit_softcap) == (50.0, 30.0)
        spec = read_config(gemma2 | {"attn_logit_softcapping": None, "final_logit_softcapping": 7.0})
        assert (spec.layers[0].attention.softcap, spec.logit_softcap) == (0.0, 7.0)
        assert spec.embedding_scale == 512**0.5 and spec.layers[0].attention.scale == 256**-0.5
        assert attention(gemma2 | {"query_pre_attn_scalar": 100}).scale == 0.1
        gemma3 = read_config(GEMMA3)
        assert (gemma3.layers[0].attention.softcap, gemma3.logit_softcap) == (0.0, 0.0)

    def test_cohere_scales_logits(self):
        spec = read_config(llama(model_type="cohere", logit_scale=0.25))
        assert (spec.logit_scale, spec.final_norm, spec.layers[0].attention.rope.interleaved) == (0.25, "layer", True)
        assert spec.unsupported


@pytest.mark.parametrize(
    "kind,qkv,out,norm,norms,offset,tied",
    [
        ("llama", False, False, "none", "pre", 0, False),
        ("qwen2", True, False, "none", "pre", 0, False),
        ("qwen3", False, False, "head", "pre", 0, False),
        ("olmo2", False, False, "full", "post", 0, False),
        ("glm4", True, False, "none", "sandwich", 0, False),
        ("phi3", False, False, "none", "pre", 0, False),
        ("smollm3", False, False, "none", "pre", 0, True),
        ("gemma", False, False, "none", "pre", 1, True),
        ("gemma2", False, False, "none", "sandwich", 1, True),
        ("gemma3_text", False, False, "head", "sandwich", 1, True),
        ("mixtral", False, False, "none", "pre", 0, False),
        ("gpt_oss", True, True, "none", "pre", 0, False),
    ],
)
def test_what_a_family_implies(kind, qkv, out, norm, norms, offset, tied):
    cfg = llama(model_type=kind, head_dim=64, sliding_window=64, tie_word_embeddings=REMOVED)
    spec = read_config(cfg | {"num_local_experts": 4, "num_experts_per_tok": 2})
    a = spec.layers[0].attention
    assert (a.qkv_bias, a.out_bias, a.qk_norm) == (qkv, out, norm)
    assert spec.layers[0].norms == norms
    assert (spec.norm_weight_offset, spec.tied_embeddings) == (offset, tied)
    said = read_config(cfg | {"num_local_experts": 4, "num_experts_per_tok": 2, "tie_word_embeddings": not tied})
    assert said.tied_embeddings is not tied


def test_biases_follow_the_config():
    a = attention(llama(attention_bias=True))
    assert a.qkv_bias and a.out_bias
    assert read_config(llama(mlp_bias=True)).layers[0].ffn.bias
    assert attention(llama(model_type="qwen3", head_dim=64, attention_bias=True)).out_bias


@pytest.mark.parametrize("name,expected", [("silu", "silu"), ("gelu_pytorch_tanh", "gelu_tanh"), ("gelu", "gelu")])
def test_activations(name, expected):
    assert read_config(llama(hidden_act=name)).layers[0].ffn.activation == expected


def test_an_unknown_activation_is_planned_and_refused():
    spec = read_config(llama(hidden_act="situ"))
    assert spec.layers[0].ffn.activation == "other" and spec.unsupported == ("activation situ",)


def test_old_gemma_files_say_gelu_and_mean_tanh():
    assert (
        read_config(llama(model_type="gemma", head_dim=64, hidden_act="gelu")).layers[0].ffn.activation == "gelu_tanh"
    )


class TestExperts:
    def test_mixtral(self):
        ffn = read_config(llama(model_type="mixtral", num_local_experts=8, num_experts_per_tok=2)).layers[0].ffn
        assert (ffn.experts, ffn.active, ffn.expert_width, ffn.width, ffn.shared_width) == (8, 2, 1024, 0, 0)
        assert ffn.router == Router("softmax", normalize=True)

    def test_qwen3_moe_mixes_dense_layers_in(self):
        cfg = llama(model_type="qwen3_moe", head_dim=64, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=96,
                    decoder_sparse_step=2, mlp_only_layers=[3], norm_topk_prob=True)  # fmt: skip
        ffns = [x.ffn for x in read_config(cfg).layers]
        assert [f.experts for f in ffns] == [0, 8, 0, 0]
        assert ffns[1].expert_width == 96 and ffns[1].router.normalize and ffns[0].width == 1024
        silent = read_config(bent(cfg, norm_topk_prob=REMOVED))
        assert silent.layers[1].ffn.router.normalize is False

    def test_deepseek_v3(self):
        ffns = [x.ffn for x in read_config(MLA).layers]
        assert [f.experts for f in ffns] == [0, 8, 8, 8]
        assert ffns[1].shared_width == 128
        assert ffns[1].router == Router(
            "sigmoid", normalize=True, scale=2.5, choice_bias=True, groups=4, top_groups=2, group_score="top2"
        )

    def test_routers_that_the_config_is_silent_about(self):
        """transformers 5 does not write ``scoring_func``: the family decides."""
        silent = bent(MLA, scoring_func=REMOVED, topk_method=REMOVED, norm_topk_prob=REMOVED, n_group=REMOVED,
                      topk_group=REMOVED, routed_scaling_factor=REMOVED)  # fmt: skip
        routers = {
            kind: read_config(silent | {"model_type": kind}).layers[1].ffn.router
            for kind in ("deepseek_v2", "deepseek_v3", "mistral4", "kimi_k2")
        }
        assert routers["deepseek_v2"] == Router("softmax", normalize=False)
        assert routers["deepseek_v3"] == Router("sigmoid", scale=2.5, choice_bias=True, group_score="top2")
        assert routers["kimi_k2"] == Router("sigmoid", choice_bias=True, group_score="top2")
        assert routers["mistral4"] == Router("softmax", group_score="top2")

    def test_deepseek_v2(self):
        v2 = MLA | {"model_type": "deepseek_v2", "scoring_func": "softmax", "norm_topk_prob": False}
        limited = read_config(v2 | {"topk_method": "group_limited_greedy"}).layers[1].ffn.router
        assert limited == Router("softmax", normalize=False, scale=2.5, groups=4, top_groups=2, group_score="max")
        assert read_config(v2 | {"topk_method": "greedy"}).layers[1].ffn.router.groups == 1

    def test_gpt_oss(self):
        cfg = llama(model_type="gpt_oss", head_dim=64, sliding_window=128, num_local_experts=8, num_experts_per_tok=2)
        layer = read_config(cfg).layers[0]
        assert layer.attention.sink_logits and layer.ffn.bias
        assert (layer.ffn.activation, layer.ffn.clamp) == ("swiglu_oai", 7.0)
        assert layer.ffn.router == Router("softmax_of_top", linear_bias=True)

    def test_more_active_than_there_are(self):
        with pytest.raises(CorruptFile, match="at most the 4 experts"):
            read_config(llama(model_type="mixtral", num_local_experts=4, num_experts_per_tok=5))


def test_decoder_families_have_nothing_unsupported():
    """The families the decoder runs must not be refused by a stray remark."""
    for kind in (
        "llama",
        "qwen2",
        "qwen3",
        "olmo2",
        "smollm3",
        "gemma2",
        "gemma3_text",
        "mixtral",
        "gpt_oss",
        "mistral",
    ):
        cfg = llama(model_type=kind, head_dim=64, sliding_window=64, num_local_experts=4, num_experts_per_tok=2)
        assert read_config(cfg).unsupported == (), kind
    assert read_config(MLA).unsupported == ()

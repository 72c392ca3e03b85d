"""Weights by part: published sizes of known models, and small sums by hand."""

import pytest
from layer_kit import uniform

from kvist.errors import ModelError
from kvist.spec.hf import read_config, read_shape
from kvist.spec.weights import weight_elements
from shared_configs import MLA, config, llama, needs_shared

PUBLISHED = {
    "meta-llama__Meta-Llama-3.1-8B": (8.03e9, 8.03e9),
    "meta-llama__Meta-Llama-3.1-405B": (405.9e9, 405.9e9),
    "Qwen__Qwen3-30B-A3B": (30.53e9, 3.35e9),
    "Qwen__Qwen3-235B-A22B": (235.1e9, 22.2e9),
    "deepseek-ai__DeepSeek-V3": (671.0e9, 37.6e9),
    "deepseek-ai__DeepSeek-V2-Lite": (15.7e9, 2.66e9),
    "openai__gpt-oss-120b": (116.8e9, 5.7e9),
    "openai__gpt-oss-20b": (20.9e9, 4.19e9),
    "mistralai__Mixtral-8x7B-v0.1": (46.7e9, 12.9e9),
    "moonshotai__Kimi-K2-Instruct": (1026e9, 32.9e9),
    "nvidia__Llama-3_3-Nemotron-Super-49B-v1": (49.9e9, 49.9e9),
    "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": (31.6e9, 3.6e9),
    "MiniMaxAI__MiniMax-M2.5": (228.7e9, 11.0e9),
    "Qwen__Qwen3.5-397B-A17B": (396.3e9, 17.4e9),
}


@needs_shared
@pytest.mark.parametrize("stem", PUBLISHED)
def test_published_sizes_within_half_a_percent(stem):
    total, active = PUBLISHED[stem]
    counted = weight_elements(read_config(config(stem)))
    assert counted.total == pytest.approx(total, rel=0.005)
    assert counted.active == pytest.approx(active, rel=0.01)


def test_smollm2():
    smollm2 = llama(num_hidden_layers=30, hidden_size=576, intermediate_size=1536, num_attention_heads=9,
                    num_key_value_heads=3, vocab_size=49152, tie_word_embeddings=True)  # fmt: skip
    counted = weight_elements(read_config(smollm2))
    assert counted.total == 134_515_008
    assert counted.embedding == 49_152 * 576 and counted.head == 0
    assert counted.attention == 30 * (576 * 576 * 2 + 576 * 192 * 2)
    assert counted.ffn == 30 * 3 * 576 * 1536
    assert counted.norms == (30 * 2 + 1) * 576
    assert counted.read_per_step == counted.total


def test_parts_add_up_and_biases_count():
    plain, biased = weight_elements(read_config(llama())), weight_elements(read_config(llama(attention_bias=True)))
    assert biased.attention - plain.attention == 4 * (512 + 2 * 128 + 512)
    assert plain.head == 1000 * 512
    assert plain.read_per_step == plain.total - plain.embedding
    mlp = weight_elements(read_config(llama(mlp_bias=True)))
    assert mlp.ffn - plain.ffn == 4 * (2 * 1024 + 512)


def test_experts():
    counted = weight_elements(read_config(MLA))
    assert counted.experts == 3 * 8 * 3 * 512 * 128
    assert counted.active_experts == 3 * 2 * 3 * 512 * 128
    assert counted.total - counted.active == counted.experts - counted.active_experts
    shared_and_router = 3 * (3 * 512 * 128 + 512 * 8 + 8)
    assert counted.ffn == 3 * 512 * 1024 + shared_and_router
    latent = 512 * 96 + 96 + 96 * 8 * 48 + 512 * 80 + 64 + 64 * 8 * (32 + 24) + 8 * 24 * 512
    assert counted.attention == 4 * latent


def test_a_shape_has_no_weights_to_count():
    with pytest.raises(ModelError, match="cannot be counted"):
        weight_elements(read_shape({"num_hidden_layers": 3, "num_key_value_heads": 1, "head_dim": 8}))
    assert weight_elements(uniform(1)).total > 0

"""Plans made by hand, for tests of what people see: no catalogue, no files."""

from kvist.cost.device import Device
from kvist.cost.interval import Interval
from kvist.cost.roofline import Roofline
from kvist.planner.plan import plan
from kvist.planner.setup import Load, Setup
from kvist.spec.format import BF16, KVFormat
from kvist.spec.hf import read_config
from kvist.spec.place import Placement
from kvist.spec.shard import rank_weights
from kvist.units import GIB

DEVICE = Device(
    "Toy 80", "nobody", "gpu", 80 * GIB, 2e12, {"bf16": 400e12, "fp8": 800e12},
    link_bytes_per_s=200e9, link="wire", host_bytes_per_s=50e9,
)  # fmt: skip
FORTY = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 40, "hidden_size": 4096,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 14336,
    "vocab_size": 32_000, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "rope_theta": 1e6,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
"""Forty layers of eight KV heads of 128: 160 KiB a token in 16 bit."""
WINDOWED = FORTY | {
    "model_type": "gemma3_text", "num_hidden_layers": 12, "head_dim": 96, "sliding_window": 512,
    "num_key_value_heads": 2,
    "query_pre_attn_scalar": 168, "rope_local_base_freq": 10_000, "hidden_activation": "gelu_pytorch_tanh",
    "num_attention_heads": 8, "hidden_size": 512, "intermediate_size": 1024,
}  # fmt: skip
"""Two layers that see everything, ten that see 512 tokens."""
LATENT = FORTY | {
    "model_type": "deepseek_v3", "num_hidden_layers": 4, "hidden_size": 512, "num_attention_heads": 8,
    "num_key_value_heads": 8, "kv_lora_rank": 64, "q_lora_rank": 96, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32,
    "v_head_dim": 24, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "intermediate_size": 1024, "moe_intermediate_size": 128, "first_k_dense_replace": 1, "scoring_func": "sigmoid",
    "n_group": 4, "topk_group": 2, "topk_method": "noaux_tc", "norm_topk_prob": True, "routed_scaling_factor": 2.5,
}  # fmt: skip
"""Four layers of one latent row of 64 + 16, experts in three of them."""


def hand_plan(
    config=None, *, context=8192, output=256, users=10, hit_rate=0.0, tp=1, pp=1, dp=1, fmt=None, engine="vllm", **setup
):
    """A plan of a config on the toy device, weights of two bytes."""
    spec = read_config(config or FORTY, name="forty")
    place = Placement(tp=tp, pp=pp, dp=dp)
    weights = tuple(Interval.exactly(2.0 * rank_weights(spec, place, i).total) for i in range(pp))
    made = Setup(
        spec,
        DEVICE,
        weights,
        Roofline(DEVICE),
        weights_how="two bytes each",
        place=place,
        kv_format=fmt or KVFormat(BF16, BF16),
        engine=engine,
        **setup,
    )
    return plan(made, Load(context, output, users, hit_rate))

"""Scenarios F098 to F103: what other planners got wrong, asked of ours and of the engine it plans for.

(F102, field names of head counts, is in tests/spec/test_hf_shape_of_the_cache.py.)
"""

from dataclasses import replace

import pytest

pytest.importorskip("torch")

from tiny_engine import ask, engine, parts, run, words  # noqa: E402

from kvist.cost.device import Device  # noqa: E402
from kvist.cost.interval import Interval  # noqa: E402
from kvist.cost.roofline import Roofline  # noqa: E402
from kvist.errors import BadValue, PoolTooSmall  # noqa: E402
from kvist.planner.engines.base import Run  # noqa: E402
from kvist.planner.engines.registry import engine as emulator  # noqa: E402
from kvist.planner.plan import plan  # noqa: E402
from kvist.planner.setup import Load, Setup  # noqa: E402
from kvist.runtime.store import Store  # noqa: E402
from kvist.spec.format import FOREIGN, KVFormat  # noqa: E402
from kvist.spec.hf import read_config  # noqa: E402
from kvist.spec.layout import plan_layout  # noqa: E402
from kvist.spec.place import Placement  # noqa: E402
from kvist.units import ceil_div  # noqa: E402

KVIST = emulator("kvist")
LLAMA = {
    "model_type": "llama", "num_hidden_layers": 4, "hidden_size": 512, "num_attention_heads": 8,
    "num_key_value_heads": 2, "intermediate_size": 1024, "vocab_size": 1000, "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
}  # fmt: skip
MLA = LLAMA | {
    "model_type": "deepseek_v3", "num_key_value_heads": 8, "kv_lora_rank": 64, "q_lora_rank": 96,
    "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 24, "n_routed_experts": 8, "num_experts_per_tok": 2,
    "n_shared_experts": 1, "moe_intermediate_size": 128, "first_k_dense_replace": 1, "scoring_func": "sigmoid",
    "n_group": 4, "topk_group": 2, "topk_method": "noaux_tc", "norm_topk_prob": True, "routed_scaling_factor": 2.5,
}  # fmt: skip


def allocated_bytes_per_token(spec, fmt):
    """What the store's tensor really has for one token, padding taken out."""
    layout = plan_layout(spec, fmt)
    pool = Store(layout, blocks=2).pool
    assert all(g.every_tokens == 1 for g in layout.groups)
    padding = sum(layout.padding_bytes_per_block(g) / g.tokens_per_block for g in layout.groups)
    return sum(pool.shape[1] / g.tokens_per_block for g in layout.groups) - padding


@pytest.mark.parametrize(
    "changes,head_dim", [({}, 64), ({"head_dim": 96}, 96), ({"head_dim": 32}, 32), ({"head_dim": None}, 64)]
)
@pytest.mark.parametrize("fmt", ["f32", "f16"])
def test_f098_bytes_per_token_are_the_allocators(changes, head_dim, fmt):
    spec, kv = read_config(LLAMA | changes), KVFormat.parse(fmt)
    assert spec.kv_bytes_per_token(kv) == 4 * 2 * 2 * head_dim * kv.k.bits // 8 == allocated_bytes_per_token(spec, kv)


def test_f098_k_and_v_of_different_width():
    base = read_config(LLAMA)
    spec = replace(base, layers=tuple(replace(x, key_dim=96, value_dim=48) for x in base.layers))
    assert spec.kv_bytes_per_token(KVFormat()) == 4 * 2 * (96 + 48) * 2 == allocated_bytes_per_token(spec, KVFormat())


Q8, Q4, FP8 = FOREIGN["q8_0"], FOREIGN["q4_0"], FOREIGN["fp8"]
KV = KVFormat.planned


@pytest.mark.parametrize("layers,kv_heads,head_dim,fmt,per_token", [
    (32, 32, 128, KV("f32"), 1_048_576), (32, 32, 128, KV("f16"), 524_288), (32, 8, 128, KV("bf16"), 131_072),
    (32, 1, 128, KV("bf16"), 16_384), (32, 8, 128, KV("fp8"), 65_536), (32, 8, 128, KV("q8_0"), 69_632),
    (32, 8, 128, KV("q4_0"), 36_864), (32, 8, 128, KV("q8_0/q4_0"), 53_248), (40, 8, 128, KV("bf16"), 163_840),
    (28, 4, 128, KV("f16"), 57_344), (18, 1, 256, KV("f16"), 18_432), (30, 3, 64, KV("f32"), 46_080),
])  # fmt: skip
@pytest.mark.parametrize("q_heads", [1, 4])
def test_f099_twelve_cases_by_hand_whatever_the_query_heads(layers, kv_heads, head_dim, fmt, per_token, q_heads):
    config = LLAMA | {
        "num_hidden_layers": layers, "num_key_value_heads": kv_heads, "num_attention_heads": kv_heads * q_heads,
        "head_dim": head_dim,
    }  # fmt: skip
    assert read_config(config).kv_bytes_per_token(fmt) == per_token


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_f100_latents_are_replicated_and_spare_heads_too(tp):
    mla, gqa = read_config(MLA), read_config(LLAMA)
    for name in ("vllm", "sglang", "kvist"):
        per_token = {
            spec.architecture: emulator(name).request_bytes(Run(spec, KV("bf16"), Placement(tp=tp)), 1024) / 1024
            for spec in (mla, gqa)
        }
        assert per_token["deepseek_v3"] == pytest.approx(4 * 80 * 2, rel=0.1), name
        assert per_token["llama"] == pytest.approx(4 * ceil_div(2, tp) * 128 * 2, rel=0.1), name


TOY = Device("toy", "kvist", "cpu", 1 << 20, 1e9, {"f32": 1e10})


def setup_for(family, pool_bytes):
    """The tiny model on a device with exactly ``pool_bytes`` for its cache."""
    spec, _ = parts(family)
    nothing = Interval.exactly(0.0)
    from kvist.planner.budget import Overheads

    return Setup(
        spec, replace(TOY, memory_bytes=pool_bytes), (nothing,), Roofline(TOY, "f32", "f32"), kv_format=KV("f16"),
        block_tokens=16, batched_tokens=64, memory_fraction=1.0, overheads=Overheads(nothing, nothing, nothing),
    )  # fmt: skip


@pytest.mark.parametrize("family", ["llama", "deepseek-v3", "gemma3"])
def test_f100_the_engine_starts_at_the_planned_length_and_not_much_beyond(family):
    blocks = 12
    eng = engine(family, format="f16", blocks=blocks)
    found = plan(setup_for(family, eng.executor.store.bytes_reserved), Load(16, 0))
    n = found.alone_tokens
    assert 16 < n < 256
    out = run(eng, [ask("one", words(n - 4), 4, ignore_eos=True)])
    assert len(out["one", 0].tokens) == 4 and out["one", 0].preemptions == 0
    more = int(n * 1.05) + 16
    if all(x.retention.window_tokens is None for x in parts(family)[0].layers):
        with pytest.raises(PoolTooSmall):
            engine(family, format="f16", blocks=blocks).add(ask("two", words(more), 4, ignore_eos=True))


def test_f101_a_window_costs_the_shorter_of_window_and_length():
    """Window 1024, requests of 128: what full attention would take. vLLM itself counts one block more for a window."""
    base = read_config(LLAMA)
    from kvist.spec.layer import Window

    wide = replace(base, layers=tuple(replace(x, mixer=Window(1024)) for x in base.layers))
    for name in ("kvist", "vllm", "llama.cpp", "sglang"):
        one, full = (emulator(name).request_bytes(Run(s, KV("f16"), batched_tokens=512), 128) for s in (wide, base))
        assert one <= full + (full // 8 if name == "vllm" else 0), name
    assert (
        KVIST.request_bytes(Run(wide, KV("f16"), batched_tokens=512), 128)
        == 4 * plan_layout(wide, KV("f16")).block_bytes
    )


def test_f103_what_is_promised_to_each_is_smaller_than_what_one_may_take():
    """Context C for each of four, a pool for less than 4 C: all finish, none is cut short."""
    blocks, users, asked = 16, 4, 90
    eng = engine("llama", format="f16", blocks=blocks)
    found = plan(setup_for("llama", eng.executor.store.bytes_reserved), Load(asked, 10, users))
    assert not found.verdict.fits and found.verdict.broken == "cache"
    assert found.longest_tokens < asked <= found.alone_tokens
    assert f"{found.users_fit[1]} users fit" in found.verdict.sentence
    out = run(eng, [ask(f"r{i}", words(asked - 10, seed=i), 10, ignore_eos=True) for i in range(users)])
    assert [len(out[f"r{i}", 0].tokens) for i in range(users)] == [10] * users
    assert {o.finish_reason for o in out.values()} == {"length"}


def test_impossible_requests_name_the_first_term_that_breaks():
    setup = setup_for("llama", 1 << 20)
    with pytest.raises(BadValue, match="own context of 256"):
        plan(setup, Load(257, 0))
    heavy = plan(replace(setup, weights=(Interval.exactly(2.0 * (1 << 20)),)), Load(16, 0))
    assert (heavy.verdict.fits, heavy.verdict.broken, heavy.verdict.short_bytes) == (False, "weights", float(1 << 20))
    assert heavy.users_fit == (0, 0, 0)

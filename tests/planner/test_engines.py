"""Engine emulators: laws that hold for any model, and each engine's own rules on numbers checked by hand."""

import pytest
from engine_kit import (
    BF16,
    ENGINES,
    F16,
    FP8,
    GIB,
    MIB,
    MODELS,
    capacity,
    chunked,
    config,
    hybrid,
    latent,
    layer,
    model,
    needs_shared,
    request_bytes,
    uniform,
    windowed,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from kvist.errors import BadValue, ModelError
from kvist.planner.engines import registry
from kvist.planner.engines.vllm_formats import vllm_format
from kvist.spec.format import KVFormat
from kvist.spec.layer import Compressed, Latent, Window
from kvist.spec.layout import plan_layout
from kvist.spec.place import Placement

GROWS = st.integers(0, 64 * GIB)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("name", ENGINES)
@settings(max_examples=15, deadline=None)
@given(a=GROWS, b=GROWS, length=st.sampled_from([None, 4096, 100_000]))
def test_more_memory_never_holds_less(name, kind, a, b, length):
    few, many = (
        capacity(name, MODELS[kind], available_bytes=x, max_model_tokens=length, sequences=2).tokens or 0
        for x in sorted((a, b))
    )
    assert few <= many


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("name", ENGINES)
@settings(max_examples=15, deadline=None)
@given(a=st.integers(1, 100_000), b=st.integers(1, 100_000))
def test_a_longer_request_never_takes_less(name, kind, a, b):
    short, long = sorted((a, b))
    assert request_bytes(name, MODELS[kind], short) <= request_bytes(name, MODELS[kind], long)


@pytest.mark.parametrize("name", ENGINES)
@settings(max_examples=20, deadline=None)
@given(available=st.integers(GIB // 2, 16 * GIB))
def test_half_the_width_holds_twice_the_tokens(name, available):
    spec = uniform()
    wide, narrow = (capacity(name, spec, available_bytes=available, kv_format=f) for f in (BF16, FP8))
    block = max(narrow.block_tokens or 1, 256)
    assert abs(narrow.tokens - 2 * wide.tokens) <= block or narrow.tokens >= spec.context_tokens


@pytest.mark.parametrize("name", [n for n in ENGINES if "llama" not in n and n not in ("ipex-llm", "kvist")])
@pytest.mark.parametrize("tp", [2, 4, 8, 16])
def test_latents_are_the_same_on_every_rank(name, tp):
    one, many = (capacity(name, latent(), available_bytes=GIB, place=Placement(tp=n)) for n in (1, tp))
    assert one.tokens == many.tokens and one.block_bytes == many.block_bytes


@pytest.mark.parametrize("name", ["kvist", "vllm", "vllm-legacy", "sglang", "tensorrt-llm"])
def test_kv_heads_are_cut_and_then_replicated(name):
    spec = uniform(q=32, kv=4)
    rates = [capacity(name, spec, available_bytes=GIB, place=Placement(tp=tp)).block_bytes for tp in (1, 2, 4, 8, 16)]
    assert rates[0] == 2 * rates[1] == 4 * rates[2] and rates[2] == rates[3] == rates[4]


def test_attention_dp_keeps_attention_whole():
    spec = uniform(q=32, kv=4)
    whole = capacity("sglang", spec, available_bytes=GIB, place=Placement(tp=8, attention_dp=True))
    assert whole.tokens == capacity("sglang", spec, available_bytes=GIB).tokens


@pytest.mark.parametrize("name", ["vllm", "vllm-legacy", "tensorrt-llm", "sglang"])
def test_context_parallelism_multiplies_tokens(name):
    one, eight = (capacity(name, latent(), available_bytes=GIB, place=Placement(tp=8, cp=cp)) for cp in (1, 8))
    assert eight.tokens == 8 * one.tokens
    longest = request_bytes(name, latent(), 64_000, place=Placement(tp=8))
    assert longest == 8 * request_bytes(name, latent(), 64_000, place=Placement(tp=8, cp=8))


@settings(max_examples=30, deadline=None)
@given(size=st.integers(1, 5000), step=st.integers(1, 9000), n=st.integers(1, 20_000))
def test_a_window_costs_itself_and_what_is_in_flight(size, step, n):
    spec = model(layer(Window(size)))
    blocks = request_bytes("vllm", spec, n, batched_tokens=step) // (16 * 4096)
    assert blocks == -(-min(size - 1 + step, n) // 16) + 1
    wide = model(layer())
    cells = request_bytes("llama.cpp", spec, n, knobs={"ubatch": step}) // 4096
    assert cells == min(-(-min(size + step, -(-n // 256) * 256) // 256) * 256, -(-n // 256) * 256)
    assert request_bytes("llama.cpp", spec, n, knobs={"ubatch": step}) <= request_bytes("llama.cpp", wide, n)


@pytest.mark.parametrize("name", ["vllm", "llama.cpp", "kvist"])
@settings(max_examples=15, deadline=None)
@given(available=st.integers(64 * MIB, 4 * GIB), length=st.sampled_from([2048, 40_000, 131_072]))
def test_windows_never_hold_less_than_full_layers_would(name, available, length):
    """Nor more than the layers that are full would by themselves."""
    run = {"available_bytes": available, "max_model_tokens": length, "batched_tokens": 512}
    narrow = capacity(name, windowed(), **run).tokens
    assert narrow >= capacity(name, uniform(6), **run).tokens - 1024
    assert narrow <= capacity(name, uniform(2), **run).tokens + 1024


@pytest.mark.parametrize("name", ENGINES)
def test_what_nobody_asked_for_is_refused_by_name(name):
    with pytest.raises(BadValue, match="colour"):
        capacity(name, uniform(), available_bytes=GIB, max_model_tokens=1024, knobs={"colour": "red"})
    with pytest.raises(BadValue, match="max_model_tokens"):
        capacity(name, uniform(), available_bytes=GIB, max_model_tokens=0)
    with pytest.raises(BadValue, match="tp"):
        capacity(name, uniform(q=6, kv=3), available_bytes=GIB, max_model_tokens=1024, place=Placement(tp=5))


@pytest.mark.parametrize("name", [n for n in ENGINES if n != "kvist" and "vllm" not in n])
def test_compressed_attention_is_refused_not_guessed(name):
    spec = model(layer(Compressed(128, 4, 128), q=8, kv=1, key=512))
    with pytest.raises(ModelError, match="compressed"):
        capacity(name, spec, available_bytes=GIB, max_model_tokens=1024)


@pytest.mark.parametrize(
    "said,meant",
    [
        ("vLLM", "vllm"),
        ("VLLM V1", "vllm"),
        ("vllm 0.9.2", "vllm"),
        ("SGLang", "sglang"),
        ("sgl", "sglang"),
        ("llama-server", "llama.cpp"),
        ("LLAMA.CPP", "llama.cpp"),
        ("ik_llama", "ik_llama.cpp"),
        ("ik-llama.cpp", "ik_llama.cpp"),
        ("TRT-LLM", "tensorrt-llm"),
        ("TensorRT LLM", "tensorrt-llm"),
        ("ipex-llm (llama.cpp)", "ipex-llm"),
        ("ollama", "llama.cpp"),
    ],
)
def test_engines_in_anybody_s_spelling(said, meant):
    assert registry.named(said) == meant
    assert registry.engine(said).name == meant


def test_an_unknown_engine_is_refused_with_what_there_is():
    with pytest.raises(BadValue, match="sglang"):
        registry.engine("deepspeed")


@pytest.mark.parametrize("kind", ["uniform", "windowed", "latent", "chunked", "hybrid"])
def test_kvist_s_numbers_are_the_layout_s(kind):
    spec = MODELS[kind]
    layout = plan_layout(spec, F16)
    got = capacity("kvist", spec, kv_format=F16, available_bytes=3 * GIB + 5, max_model_tokens=5000)
    assert got.block_bytes == layout.block_bytes and got.blocks == (3 * GIB + 5) // layout.block_bytes
    assert got.request_bytes == (layout.peak_blocks_for(5000, 1) + layout.state_blocks) * layout.block_bytes


def test_kvist_s_longest_request_is_the_scheduler_s_limit():
    from kvist.sched.limits import _most_tokens

    spec = windowed()
    layout = plan_layout(spec, F16)
    got = capacity("kvist", spec, kv_format=F16, available_bytes=40 * layout.block_bytes)
    assert got.longest_tokens == _most_tokens(layout, 40, spec.context_tokens)


def test_stages_take_the_minimum():
    """Nine layers over two stages: five on the first (the last has the head). The fuller stage decides."""
    spec = uniform(9)
    place = Placement(pp=2)
    for name in ("vllm", "vllm-legacy", "tensorrt-llm", "sglang", "kvist"):
        got = capacity(name, spec, available_bytes=GIB, place=place)
        assert got.block_bytes == capacity(name, uniform(5), available_bytes=GIB).block_bytes
        alone = capacity(name, uniform(5), available_bytes=GIB)
        assert got.tokens == alone.tokens and got.blocks == alone.blocks


def test_a_draft_layer_is_one_more_layer_of_the_last_stage():
    for name in ("vllm", "tensorrt-llm", "sglang"):
        got = capacity(name, uniform(4), available_bytes=GIB, draft_layers=1)
        assert got.block_bytes == capacity(name, uniform(5), available_bytes=GIB).block_bytes
    split = capacity("vllm", uniform(5), available_bytes=GIB, draft_layers=1, place=Placement(pp=2))
    assert split.block_bytes == 3 * 16 * 4096


# vLLM


def test_vllm_counts_concurrency_times_length_and_legacy_whole_blocks():
    run = {"available_bytes": 1000 * 4 * 16 * 4096, "max_model_tokens": 1001}
    assert capacity("vllm", uniform(), **run).tokens == int(1000 / 63 * 1001)
    assert capacity("vllm-legacy", uniform(), **run).tokens == 16_000
    v0 = capacity("vllm-legacy", uniform(), **run, knobs={"count": "blocks", "swap_gib": 2})
    assert v0.line("cpu_blocks").value == 2 * GIB // (4 * 16 * 4096) and v0.concurrency == 16_000 / 1001


def test_vllm_cuts_windows_and_full_layers_into_groups_of_the_rarer_kind():
    got = capacity(
        "vllm", windowed(2, 4), available_bytes=100 * 2 * 16 * 4096, max_model_tokens=16_000, batched_tokens=1000
    )
    assert got.blocks == 100
    assert got.concurrency == 100 / (1000 + 2 * (-(-(127 + 1000) // 16) + 1))
    off = capacity("vllm", windowed(2, 4), available_bytes=GIB, max_model_tokens=16_000, knobs={"hybrid": False})
    assert off.tokens == capacity("vllm", uniform(6), available_bytes=GIB, max_model_tokens=16_000).tokens


def test_vllm_pads_to_the_commoner_kind_when_it_is_not_much_commoner():
    got = capacity("vllm", windowed(12, 13), available_bytes=GIB)
    assert got.block_bytes == 13 * 16 * 4096 and got.notes


def test_vllm_lengthens_blocks_of_narrow_layers():
    spec = model(layer(kv=8), layer(Window(512), kv=16), layer(Window(512), kv=16))
    got = capacity("vllm", spec, available_bytes=GIB, max_model_tokens=32_000, batched_tokens=2048)
    assert got.block_bytes == 16 * 16 * 512
    assert got.request_bytes // got.block_bytes == 1000 + 2 * (160 + 1)


def test_vllm_grows_attention_s_block_until_it_holds_a_state():
    """32 x 128 x 128 in f32 and 3 x 8192 in 16 bits: 2,146,304 B. At 1,024 B a token (fp8) that is 2,096 tokens."""
    got = capacity("vllm", hybrid(), kv_format=FP8, available_bytes=GIB, max_model_tokens=131_072)
    assert got.block_tokens == 2096 and got.block_bytes == 2 * 2096 * 1024
    assert got.request_bytes == got.block_bytes * (63 + 3 * 2)
    none = capacity(
        "vllm", hybrid(), kv_format=FP8, available_bytes=GIB, max_model_tokens=131_072, prefix_caching=False
    )
    assert none.request_bytes == got.block_bytes * (63 + 3 * 1)
    drafted = capacity("vllm", hybrid(), kv_format=FP8, max_model_tokens=131_072, draft_tokens=2)
    assert drafted.block_tokens == 2128  # printed by vLLM with two drafts: each lengthens the filter by a step
    half = capacity("vllm", hybrid(), kv_format=FP8, knobs={"state_type": "bf16"})
    assert half.block_tokens == 1072


def test_vllm_keeps_chunks_and_what_is_in_flight():
    got = request_bytes("vllm", chunked(), 100_000, batched_tokens=1024) // (16 * 4096)
    assert got == 6250 + 3 * (8192 + 1024) // 16


def test_vllm_packs_latents_and_indexers():
    spec = model(layer(Latent(512, 64, index_dim=128), q=16, kv=1, key=192, value=128))
    run = {"kv_format": FP8, "available_bytes": GIB, "knobs": {"latent_row": "fp8_ds_mla"}}
    assert capacity("vllm", spec, **run).block_bytes == 64 * (656 + 132)
    assert capacity("vllm", spec, available_bytes=GIB).block_bytes == 64 * (1152 + 132)


def compressed(ratio, index=0):
    return layer(Compressed(128, ratio, index), q=8, kv=1, key=512)


def test_vllm_overlays_groups_of_compressed_attention():
    """Two layers of ratio 4, one of 128, three with a window alone (all six have one); in multiples of 576 bytes.

    Rows of 584 B: 64 of them (a window's block, and 256 tokens at ratio 4) are 37,440 B, two are 1,728 B; 64 of an
    indexer 8,640 B. Rows in the making: 4 tokens x 2,048 f32 are 33,408 B, with the indexer's 8,640 B beside.
    """
    spec = model(*(compressed(0) for _ in range(3)), *(compressed(4, 128) for _ in range(2)), compressed(128))
    run = {"kv_format": FP8, "max_model_tokens": 100_000, "batched_tokens": 2048, "available_bytes": GIB}
    got = capacity("vllm", spec, **run)
    assert got.block_bytes == 2 * (37_440 + 8_640) + 1_728 > 2 * (33_408 + 8_640) > 2 * 37_440
    blocks = 391 + 3 * ((127 + 2048 + 63) // 64 + 1) + ((7 + 2048 + 3) // 4 + 1) + ((127 + 2048 + 7) // 8 + 1)
    assert got.concurrency == GIB // got.block_bytes / blocks
    assert got.request_bytes == blocks * 2 * (37_440 + 8_640 + 1_728)


@needs_shared
@pytest.mark.parametrize(
    "gib,length,batched,steps,required,tokens,longest",
    [(23.37, 131_072, 65_536, 2, 52.66, None, 58_148), (50.51, 98_304, 8192, 2, None, 752_889, None),
     (5.44, 30_000, 16_384, 1, 6.66, None, 13_528)],
)  # fmt: skip
def test_vllm_s_printed_numbers_for_compressed_attention(gib, length, batched, steps, required, tokens, longest):
    """vLLM 0.27.1 before and after its step was made smaller; vllm-project/vllm issue 44376 (0.22)."""
    run = {"kv_format": FP8, "place": Placement(tp=2), "max_model_tokens": length, "batched_tokens": batched}
    got = capacity("vllm", config("deepseek-ai__DeepSeek-V4-Flash"), available_bytes=int(gib * GIB), **run,
                   knobs={"steps_in_flight": steps})  # fmt: skip
    assert required is None or round(got.request_bytes / GIB, 2) == required
    assert tokens is None or got.tokens == pytest.approx(tokens, rel=2e-4)
    assert longest is None or got.longest_tokens == pytest.approx(longest, rel=5e-4)


def test_vllm_s_own_formats():
    assert vllm_format("int8_per_token_head").k.row_bytes(128) == 132
    assert vllm_format("fp8_ds_mla") == vllm_format("fp8_e4m3") == FP8
    with pytest.raises(BadValue):
        vllm_format("int3")


def test_vllm_reserves_for_drafts_and_for_steps_in_flight():
    knobs = {"draft_slots": 3, "steps_in_flight": 2}
    got = request_bytes("vllm", windowed(1, 1, size=64), 100_000, batched_tokens=1000, sequences=16, knobs=knobs)
    assert got == 16 * 4096 * (6250 + -(-(63 + 2 * (1000 + 48)) // 16) + 1)


# llama.cpp and its forks


def mib(name, spec, what, line="kv_mib", **run):
    return capacity(name, spec, kv_format=run.pop("kv_format", F16), **run).line(line, what).value


def test_llama_cpp_pads_cells_and_splits_streams():
    spec = windowed(3, 15, size=512, kv=1, key=256)
    run = {"max_model_tokens": 2048, "sequences": 4}
    assert mib("llama.cpp", spec, "full layers", **run) == 24
    assert mib("llama.cpp", spec, "windowed layers", **run) == 60
    assert mib("llama.cpp", spec, "all", **run) == 84
    shared = {"sequences": 4, "knobs": {"n_ctx": 8192, "unified": True}}
    assert mib("llama.cpp", spec, "windowed layers", "cells", **shared) == 4 * 512 + 512
    assert mib("llama.cpp", uniform(), "full layers", "cells", max_model_tokens=2528) == 2560
    assert mib("ipex-llm", uniform(), "full layers", "cells", max_model_tokens=2528) == 2528


def test_forks_have_one_cache_for_all_layers():
    spec = windowed()
    for name in ("ik_llama.cpp", "ipex-llm"):
        assert mib(name, spec, "full layers", max_model_tokens=4096) == mib(
            name, uniform(6), "full layers", max_model_tokens=4096
        )
    whole = {"max_model_tokens": 4096, "knobs": {"windows": "full"}}
    assert mib("llama.cpp", spec, "windowed layers", "cells", **whole) == 4096


def test_packed_keys_and_values():
    fmt = KVFormat.planned("q8_0/q4_0")
    assert mib("llama.cpp", uniform(), "full layers", "kv_mib_k", kv_format=fmt, max_model_tokens=1024) == 4 * 34 / 32
    assert mib("llama.cpp", uniform(), "full layers", "kv_mib_v", kv_format=fmt, max_model_tokens=1024) == 4 * 18 / 32
    kept = {"kv_format": fmt, "max_model_tokens": 1024, "knobs": {"window_format": "f16"}}
    assert mib("llama.cpp", windowed(), "windowed layers", **kept) == mib(
        "llama.cpp", windowed(), "windowed layers", max_model_tokens=1024
    )


@pytest.mark.parametrize("mode,row", [("latent", (576, 0)), ("twice", (576, 512)), ("expanded", (16 * 192, 16 * 128))])
def test_three_layouts_of_latents(mode, row):
    for line, width in zip(("kv_mib_k", "kv_mib_v"), row, strict=True):
        got = mib("ik_llama.cpp", latent(), "full layers", line, max_model_tokens=1024, knobs={"mla": mode})
        assert got == 3 * 1024 * width * 2 / MIB


def test_recurrent_state_in_f32_and_states_to_go_back_to():
    run = {"max_model_tokens": 512, "sequences": 4}
    assert mib("llama.cpp", hybrid(), "recurrent state", "kv_mib_k", **run) == 4 * 6 * 2
    assert mib("llama.cpp", hybrid(), "recurrent state", "kv_mib_v", **run) == 4 * 6 * 3 * 8192 * 4 / MIB
    kept = mib("llama.cpp", hybrid(), "recurrent state", **run, knobs={"rollback": 2})
    assert kept == 3 * mib("llama.cpp", hybrid(), "recurrent state", **run)


@pytest.mark.parametrize("layers,devices,first", [(80, 2, 41), (32, 2, 17), (30, 3, 11), (4, 4, 2)])
def test_layers_are_dealt_out_with_the_output_layer(layers, devices, first):
    spec = uniform(layers)
    run = {"max_model_tokens": 256, "knobs": {"devices": devices}}
    each = [mib("llama.cpp", spec, f"device {i}", **run) for i in range(devices)]
    assert each[0] == first and sum(each) == layers


def test_llama_cpp_fills_memory_in_whole_cells():
    got = capacity("llama.cpp", uniform(), kv_format=F16, available_bytes=GIB, sequences=4, max_model_tokens=1024)
    assert got.tokens == 65_536 and got.longest_tokens == 16_384


# SGLang and TensorRT-LLM


def test_sglang_keeps_one_slot_more_and_prints_k_and_v_apart():
    got = capacity("sglang", hybrid(), max_model_tokens=100_000, knobs={"state_slots": 124})
    assert got.line("ssm_gib").value == 125 * 6 * 32 * 128 * 128 * 4 / GIB
    assert got.line("conv_gib").value == 125 * 6 * 3 * 8192 * 2 / GIB
    assert got.line("k_gib").value == got.line("v_gib").value == pytest.approx(100_001 * 2 * 2 * 256 * 2 / GIB)


def test_sglang_gives_windows_a_smaller_pool():
    whole = capacity("sglang", windowed(), available_bytes=GIB, knobs={"window_pool_percent": 0})
    usual = capacity("sglang", windowed(), available_bytes=GIB)
    split = capacity("sglang", windowed(), available_bytes=GIB, knobs={"window_pool_percent": 50})
    assert whole.tokens == GIB // (6 * 4096) and split.tokens == GIB // (4 * 4096)
    assert whole.tokens < usual.tokens < split.tokens  # 80 percent when nobody says otherwise
    assert {line.what for line in usual.lines if line.name == "k_gib"} == {"full layers", "windowed layers"}


def test_tensorrt_llm_counts_blocks():
    got = capacity("tensorrt-llm", uniform(), available_bytes=GIB, block_tokens=64)
    assert got.tokens == GIB // (64 * 4 * 4096) * 64
    assert got.line("kv_gib").value == got.tokens * 4 * 4096 / GIB


@needs_shared
def test_a_log_nobody_tuned_for():
    """mitchross/talos-argocd-proxmox, pull request 1995: 4.99 GiB a GPU, 302,921 tokens, 2.31x, blocks of 1,568."""
    spec = config("nvidia__Qwen3.6-27B-NVFP4")
    run = {"kv_format": FP8, "place": Placement(tp=2), "available_bytes": int(4.99 * GIB), "max_model_tokens": 131_072}
    got = capacity("vllm", spec, **run)
    assert (got.tokens, got.block_tokens, round(got.concurrency, 2)) == (302_921, 1568, 2.31)

"""Each explanation, on a log where it is true and on one where it is not. True numbers are real or worked out here."""

import pytest
from doctor_kit import (
    DEEPSEEK,
    GEMMA3_27B,
    GEMMA4_31B,
    GPT_OSS_120B,
    KIMI,
    LLAMA_8B,
    QWEN35_4B,
    QWEN36_27B,
    QWEN_14B,
    QWEN_32B,
    QWEN_235B,
    causes,
    diagnosed,
    every,
    log,
    spec_of,
    text,
    tokens,
    verdicts,
    vllm,
)  # fmt: skip

from kvist.spec.layer import Full, Window

CONCURRENCY = "Maximum concurrency for {:,} tokens per request: {:.2f}x"


def test_smallest_rank_that_is_not_in_the_log():
    """8.11 GiB of 48,128 bytes (94 layers, one KV head a rank) are 180,928 tokens; 178,880 were printed."""
    found = causes(log("vllm-0.10-qwen3-235b-tp4"), QWEN_235B)
    assert found["smallest rank"] == "kv_tokens"
    assert "smallest rank" not in causes(text("vllm-0.10-qwen3-235b-tp4").replace("178,880", "180,928"), QWEN_235B)
    deep = diagnosed(log("vllm-0.7.2-qwen14b-tp2"), QWEN_14B)
    said = next(f for f in deep.findings if f.cause == "smallest rank")
    assert "7.47 GiB a rank, 8.69 GiB are printed" in said.sentence  # 81,536 x 98,304 bytes


def test_smallest_rank_that_is_in_the_log():
    def two(first, second):
        ranks = [f"(Worker_TP{i} pid={i}) Available KV cache memory: {g} GiB" for i, g in enumerate((first, second))]
        return vllm(first, *ranks, tokens(178_912), tp=4, length=40_960)

    found = causes(two(8.11, 8.02).replace("Available KV cache memory: 8.11 GiB\n", "", 1), QWEN_235B)
    assert found["smallest rank"] == ""
    assert "smallest rank" not in causes(two(8.02, 8.02), QWEN_235B)


def test_older_formulas_of_vllm():
    """24.54 GiB are 10,052 pages of 10 layers x 256 KiB: 26,800 tokens are blocks // 6 groups x 16."""
    said = vllm(24.54, tokens(26_800), version="0.22.0", length=8192)
    assert causes(said, GEMMA4_31B)["older formula"] == "kv_tokens"
    assert "older formula" not in causes(said.replace("0.22.0", "0.19.1"), GEMMA4_31B)
    assert verdicts(said.replace("0.22.0", "0.19.1"), GEMMA4_31B)["kv_tokens", ""] == "agrees"
    every_layer = vllm(24.54, tokens(29_232), version="0.11.0")  # 901,120 bytes of all 60 layers
    assert causes(every_layer, GEMMA4_31B)["older formula"] == "kv_tokens"


def test_tokens_that_are_concurrency():
    found = diagnosed(log("vllm-0.22-qwen3.5-4b"), QWEN35_4B)
    said = next(f for f in found.findings if f.cause == "tokens are concurrency")
    assert "137.8 requests x 1,024 tokens" in said.sentence
    plain = vllm(8.0, tokens(65_536), CONCURRENCY.format(8192, 8.0), version="0.22.0", length=8192)
    assert verdicts(plain, LLAMA_8B)["kv_tokens", ""] == "agrees"
    assert "tokens are concurrency" not in causes(plain, LLAMA_8B)


def test_windows_charged_in_full():
    """5.38 GiB / (36 x 2048 B) = 78,352 tokens: half the layers have a window and are charged like the rest."""
    full = vllm(5.38, tokens(78_384), version="0.8.5", length=131_072)
    assert causes(full, GPT_OSS_120B)["windows in full"] == ""
    assert verdicts(full, GPT_OSS_120B)["kv_tokens", ""] == "agrees"
    honoured = vllm(5.38, tokens(140_000), version="0.22.0")
    assert "windows in full" not in causes(honoured, GPT_OSS_120B)
    assert "windows in full" not in causes(vllm(8.0, tokens(65_536), length=8192), LLAMA_8B)


def test_swap_space():
    """4880 blocks of 2 MiB in 9.53 GiB; 3072 on the host are 6 GiB, 2048 the usual 4."""
    old = "Initializing an LLM engine (v0.7.3) with config: model='m', max_seq_len=1024, tensor_parallel_size=1\n"
    old += (
        "the rest of the memory reserved for KV Cache is 9.53GiB\nmodel weights take 4.04GiB; non_torch_memory takes "
    )
    old += (
        "0.08GiB; PyTorch activation peak memory takes 0.28GiB; the rest of the memory reserved for KV Cache is 9.53GiB"
    )
    assert causes(f"{old}\n# cuda blocks: 4880, # CPU blocks: 3072", LLAMA_8B)["swap space"] == "cpu_blocks"
    assert "swap space" not in causes(f"{old}\n# cuda blocks: 4880, # CPU blocks: 2048", LLAMA_8B)


def test_blocks_that_leave_a_remainder():
    """A block of Qwen3.5-4B takes 8 pages of 528 x 4096 B: 17.3 MB. 0.30 GiB hold 18 and leave 3.3 %."""
    assert "block rounding" in causes(vllm(0.30, tokens(1), version="0.22.0", length=1024), QWEN35_4B)
    assert "block rounding" not in causes(vllm(30.0, tokens(1), version="0.22.0", length=1024), QWEN35_4B)


def test_gb_that_are_gib():
    qwq = log("sglang-0.4-qwq-tp4")
    assert "GB means GiB" in causes(qwq, QWEN_32B)
    decimal = text("sglang-0.4-qwq-tp4").replace("1.42 GB", "1.53 GB")  # the same bytes over 1e9
    assert "GB means GiB" not in causes(decimal, QWEN_32B)
    assert "GB means GiB" not in causes(vllm(8.0, tokens(65_536), length=8192), LLAMA_8B)


def test_latents_on_every_rank():
    said = text("vllm-kimi-k2-tp8")
    assert "latent on every rank" in causes(said, KIMI)
    assert "latent on every rank" not in causes(
        said.replace("'tensor_parallel_size': 8", "'tensor_parallel_size': 1"), KIMI
    )
    split = said.replace("715,072", "5,721,088").replace("_size': 8", "_size': 8, 'decode_context_parallel_size': 8")
    found = causes(split, KIMI)
    assert "latent split by tokens" in found and "latent on every rank" not in found


def test_heads_on_several_ranks():
    """8 KV heads on 16 ranks: 16 KiB a token and rank, 10 GiB are 655,360 tokens; 8 ranks have as many."""
    said = vllm(10.0, tokens(655_360), tp=16, length=8192)
    assert "heads on several ranks" in causes(said, LLAMA_8B)
    assert verdicts(said, LLAMA_8B)["kv_tokens", ""] == "agrees"
    assert "heads on several ranks" not in causes(vllm(10.0, tokens(655_360), tp=8, length=8192), LLAMA_8B)


def test_a_cache_that_is_not_in_8_bits():
    """10 GiB of 131,072 bytes are 81,920 tokens; of 65,536 bytes twice as many."""
    assert causes(vllm(10.0, tokens(81_920), kv="fp8", length=8192), LLAMA_8B)["format of the cache"] == "kv_tokens"
    assert "format of the cache" not in causes(vllm(10.0, tokens(163_840), kv="fp8", length=8192), LLAMA_8B)
    assert causes(vllm(10.0, tokens(163_840), length=8192), LLAMA_8B)["format of the cache"] == "kv_tokens"


def test_a_degree_that_the_log_does_not_state():
    assert causes(log("trtllm-0.16-llama-8b"), LLAMA_8B)["tensor parallelism"] == "kv"
    stated = "TensorRT-LLM engine args: {'tensor_parallel_size': 1}\n" + text("trtllm-0.16-llama-8b")
    found = causes(stated, LLAMA_8B)
    assert "tensor parallelism" not in found and found["format of the cache"] == "kv"


def test_recurrent_blocks_of_prefix_caching():
    said = text("vllm-0.22-qwen3.5-4b")
    wrong = said.replace("enable_prefix_caching=False", "enable_prefix_caching=True")
    assert causes(wrong, QWEN35_4B)["prefix caching"] in ("kv_tokens", "concurrency")
    assert "prefix caching" not in causes(said, QWEN35_4B)


def test_drafts_that_are_not_stated():
    """Qwen3.6-27B, TP 2, fp8, 3 drafts: 16 full layers and one more, 48 recurrent in 3 groups of 17 (club-3090 142)."""
    spec = ", speculative_config=SpeculativeConfig(method='mtp', model='m', num_spec_tokens=3)"
    lines = (tokens(623_873), CONCURRENCY.format(262_144, 2.38))
    more = {"version": "0.21.0", "kv": "fp8_e5m2", "tp": 2, "length": 262_144}
    stated = vllm(11.08, *lines, stated=spec, **more)
    assert verdicts(stated, QWEN36_27B)["kv_tokens", ""] == "agrees"
    assert "drafts" not in causes(stated, QWEN36_27B)
    assert causes(vllm(11.08, *lines, **more), QWEN36_27B)["drafts"] == "kv_tokens"


def test_tokens_in_flight():
    """(18 full layers x 131,072 + 73 blocks of 18 windowed) x 2048 B = 4.54 GiB: 127 + 1024 tokens beside a window."""
    said = text("vllm-gpt-oss-120b-refused")
    assert causes(said, GPT_OSS_120B)["tokens in flight"] == "needed"
    stated = said.replace("enable_prefix_caching=True", "enable_prefix_caching=True, max_num_batched_tokens=1024")
    assert "tokens in flight" not in causes(stated, GPT_OSS_120B)
    assert verdicts(stated, GPT_OSS_120B)["needed", ""] == "agrees"


def test_format_of_states():
    """In bf16 a state of Qwen3.5-4B is half as large, and so is the block that must match it."""
    lines = [f"Setting attention block size to {n} tokens" for n in (272, 528)]
    halved = vllm(11.11, lines[0], version="0.22.0", stated=", enable_prefix_caching=False", length=1024)
    assert causes(halved, QWEN35_4B)["format of states"] == "block_tokens"
    assert "format of states" not in causes(halved.replace(lines[0], lines[1]), QWEN35_4B)


def test_the_doctor_admits_what_it_does_not_know():
    found = diagnosed(vllm(10.0, tokens(50_000), length=8192), LLAMA_8B)
    assert [r.name for r in found.unexplained] == ["kv_tokens"]
    said = next(f for f in found.findings if f.cause == "unexplained")
    assert "50,000" in said.sentence and "-38.96 %" in said.sentence
    assert "unexplained" not in causes(vllm(10.0, tokens(81_920), length=8192), LLAMA_8B)


# what llama.cpp's buffers hold


def cells(*lines, n_ctx=8192, n_seq=1, unified="true", ubatch=512, more=""):
    facts = {"n_seq_max": n_seq, "n_ctx": n_ctx, "n_ubatch": ubatch, "kv_unified": unified}
    return "\n".join([*(f"llama_context: {k} = {v}" for k, v in facts.items()), more, *lines])


def cache(mib, n, layers, seqs="1/1", k=None, kind="f16", name="llama_kv_cache"):
    half = mib / 2 if k is None else k
    sides = f"K ({kind}): {half:.2f} MiB, V ({kind}): {mib - half:.2f} MiB"
    return f"{name}: size = {mib:.2f} MiB ( {n} cells, {layers} layers, {seqs} seqs), {sides}"


def test_padded_cells():
    """5,000 cells become 5,120 of 128 KiB: 640 MiB."""
    assert "padded cells" in causes(cells(cache(640, 5120, 32), n_ctx=5000), LLAMA_8B)
    assert "padded cells" not in causes(cells(cache(640, 5120, 32), n_ctx=5120), LLAMA_8B)
    assert verdicts(cells(cache(640, 5120, 32), n_ctx=5000), LLAMA_8B)["kv", ""] == "agrees"


def test_separate_streams():
    split = cells(cache(1024, 2048, 32, "4/4"), n_seq=4, unified="false")
    assert "separate streams" in causes(split, LLAMA_8B)
    assert verdicts(split, LLAMA_8B)["kv_cells", ""] == "agrees"
    assert "separate streams" not in causes(cells(cache(1024, 8192, 32, "4/1"), n_seq=4), LLAMA_8B)


def test_cells_of_windows():
    """4 windows of 1,024 and a micro-batch of 512: 4,608 cells; one slot: 1,536."""
    spec = spec_of(every(48, 6, Window(1024), Full()), 16, 8, 256)

    def iswa(n, seqs):
        full = f"llama_kv_cache_iswa: creating non-SWA KV cache, size = 8192 cells\n{cache(512, 8192, 8, seqs)}"
        small = (
            f"llama_kv_cache_iswa: creating     SWA KV cache, size = {n} cells\n{cache(n * 320 / 1024, n, 40, seqs)}"
        )
        return full, small

    four = cells(*iswa(4608, "4/1"), n_seq=4)
    assert "cells of windows" in causes(four, spec)
    assert set(verdicts(four, spec).values()) == {"agrees"}
    tight = spec_of(every(48, 6, Window(256), Full()), 16, 8, 256)
    assert "cells of windows" not in causes(cells(*iswa(256, "1/1"), ubatch=1, n_ctx=256), tight)


def test_windows_kept_in_full():
    assert "windows in full" in causes(log("llama.cpp-2026-gemma2-2b-ollama"))
    assert "windows in full" in causes(log("ik_llama.cpp-gemma3-27b-32k"), GEMMA3_27B)
    plain = spec_of([Full()] * 62, 32, 16, 128)
    assert "windows in full" not in causes(log("ik_llama.cpp-gemma3-27b-32k"), plain)


def test_layouts_of_latents():
    """ik_llama.cpp 242, 394, 258: 512 cells expanded 2,440 MiB; 16,384 twice 2,074; 32,768 once 2,196."""
    ik = "llama_new_context_with_model: n_ctx = {}\nllama_new_context_with_model: mla_attn = {}\n"
    ik += "llama_new_context_with_model: KV self size  = {:.2f} MiB, K (f16): {:.2f} MiB, V (f16): {:.2f} MiB"
    assert "latents expanded" in causes(ik.format(512, 0, 2440, 1464, 976), DEEPSEEK)
    assert "latents twice" in causes(ik.format(16_384, 1, 2074, 1098, 976), DEEPSEEK)
    once = causes(log("ik_llama.cpp-deepseek-v3-32k"), DEEPSEEK)
    assert not [cause for cause in once if cause.startswith("latents")]


def test_windows_in_f16_beside_packed_layers():
    """2,048 f16 cells of 40 layers x 8,192 B are 640 MiB; q8_0 takes 34/64 of it."""
    spec = spec_of(every(48, 6, Window(1024), Full()), 16, 8, 256)
    head = "llama_kv_cache_iswa: creating non-SWA KV cache, size = 8192 cells\n" + cache(272, 8192, 8, kind="q8_0")
    tail = "\nllama_kv_cache_iswa: creating     SWA KV cache, size = 1536 cells\n"
    assert causes(cells(head + tail + cache(480, 1536, 40)), spec)["windows in f16"] == "kv"
    packed = cells(head + tail + cache(255, 1536, 40, kind="q8_0"))
    assert "windows in f16" not in causes(packed, spec)
    assert verdicts(packed, spec)["kv", "windowed layers"] == "agrees"


def test_state_of_every_sequence():
    """Qwen3.5-27B, 4 slots: 598.50 MiB of state (TheTom/turboquant_plus)."""
    line = "llama_memory_recurrent: size = {:.2f} MiB ( {} cells, 64 layers, {} seqs), R (f32): {:.2f} MiB, "
    line += "S (f32): {} MiB"
    four = cells(line.format(598.5, 4, 4, 22.5, 576), n_seq=4, n_ctx=2048)
    assert "state per sequence" in causes(four, QWEN36_27B)
    assert verdicts(four, QWEN36_27B)["state", "recurrent state"] == "agrees"
    one = cells(line.format(149.62, 1, 1, 5.62, 144), n_ctx=2048)
    assert "state per sequence" not in causes(one, QWEN36_27B)


def test_caches_beside_the_devices_own():
    assert "cache on the host" in causes(log("llama.cpp-2026-qwen3.5-9b-vulkan"))
    assert "cache on the host" not in causes(log("llama.cpp-2026-gemma2-2b-ollama"))
    draft = "\nllama_context: n_ctx = 8192\n" + cache(32, 8192, 1)
    assert "draft cache" in causes(cells(cache(1024, 8192, 32)) + draft, LLAMA_8B)
    assert "draft cache" not in causes(cells(cache(1024, 8192, 32)), LLAMA_8B)


def test_copies_for_pipelining():
    buffer = "\nllama_context: CUDA0 compute buffer size = 588.01 MiB"
    four = "llama_context: pipeline parallelism enabled (n_copies=4)"
    assert "copies for pipelining" in causes(cells(cache(1024, 8192, 32), more=four) + buffer, LLAMA_8B)
    one = four.replace("=4", "=1")
    assert "copies for pipelining" not in causes(cells(cache(1024, 8192, 32), more=one) + buffer, LLAMA_8B)


def test_another_model():
    other = log("llama.cpp-6300-llama3-70b-rpc")
    assert causes(other, LLAMA_8B)["another model"] == "kv"
    assert "another model" not in causes(other)
    assert "another model" in causes(cells(cache(1024, 8192, 48)), spec_of([Full()] * 40, 32, 8, 128))


@pytest.mark.parametrize("name", ["llama.cpp-4188-bge-small", "llama.cpp-6300-llama3-70b-rpc",
                                  "llama.cpp-2026-gemma2-2b-ollama", "llama.cpp-2026-qwen3.5-9b-vulkan"])  # fmt: skip
def test_a_llama_cpp_log_carries_the_models_shape(name):
    found = diagnosed(log(name))
    known = [r.verdict for r in found.rows if r.name in ("kv", "k", "v", "state", "r", "s", "kv_cells")]
    assert known and set(known) == {"agrees"}

"""Logs of four engines, old and new wording, parsed to the numbers that were printed. Units are meant, not printed."""

import pytest
from doctor_kit import GIB, LOGS, MIB, log, text

from kvist.errors import KvistError, UsageError
from kvist.planner.doctor.base import NothingRecognised
from kvist.planner.doctor.lines import rank_of, split_lines
from kvist.planner.doctor.read import parse_log, read_log


def numbers(found, *names, what=None):
    """Last print of each, sizes in GiB."""
    terms = [found.last(n, what) for n in names]
    return [round(t.value / GIB, 6) if t.unit == "bytes" else t.value for t in terms]


PARSED = {
    "vllm-0.6.4-rho-1b": ("vllm", "0.6.4.post1", {
        "total": 139.80, "used_at_start": 2.71, "peak_torch": 2.38, "non_torch": 0.73, "kv_available": 122.71,
        "weights": 2.0512, "gpu_blocks": 365_549, "cpu_blocks": 11_915, "concurrency": 2855.85,
        "concurrency_tokens": 2048,
    }),
    "vllm-0.6.4-llama-29k": ("vllm", "0.6.4.post1", {
        "weights": 14.9888, "gpu_blocks": 1478, "needed_tokens": 29_000, "kv_tokens": 23_648, "kv_available": 2.89,
    }),
    "vllm-0.7.2-qwen14b-tp2": ("vllm", "0.7.2", {
        "total": 23.55, "usable": 23.08, "weights": 13.95, "non_torch": 0.25, "activation": 0.19,
        "kv_available": 8.69, "kv_tokens": 81_536, "needed_tokens": 131_072,
    }),
    "vllm-0.8.5-llama-3b-t4": ("vllm", "0.8.5.post1", {
        "weights": 6.25, "gpu_blocks": 1017, "cpu_blocks": 0, "graphs": 0.53, "concurrency": 7.95,
    }),
    "vllm-0.11-qwen3-32b-tp2": ("vllm", "0.11.0", {
        "free_at_start": 78.67, "total": 79.18, "usable": 71.26, "weights": 30.59, "activation": 5.64,
        "non_torch": 0.54, "graphs": -0.33, "kv_available": 34.49, "kv_in_use": round(37_033_354_240 / GIB, 6),
    }),
    "vllm-0.19-qwen14b-refused": ("vllm", "", {
        "needed_tokens": 16_384, "needed": 3.0, "kv_available": 0.18, "longest_tokens": 976, "graphs_estimated": 0.79,
    }),
    "vllm-0.22-consumed": ("vllm", "", {
        "consumed": 10.47, "activation": 0.79, "graphs": 0.04, "usable": 14.27, "kv_in_use": 3.01,
        "kv_tokens": 172_032, "concurrency": 1.0, "block_tokens": 3072, "weights": 10.24,
    }),
    "vllm-0.23-qwen3.6-27b": ("vllm", "0.23.1rc1.dev531+ga65f93fb2", {
        "weights": 19.78, "kv_available": 47.84, "kv_tokens": 1_505_068, "concurrency": 5.74, "graphs": 0.62,
        "graphs_estimated": 0.61, "block_tokens": 1568,
    }),
    "sglang-0.4-qwq-tp4": ("sglang", "", {
        "free_before_load": 21.63, "free_after_load": 6.09, "weights": 15.54, "kv_tokens": 46_611, "k": 1.42,
        "v": 1.42, "free_after_pool": 2.09, "graphs": 0.93, "pool_tokens": 46_611, "non_torch": 0.13,
    }),
    "sglang-0.5-qwen3.5-397b-tp2": ("sglang", "", {
        "state_slots": 82, "conv": 0.13, "ssm": 7.29, "kv_tokens": 580_364, "k": 4.15, "free_at_end": 3.63,
    }),
    "llama.cpp-4188-bge-small": ("llama.cpp", "4188", {
        "kv": 9 / 1024, "k": 4.5 / 1024, "v": 4.5 / 1024, "file": 63.84 / 1024, "kv_buffer": 9 / 1024,
    }),
    "llama.cpp-6300-llama3-70b-rpc": ("llama.cpp", "", {
        "kv": 1.25, "k": 0.625, "v": 0.625, "kv_cells": 4096, "kv_layers": 80, "kv_sequences": 1, "kv_streams": 1,
    }),
    "llama.cpp-2026-gemma2-2b-ollama": ("llama.cpp", "", {
        "file": 1.51, "kv": 0.8125, "kv_cells": 8192, "kv_layers": 13, "kv_sequences": 2, "kv_streams": 2,
    }),
    "llama.cpp-2026-qwen3.5-9b-vulkan": ("llama.cpp", "", {
        "state": 50.25 / 1024, "r": 2.25 / 1024, "s": 48 / 1024, "state_cells": 1, "state_layers": 32, "kv": 0.25,
    }),
    "ik_llama.cpp-deepseek-v3-32k": ("ik_llama.cpp", "", {"kv": 2196 / 1024, "k": 2196 / 1024}),
    "ik_llama.cpp-gemma3-27b-32k": ("ik_llama.cpp", "", {"kv": 15.5, "k": 7.75, "v": 7.75}),
    "trtllm-0.16-llama-8b": ("tensorrt-llm", "0.16.0", {
        "total": 31.84, "free_before_cache": 17.83, "gpu_blocks": 8219, "kv": 16.05, "kv_tokens": 263_008,
        "weights": 8744 / 1024, "buffers": 1.14,
    }),
    "trtllm-1.2-gpt-oss-120b": ("tensorrt-llm", "1.2.0rc5", {"kv": 0.56, "kv_tokens": 8224}),
}  # fmt: skip


@pytest.mark.parametrize("name", PARSED)
def test_every_printed_number_is_read(name):
    engine, version, wanted = PARSED[name]
    found = log(name)
    assert (found.engine, found.version) == (engine, version)
    assert numbers(found, *wanted) == pytest.approx(list(wanted.values()), abs=1e-6)


STATED = {
    "vllm-0.6.4-rho-1b": {
        "model": "realtreetune/rho-1b-sft-GSM8K", "max_model_tokens": 2048, "tp": 1, "kv_dtype": "auto",
        "prefix_caching": True, "batched_tokens": 512, "utilization": 0.9,
    },
    "vllm-0.7.2-qwen14b-tp2": {"tp": 2, "utilization": 0.98, "swap_gib": 4, "batched_tokens": 2048},
    "vllm-0.11-qwen3-32b-tp2": {"tp": 2, "block_tokens": 128, "max_model_tokens": 16_000, "utilization": 0.9},
    "vllm-0.23-qwen3.6-27b": {
        "kv_dtype": "fp8", "utilization": 0.7, "sequences": 8, "batched_tokens": 65_536, "cp": 1,
        "quantization": "modelopt_mixed",
    },
    "sglang-0.4-qwq-tp4": {
        "model": "Qwen/QwQ-32B", "tp": 4, "utilization": 0.85, "max_model_tokens": 131_072, "sequences": 2049,
        "batched_tokens": 2048, "prefix_caching": True,
    },
    "llama.cpp-2026-gemma2-2b-ollama": {
        "n_ctx": 16_384, "n_ctx_seq": 8192, "n_ubatch": 256, "n_seq_max": 2, "kv_unified": False, "swa_full": True,
        "n_layer": 26, "n_head_kv": 4, "n_embd_k_gqa": 1024, "n_swa": 4096, "layers_offloaded": 27,
        "flash_attn": "disabled", "kv_dtype": "f16", "model": "Gemma 2.0 2b It Transformers",
    },
    "ik_llama.cpp-deepseek-v3-32k": {"mla_attn": 3, "n_ctx": 32_768, "attn_max_b": 512},
    "trtllm-1.2-gpt-oss-120b": {"max_total_tokens": 8224, "block_tokens": 32, "sequences": 64, "batched_tokens": 8192},
}  # fmt: skip


@pytest.mark.parametrize("name", STATED)
def test_what_the_log_states_is_read(name):
    found = log(name).settings
    assert {k: found.get(k) for k in STATED[name]} == STATED[name]


def test_a_term_says_where_it_stands():
    term = log("vllm-0.11-qwen3-32b-tp2").last("kv_available")
    assert (term.line, term.rank, term.printed, term.unit) == (8, "TP1", "34.49 GiB", "bytes")
    assert "Available KV cache memory" in term.text
    assert term.low == pytest.approx(34.485 * GIB) and term.high == pytest.approx(34.495 * GIB)


def test_rounding_follows_what_was_printed():
    """vLLM drops zeros (``78.9`` is two decimals); llama.cpp does not; counts are exact."""
    found = parse_log("Available KV cache memory: 78.9 GiB\nGPU KV cache size: 1,024 tokens")
    assert found.last("kv_available").step == pytest.approx(0.01 * GIB)
    assert found.last("kv_tokens").step == 0
    assert parse_log("x: using device CUDA0 (x) - 15841 MiB free").last("free").step == MIB


def test_sglangs_gb_are_gib():
    term = log("sglang-0.4-qwq-tp4").last("k")
    assert term.printed == "1.42 GB" and term.value == 1.42 * GIB
    assert 46_611 * 64 * 2 * 128 * 2 == pytest.approx(term.value, rel=0.004)  # 64 layers of 2 heads a rank, K only


def test_a_share_is_not_overruled_by_a_shorter_print():
    stated = "args: Namespace(model='m', gpu_memory_utilization=0.866)"
    printed = "the current vLLM instance can use total_gpu_memory (22.16GiB) x gpu_memory_utilization ({}) = 19.19GiB"
    assert parse_log(f"{stated}\n{printed.format('0.87')}").settings["utilization"] == 0.866
    assert parse_log(f"{stated}\n{printed.format('0.90')}").settings["utilization"] == 0.9


@pytest.mark.parametrize("line,rank", [
    ("(VllmWorkerProcess pid=507) INFO 04-12 08:21:19 [worker.py:267] x", "pid 507"),
    ("(VllmWorker rank=2 pid=2307184) INFO x", "rank 2"),
    ("(Worker_TP0 pid=34322) INFO x", "TP0"),
    ("(Worker_PP1_TP3 pid=1) INFO x", "PP1 TP3"),
    ("(EngineCore_DP1 pid=1) INFO x", "DP1"),
    ("(EngineCore pid=1) INFO x", ""),
    ("[2025-03-08 12:29:21 TP2] Load", "TP2"),
    ("[2025-03-08 12:29:21 DP0 TP1 EP1] Load", "DP0 TP1 EP1"),
    ("[gpu=3] Load", "gpu 3"),
    ("[01/16/2026-06:20:17] [TRT-LLM] [RANK 5] [I] x", "rank 5"),
    ("INFO 05-20 [x] (no rank)", ""),
])  # fmt: skip
def test_who_wrote_a_line(line, rank):
    assert rank_of(line) == rank


def test_least_of_several_ranks():
    lines = [f"(Worker_TP{i} pid={i}) INFO Available KV cache memory: {g} GiB" for i, g in enumerate((8.11, 8.02, 8.2))]
    found = parse_log("\n".join(lines))
    assert found.least("kv_available").rank == "TP1" and found.most("kv_available").rank == "TP2"
    assert len(found.by_rank("kv_available")) == 3


def test_the_last_start_is_read():
    twice = text("vllm-0.6.4-rho-1b") + text("vllm-0.8.5-llama-3b-t4")
    found = parse_log(twice)
    assert found.version == "0.8.5.post1" and found.last("gpu_blocks").value == 1017
    assert len(found.all("gpu_blocks")) == 1 and "2 starts" in found.notes[0]


def test_the_last_start_of_llama_cpp_is_read():
    one = text("llama.cpp-2026-gemma2-2b-ollama")
    found = parse_log(one + one.replace("n_ubatch      = 256", "n_ubatch      = 512"))
    assert len(found.all("kv")) == 2 and found.settings["n_ubatch"] == 512 and "2 starts" in found.notes[0]


def test_a_draft_is_told_from_the_model():
    main = text("llama.cpp-2026-gemma4-12b-4slots")
    draft = "srv load_model: loading draft model '/m/mtp.gguf'\nllama_model_loader: loaded meta data with 24 key-value "
    draft += "pairs and 30 tensors from /m/mtp.gguf (version GGUF V3 (latest))\nprint_info: n_layer = 1\n"
    draft += "llama_context: n_ctx = 8192\nllama_kv_cache: size = 3.00 MiB ( 8192 cells, 1 layers, 4/1 seqs), "
    draft += "K (f16): 1.50 MiB, V (f16): 1.50 MiB"
    found = parse_log(main + draft)
    assert [round(t.value / MIB) for t in found.all("kv", "draft")] == [3]
    assert len(found.all("kv")) == 3 and "n_layer" not in found.settings
    pools = log("sglang-0.5-qwen3.8-27b-drafts")
    assert [round(t.value / GIB, 2) for t in pools.all("k", "draft")] == [1.08, 1.08]
    assert [round(t.value / GIB, 2) for t in pools.all("k", "")] == [3.46, 3.46]


def test_windowed_pools_of_sglang():
    """Numbers: sgl-project/sglang pull request 18039 (MiMo-V2-Flash, TP 4)."""
    found = parse_log(
        "[2026-01-31 13:50:39 TP2] Use sliding window memory pool. full_layer_tokens=375360, swa_layer_tokens=300288\n"
        "[2026-01-31 13:50:39 TP2] KV Cache is allocated. #tokens: 300288, K size: 8.38 GB, V size: 5.59 GB\n"
        "[2026-01-31 13:50:39 TP2] KV Cache is allocated. #tokens: 375360, K size: 1.20 GB, V size: 0.80 GB"
    )
    assert found.last("k", "windowed layers").value == 8.38 * GIB
    assert found.last("kv_tokens", "full layers").value == 375_360


def test_the_multi_line_profile_of_0_6_5():
    """Numbers: vllm-project/vllm pull request 10511 (Llama-3-8B on an H100)."""
    head = "INFO 12-13 19:54:18 worker.py:243] "
    lines = (
        "Memory profiling results:", "total_gpu_memory     79.22GiB", "gpu_memory_utilization       0.90",
        "the current vLLM instance can use    71.29GiB", "model weights take   14.96GiB",
        "non_torch_memory     1.79GiB", "PyTorch activation peak memory       1.26GiB",
        "available_kv_cache_memory    53.29GiB",
    )  # fmt: skip
    found = parse_log("\n".join(head + line for line in lines))
    wanted = [79.22, 71.29, 14.96, 1.79, 1.26, 53.29]
    names = ("total", "usable", "weights", "non_torch", "activation", "kv_available")
    assert numbers(found, *names) == pytest.approx(wanted)


def test_other_wordings():
    v1 = parse_log(
        "DEBUG Memory profiling takes 17.96 seconds. Total non KV cache memory: 17.12GiB; torch peak memory increase: "
        "1.89GiB; non-torch forward increase memory: 0.25GiB; weights memory: 14.99GiB.\n# GPU blocks: 127626"
    )
    assert numbers(v1, "activation", "non_torch", "weights", "gpu_blocks") == [1.89, 0.25, 14.99, 127_626]
    v29 = parse_log(
        "DEBUG Memory profiling takes 31.20 seconds. Total non KV cache memory: 63.53GiB; torch peak memory increase: "
        "2.04GiB; total consumed (from mem_get_info): 61.49GiB; weights memory: 55.87GiB.\n"
        "INFO Initial free memory: 78.7 GiB; Requested memory: 0.9 (util), 71.2 GiB"
    )
    assert numbers(v29, "activation", "consumed", "weights", "usable") == [2.04, 61.49, 55.87, 71.2]
    mla = parse_log("[x TP0] KV Cache is allocated. #tokens: 2659072, KV size: 87.01 GB\nsglang==0.5.9")
    assert mla.engine == "sglang" and mla.last("kv").value == 87.01 * GIB
    trt = parse_log(
        "[TRT-LLM] [RANK 0] [I] Peak memory during memory usage profiling (torch + non-torch): 91.46 GiB, available KV "
        "cache memory when calculating max tokens: 41.11 GiB, fraction is set 0.85, kv size is 35136. device total "
        "memory 139.81 GiB, , tmp kv_mem 0.29 GiB"
    )
    assert numbers(trt, "peak", "kv_available", "total", "profiling_cache") == [91.46, 41.11, 139.81, 0.29]
    assert trt.settings["utilization"] == 0.85 and trt.last("peak").rank == "rank 0"
    old = parse_log("llama_init_from_file: kv self size  =  400.00 MB")
    assert old.last("kv").value == 400 * MIB


def test_nothing_recognised_says_how_much_was_read():
    with pytest.raises(NothingRecognised, match=r"in 3 lines.*vllm.*llama") as caught:
        parse_log("one\ntwo\n\nthree")
    assert caught.value.lines == 3
    with pytest.raises(NothingRecognised):
        parse_log("")


def test_an_engine_can_be_forced_or_refused():
    assert parse_log(text("vllm-0.10-qwen3-235b-tp4"), "vllm-legacy").engine == "vllm"
    with pytest.raises(NothingRecognised):
        parse_log(text("vllm-0.10-qwen3-235b-tp4"), "sglang")
    with pytest.raises(UsageError, match="not known"):
        parse_log("x", "tgi")


def test_files_in_other_shapes(tmp_path):
    """Windows line ends, UTF-16 from a shell's redirect, colours without their escape, prefixes of a container."""
    plain = text("vllm-0.10-qwen3-235b-tp4")
    for name, data in {
        "crlf": plain.replace("\n", "\r\n").encode(),
        "utf16": b"\xff\xfe" + plain.encode("utf-16-le"),
        "bom": b"\xef\xbb\xbf" + plain.encode(),
        "docker": "\n".join(f"2026-07-08T22:40:06.098Z {line}" for line in plain.split("\n")).encode(),
    }.items():
        path = tmp_path / name
        path.write_bytes(data)
        assert read_log(path).last("kv_tokens").value == 178_880, name
    assert log("vllm-0.10-qwen3-235b-tp4").last("kv_available").rank == "rank 0"
    with pytest.raises(UsageError, match="cannot be read"):
        read_log(tmp_path / "absent")
    with pytest.raises(UsageError, match="cannot be read"):
        read_log(tmp_path)


def test_a_binary_file_is_not_a_log(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(bytes(range(256)) * 400)
    with pytest.raises(KvistError):
        read_log(path)


def test_text_after_a_progress_bar_counts():
    line = split_lines("10%|#\r100%|##|[2025-03-08 12:29:21 TP1] KV Cache\nnext")
    assert [x.number for x in line] == [1, 1, 2]


def test_every_shared_log_names_its_source():
    for path in LOGS.glob("*.log"):
        assert path.read_text(encoding="utf-8").startswith("# Numbers: "), path.name


SINGLE = [
    ("INFO [config.py:1] gpu_memory_utilization       0.90", {"utilization": 0.9}, {}),
    ("reserved 4.0 GiB memory for KV Cache as specified by kv_cache_memory_bytes config", {}, {"kv_available": 4.0}),
    ("INFO 07-02 [model.py:1727] Using max model len 262144", {"max_model_tokens": 262_144}, {}),
    ("WARNING [kv_cache_utils.py:1208] Add 3 padding layers, may waste at most 6.25% KV cache memory",
     {"padding_layers": 3}, {}),
    ("INFO [cache.py:280] Using fp8 data type to store kv cache. It reduces", {"kv_dtype": "fp8"}, {}),
    ("Using DeepSeek's fp8_ds_mla KV cache format.", {"kv_dtype": "fp8_ds_mla"}, {}),
    ("INFO [vllm.py:1006] Asynchronous scheduling is enabled.", {"async_scheduling": True}, {}),
    ("Encoder cache will be initialized with a budget of 65536 tokens, and profiled", {"encoder_tokens": 65_536}, {}),
    ("[2025-03-08 12:29:29 TP0] max_total_num_tokens=46611, chunked_prefill_size=-1, max_prefill_tokens=16384",
     {"chunked_prefill": False}, {"pool_tokens": 46_611}),
    ("[x TP0] max_total_num_tokens=46611, chunked_prefill_size=512, x", {"batched_tokens": 512}, {}),
    ("[2026-02-27 17:10:28 TP0] Using KV cache dtype: torch.bfloat16", {"kv_dtype": "torch.bfloat16"}, {}),
    ("llama_kv_cache_unified: kv_size = 4096, type_k = 'q8_0', type_v = 'f16', n_layer = 32, can_shift = 1",
     {"kv_size": 4096, "type_k": "q8_0", "type_v": "f16", "kv_dtype": "q8_0/f16"}, {}),
    ("0.00.302.568 I cmn  common_param:   - CUDA0   : NVIDIA GeForce RTX 5060 Ti (15849 MiB, 15712 MiB free)", {},
     {"total": 15_849 / 1024, "free": 15_712 / 1024}),
    ("llama_memory_breakdown_print: |   - CUDA0 (RTX 5090)   | 32606 = 1057 + (29365 = 28609 +     397 +     358) +"
     "        2183 |", {}, {"total": 32_606 / 1024, "model_total": 28_609 / 1024, "context": 397 / 1024,
                            "compute": 358 / 1024, "unaccounted": 2183 / 1024}),
    ("llama_context: pipeline parallelism enabled (n_copies=4)", {"copies": 4}, {}),
    ("llama_kv_cache_iswa: creating non-SWA KV cache, size = 8192 cells", {"full_cells": 8192}, {}),
    ("llama_kv_cache_iswa: creating     SWA KV cache, size = 1536 cells", {"window_cells": 1536}, {}),
    ("[TRT-LLM] [I] Memory used after loading model weights (inside torch) in memory usage profiling: 14.96 GiB", {},
     {"weights": 14.96}),
    ("[MemUsageChange] Allocated 614.03 MiB for execution context memory.", {}, {"activation": 614.03 / 1024}),
    ("[TensorRT-LLM][INFO] [MemUsageChange] Allocated 4.35 GB GPU memory for decoder.", {}, {"decoder": 4.35}),
]  # fmt: skip
ANCHORS = {
    "vllm": "GPU KV cache size: 16 tokens", "sglang": "[x TP0] Load weight begin. avail mem=9.00 GB",
    "llama.cpp": "x: KV self size = 1.00 MiB, K (f16): 0.50 MiB",
    "tensorrt-llm": "Number of blocks in KV cache primary pool: 1",
}  # fmt: skip


@pytest.mark.parametrize("line,settings,terms", SINGLE, ids=[line[:40] for line, _, _ in SINGLE])
def test_one_line(line, settings, terms):
    """Each line beside one that says whose log it is: exactly one engine reads it as meant."""
    found = [parse_log(f"{line}\n{anchor}", engine) for engine, anchor in ANCHORS.items()]
    right = [
        f for f in found
        if settings.items() <= f.settings.items()
        and all(t is not None and t.value == pytest.approx(v * GIB if t.unit == "bytes" else v)
                for t, v in ((f.last(name), v) for name, v in terms.items()))
    ]  # fmt: skip
    assert len(right) == 1


@pytest.mark.parametrize("line,version", [
    ("(APIServer pid=1) INFO [api_utils.py:339]  ▄▄ █  version 0.23.1rc1.dev531+ga65f93fb2",
     "0.23.1rc1.dev531+ga65f93fb2"),
    ("Initializing a V1 LLM engine (v0.14.1) with config: model='x'", "0.14.1"),
    ("sglang==0.5.9", "0.5.9"), ("sglang version: 0.4.6", "0.4.6"), ("sglang[all]==0.5.1.post3", "0.5.1.post3"),
    ("build: 4823 (564747bea) with cc", "4823"),
    ("TensorRT-LLM Version:   0.12.0.dev2024073000", "0.12.0.dev2024073000"),
])  # fmt: skip
def test_versions(line, version):
    assert version in {parse_log(f"{line}\n{anchor}", engine).version for engine, anchor in ANCHORS.items()}

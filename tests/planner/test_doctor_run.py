"""The run that a log describes, and the model's shape where the log prints it."""

import pytest
from doctor_kit import DEEPSEEK, GPT_OSS_120B, LLAMA_8B, QWEN36_27B, diagnosed, log, text, tokens, vllm

from kvist.errors import BadValue
from kvist.planner.doctor.diagnose import emulator_name, run_of_log, spec_of_log
from kvist.planner.doctor.read import parse_log
from kvist.spec.format import FOREIGN
from kvist.spec.layer import Full, Latent, NoMixer, Recurrent, Window
from kvist.units import GIB


def run(source, spec=LLAMA_8B):
    return run_of_log(parse_log(source) if isinstance(source, str) else source, spec)


@pytest.mark.parametrize("version,emulator,count", [
    ("0.6.4", "vllm-legacy", "layers"), ("0.9.1", "vllm-legacy", "layers"), ("0.9.2", "vllm-legacy", None),
    ("0.20.1", "vllm-legacy", None), ("0.20.2rc1", "vllm", None), ("0.27.1", "vllm", None),
])  # fmt: skip
def test_the_emulator_follows_the_version(version, emulator, count):
    found = parse_log(vllm(1.0, tokens(16), version=version))
    assert emulator_name(found) == emulator and run_of_log(found, LLAMA_8B).knobs.get("count") == count


def test_the_emulator_of_a_log_without_a_version():
    assert emulator_name(parse_log("Available KV cache memory: 1.0 GiB")) == "vllm-legacy"  # no longest request known
    assert emulator_name(parse_log("Using max model len 1024\nAvailable KV cache memory: 1.0 GiB")) == "vllm"
    assert emulator_name(parse_log("Using max model len 1024\n# GPU blocks: 7")) == "vllm-legacy"
    assert run(log("vllm-0.6.4-rho-1b")).knobs["count"] == "blocks"
    assert emulator_name(log("sglang-0.4-qwq-tp4")) == "sglang"


def test_a_run_of_vllm():
    found = run(log("vllm-0.23-qwen3.6-27b"), QWEN36_27B)
    assert (found.max_model_tokens, found.sequences, found.batched_tokens) == (262_144, 8, 65_536)
    assert found.kv_format.k == FOREIGN["fp8"] and found.available_bytes == int(47.84 * GIB)
    assert found.prefix_caching and found.place.devices == 1 and found.block_tokens is None
    assert "steps_in_flight" not in found.knobs


def test_drafts_prefix_caching_and_experts():
    spec = ", speculative_config=SpeculativeConfig(method='qwen3_next_mtp', model='m', num_spec_tokens=3)"
    found = run(vllm(1.0, stated=f"{spec}, enable_prefix_caching=False, enable_expert_parallel=True", tp=4))
    assert (found.draft_layers, found.draft_tokens, found.prefix_caching, found.place.ep) == (1, 3, False, 4)
    other = run(vllm(1.0, stated=", speculative_config=SpeculativeConfig(method='ngram', num_spec_tokens=5)"))
    assert (other.draft_layers, other.draft_tokens) == (0, 5)
    asked = "non-default args: {'model': 'x', 'speculative_config': {'method': 'mtp', 'num_speculative_tokens': 2}, "
    asked += "'tensor_parallel_size': 2}\nAvailable KV cache memory: 1.0 GiB"
    assert (run(asked).draft_tokens, run(asked).place.tp) == (2, 2)


def test_switches_of_vllm():
    off = run(vllm(1.0, stated=", disable_hybrid_kv_cache_manager=True"))
    assert off.knobs["hybrid"] is False
    packed = run(vllm(1.0, kv="fp8_ds_mla", version="0.27.0"), DEEPSEEK)
    assert packed.knobs["latent_row"] == "fp8_ds_mla" and packed.kv_format.k == FOREIGN["fp8"]
    both = vllm(1.0, "Asynchronous scheduling is enabled.", version="0.27.0")
    assert run(both).knobs["steps_in_flight"] == 2
    assert "steps_in_flight" not in run(both.replace("0.27.0", "0.26.0")).knobs
    assert run(log("vllm-0.8.5-llama-3b-t4")).knobs["swap_gib"] == 0
    assert run(vllm(1.0, kv="turbo3")).kv_format.name == "f16"  # unknown formats count as 16 bits


def test_degrees_are_seen_in_the_ranks():
    lines = [f"(Worker_PP{p}_TP{t} pid=1) Available KV cache memory: 3.0 GiB" for p in range(2) for t in range(4)]
    found = run("\n".join(lines))
    assert (found.place.tp, found.place.pp) == (4, 2)
    assert run(log("sglang-0.5-qwen3.5-397b-tp2"), QWEN36_27B).place.tp == 2
    with pytest.raises(BadValue):
        run("x with config: tensor_parallel_size=4, decode_context_parallel_size=3\nAvailable KV cache memory: 3 GiB")


def test_a_run_of_sglang():
    found = run(log("sglang-0.4-qwq-tp4"))
    assert found.available_bytes == pytest.approx((6.09 - 21.63 * 0.15) * GIB, rel=1e-6)
    assert (found.place.tp, found.sequences, found.batched_tokens) == (4, 2049, 2048)
    mixed = "[x TP0] Use sliding window memory pool. full_layer_tokens=375360, swa_layer_tokens=300288\n"
    mixed += (
        "[x TP0] KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 300288, K size: 8.38 GB, V size: 5.59 GB"
    )
    assert run(mixed, GPT_OSS_120B).knobs["window_pool_percent"] == 80
    assert run(mixed, GPT_OSS_120B).kv_format.k == FOREIGN["fp8"]
    assert run(log("sglang-0.5-qwen3.5-397b-tp2"), QWEN36_27B).knobs["state_slots"] == 82


def test_a_run_of_llama_cpp():
    found = run(log("llama.cpp-2026-gemma2-2b-ollama"))
    assert found.knobs == {"n_ctx": 16_384, "ubatch": 256, "unified": False, "windows": "full"}
    assert found.sequences == 2
    assert run(log("llama.cpp-2026-gemma4-12b-4slots")).knobs["unified"] is True
    assert run(log("llama.cpp-2026-gemma4-12b-4slots")).kv_format.k == FOREIGN["q8_0"]
    assert run(log("ik_llama.cpp-deepseek-v3-32k")).knobs["mla"] == "latent"
    assert run(log("ik_llama.cpp-gemma3-27b-32k")).knobs["mla"] == "expanded"


def test_padding_is_seen_in_the_cells():
    """ipex-llm's portable build: 2,528 cells are no multiple of 256, but of 32."""
    line = "llama_kv_cache_unified: size = 138.24 MiB ( 2528 cells, 28 layers, 1 seqs), K (f16): 69.12 MiB, "
    line += "V (f16): 69.12 MiB"
    assert run("llama_context: n_ctx = 2528\n" + line).knobs["pad"] == 32
    assert run("llama_context: n_ctx = 2529\n" + line.replace("2528", "2529")).knobs["pad"] == 1


def test_latents_of_older_files_are_expanded():
    """128 KV heads of 192 and 128: DeepSeek before its GGUF files held latents (llama.cpp 11397)."""
    facts = {"n_layer": 61, "n_head": 128, "n_head_kv": 128, "n_embd_head_k": 192, "n_embd_head_v": 128,
             "n_lora_kv": 512, "n_rot": 64}  # fmt: skip
    lines = [f"print_info: {k} = {v}" for k, v in facts.items()]
    lines += ["llama_context: n_ctx = 512", "llama_context: n_seq_max = 1"]
    sides = "K (f16): 1464.00 MiB, V (f16): 976.00 MiB"
    lines += [f"llama_kv_cache: size = 2440.00 MiB ( 512 cells, 61 layers, 1/1 seqs), {sides}"]
    found = parse_log("\n".join(lines))
    assert run_of_log(found, DEEPSEEK).knobs["mla"] == "expanded"
    spec = spec_of_log(found)
    assert spec is not None and {type(x.mixer) for x in spec.layers} == {Latent}
    assert {r.verdict for r in diagnosed(found).rows if r.name in ("kv", "k", "v")} == {"agrees"}


def test_shapes():
    gemma = spec_of_log(log("llama.cpp-2026-gemma2-2b-ollama"))
    mixers = [type(x.mixer) for x in gemma.layers]
    assert (mixers.count(Window), mixers.count(Full)) == (13, 13) and gemma.name == "Gemma 2.0 2b It Transformers"
    hybrid = spec_of_log(log("llama.cpp-2026-qwen3.5-9b-vulkan"))
    states = [x.mixer for x in hybrid.layers if isinstance(x.mixer, Recurrent)]
    assert len(states) == 24 and states[0].state_elements == 4096 * 128 and states[0].conv_elements == 3 * 8192
    assert spec_of_log(log("llama.cpp-2026-gemma4-12b-4slots")) is None  # no shape in this log
    assert spec_of_log(log("vllm-0.6.4-rho-1b")) is None


def test_layers_without_heads():
    lines = [
        f"print_info: {k} = {v}"
        for k, v in {
            "n_layer": 4,
            "n_head_kv": "[8, 0, 8, 0]",
            "n_head": 32,
            "n_embd_head_k": 128,
            "n_embd_head_v": 128,
        }.items()
    ]
    found = spec_of_log(parse_log("\n".join([*lines, "x: KV self size = 1.00 MiB, K (f16): 0.50 MiB"])))
    assert [type(x.mixer) for x in found.layers] == [Full, NoMixer, Full, NoMixer]


def test_the_model_can_be_the_logs_own_or_a_named_one():
    own = diagnosed(log("llama.cpp-6300-llama3-70b-rpc"))
    assert not own.notes and {r.verdict for r in own.rows if r.name == "kv"} == {"agrees"}
    none = diagnosed(text("llama.cpp-2026-gemma4-12b-4slots"))
    assert "name the model" in none.notes[0]

"""What real engines printed, from nothing but a config: the cases of shared/cases that follow from bytes per token."""

import json

import pytest

from kvist.spec.format import BF16, F16, Element, KVFormat
from kvist.spec.hf import read_config, read_shape
from kvist.spec.layer import Full, Latent, Recurrent, Window
from shared_configs import CASES, config, needs_shared

pytestmark = needs_shared

MIB, GIB = 1 << 20, 1 << 30
Q8, Q4 = Element("q8_0", 8, 16, 32), Element("q4_0", 4, 16, 32)
HALF = KVFormat(F16, F16)
BF = KVFormat(BF16, BF16)


def spec(stem):
    raw = config(stem)
    return read_shape(raw) if raw.get("_minimal") else read_config(raw)


def case(name):
    for line in CASES.read_text().splitlines():
        found = json.loads(line)
        if found["id"] == name:
            return found["reported"], found["expected"]["value"]
    raise KeyError(name)


def rate(model, fmt=HALF, *, kind=None, tp=1):
    """Bytes per token of one rank, of all layers or of one kind. Latents replicate over ranks."""
    layers = [x for x in model.layers if kind is None or isinstance(x.mixer, kind)]
    return sum(x.kv_bytes_per_token(fmt) // (1 if isinstance(x.mixer, Latent) else tp) for x in layers)


def expanded(model):
    """MLA kept as multi-head K and V, in f16."""
    return sum(x.q_heads * (x.key_dim + x.value_dim) * 2 for x in model.layers)


CELLS = {
    "ik-i539-q3-32b": ("Qwen__Qwen3-32B", HALF),
    "ik-i380-q3-30b": ("Qwen__Qwen3-30B-A3B", HALF),
    "ik-d357-q3-235b-f16": ("Qwen__Qwen3-235B-A22B", HALF),
    "ik-d357-q3-235b-q8": ("Qwen__Qwen3-235B-A22B", KVFormat(Q8, Q8)),
    "ik-i103-l31-8b-iq4k": ("meta-llama__Llama-3.1-8B-Instruct", KVFormat(Q4, F16)),
    "ik-p328-llama2-13b": ("meta-llama__Llama-2-13b-hf", HALF),
    "ik-d477-r1-q8-112k": ("deepseek-ai__DeepSeek-R1", KVFormat(Q8, Q8)),
    "ik-d258-v3-f16-32k": ("deepseek-ai__DeepSeek-V3", HALF),
    "ik-p386-dsv25-f16": ("deepseek-ai__DeepSeek-V2.5-1210", HALF),
    "ik-p616-kimi-k2-q8": ("moonshotai__Kimi-K2-Instruct", KVFormat(Q8, Q8)),
    "ik-d334-gemma3-27b-32k": ("google__gemma-3-27b-it", HALF),
    "ik-i539-gemma3-27b-128k": ("google__gemma-3-27b-it", HALF),
    "ik-p377-nemotron-ultra": ("nvidia__Llama-3_1-Nemotron-Ultra-253B-v1", KVFormat(Q8, Q4)),
    "ipex-r1d-qwen7b": ("deepseek-ai__DeepSeek-R1-Distill-Qwen-7B", HALF),
    "tq-q35-27b-q4": ("Qwen__Qwen3.5-27B", KVFormat(Q4, Q4)),
    "tq-q35-35b-q8": ("Qwen__Qwen3.5-35B-A3B", KVFormat(Q8, Q8)),
    "tq-q35-35b-f16": ("Qwen__Qwen3.5-35B-A3B", HALF),
}


@pytest.mark.parametrize("name", CELLS)
def test_llama_cpp_buffer_sizes(name):
    """K and V buffers of llama.cpp and its forks: cells x bytes per token (these charge windows in full)."""
    stem, fmt = CELLS[name]
    reported, mib = case(name)
    assert reported["cells"] * rate(spec(stem), fmt) / MIB == pytest.approx(mib, abs=0.0101)


@pytest.mark.parametrize("name,kind", [
    ("lc-gptoss120b-full", Full), ("lc-hexagon-gptoss-full", Full), ("lc-m5-gptoss20b-swa", Window),
    ("lc-hexagon-gptoss-swa", Window),
])  # fmt: skip
def test_windowed_and_full_layers_apart(name, kind):
    stem = "openai__gpt-oss-120b" if "120b" in name else "openai__gpt-oss-20b"
    fmt = KVFormat(Q8, Q8) if "hexagon" in name else HALF
    reported, mib = case(name)
    assert reported["cells"] * rate(spec(stem), fmt, kind=kind) / MIB == pytest.approx(mib, abs=0.02)


def test_gemma3_270m_with_four_slots():
    """24 MiB for 3 full layers of 8192 cells, 15 MiB a slot for 15 windowed layers of 1024 cells."""
    model, (_, mib) = spec("google__gemma-3-270m-it"), case("lc-gemma3-270m-4slots")
    assert 8192 * rate(model, kind=Full) / MIB + 4 * 1024 * rate(model, kind=Window) / MIB == mib


@pytest.mark.parametrize("name,stem", [
    ("ik-p616-kimi-k2-mha", "moonshotai__Kimi-K2-Instruct"), ("ik-d242-r1-mha-512", "deepseek-ai__DeepSeek-R1"),
    ("ik-i230-dscv2lite-mha", "deepseek-ai__DeepSeek-Coder-V2-Lite-Instruct"),
])  # fmt: skip
def test_mla_kept_expanded(name, stem):
    reported, mib = case(name)
    assert reported["cells"] * expanded(spec(stem)) / MIB == mib


def test_latent_stored_as_k_and_again_as_v():
    model, (reported, mib) = spec("deepseek-ai__DeepSeek-V3"), case("ik-p394-v3-mainline-16k")
    assert reported["cells"] * 61 * (576 + 512) * 2 / MIB == mib
    assert rate(model) == 61 * 576 * 2


POOLS = {
    "un-l32-3b-t4": ("meta-llama__Llama-3.2-3B-Instruct", 1),
    "un-mistral7b-bnb": ("mistralai__Mistral-7B-Instruct-v0.3", 1),
    "vl-10517-l31-8b-29k": ("meta-llama__Llama-3.1-8B-Instruct", 1),
    "un-q3-4b": ("Qwen__Qwen3-4B-Base", 1),
    "un-l31-8b-bnb": ("meta-llama__Llama-3.1-8B-Instruct", 1),
    "llmd-mistral-small": ("mistralai__Mistral-Small-3.2-24B-Instruct-2506", 1),
    "un-l32-3b-synth": ("meta-llama__Llama-3.2-3B-Instruct", 1),
    "un-q3-8b-fp8": ("Qwen__Qwen3-8B", 1),
    "un-q25vl-7b": ("Qwen__Qwen2.5-VL-7B-Instruct", 1),
    "un-phi4-14b": ("microsoft__phi-4", 1),
    "un-l32-3b-a100": ("meta-llama__Llama-3.2-3B-Instruct", 1),
    "rc-kimi-k2t-tp8": ("moonshotai__Kimi-K2-Thinking", 8),
}


@pytest.mark.parametrize("name", POOLS)
def test_vllm_tokens_from_available_gib(name):
    """Printed tokens lie between what the printed GiB give when rounded down and up (two decimals), less a block."""
    stem, tp = POOLS[name]
    reported, tokens = case(name)
    per_token, gib = rate(spec(stem), tp=tp), reported["available_kv_gib"]
    low, high = ((gib + e) * GIB / per_token for e in (-0.005, 0.005))
    assert low - 128 <= tokens <= high


@pytest.mark.parametrize("name,stem,tp", [
    ("orlhf-336-l3-70b", "meta-llama__Meta-Llama-3.1-70B", 2), ("vl-3120-opt125m", "facebook__opt-125m", 1),
    ("idx-commandr-tp8", "CohereForAI__c4ai-command-r-08-2024", 8),
])  # fmt: skip
def test_vllm_swap_blocks(name, stem, tp):
    """4 GiB of swap in blocks of 16 tokens: exact, no rounding in between."""
    assert case(name)[1] == 4 * GIB // (16 * rate(spec(stem), tp=tp))


def test_one_long_request():
    assert 1_048_576 * rate(spec("mistralai__Mistral-Small-4-119B-2603")) / GIB == case("kaito-2132-mistral-small4")[1]
    gpt = spec("openai__gpt-oss-120b")
    window = 73 * 16 * rate(gpt, kind=Window)  # vLLM holds window - 1 + batch in blocks of 16
    assert (131_072 * rate(gpt, kind=Full) + window) / GIB == pytest.approx(case("vl-27508-gptoss120b")[1], abs=0.005)


def test_sglang_keys():
    q3, granite = spec("Qwen__Qwen3-235B-A22B-FP8"), spec("ibm-granite__granite-4.0-h-small")
    for name, model, tp in (("sg-21348-q3-235b", q3, 4), ("idx-sg-granite4-small", granite, 1)):
        reported, gib = case(name)
        assert reported["kv_tokens"] * rate(model, tp=tp) / 2 / GIB == pytest.approx(gib, abs=0.005)


@pytest.mark.parametrize(
    "name,stem", [("idx-q35-4b-state", "Qwen__Qwen3.5-4B"), ("tq-q35-27b-state", "Qwen__Qwen3.5-27B")]
)
def test_llama_cpp_states(name, stem):
    reported, mib = case(name)
    model = spec(stem)
    assert reported["cells"] * model.state_elements * 4 / MIB == mib
    states = [x.mixer.state_elements for x in model.layers if isinstance(x.mixer, Recurrent)]
    assert reported["cells"] * sum(states) * 4 / MIB == reported["kv_mib_k"]


def test_gemma4_e2b_shares_and_fits_as_vllm_says():
    """15 of 35 layers own KV: 3 full of 512, 12 windowed of 256."""
    model = spec("google__gemma-4-E2B-it")
    assert sum(x.owns_cache for x in model.layers) == 15
    assert rate(model, kind=Full) == 3 * 2 * 512 * 2 and rate(model, kind=Window) == 12 * 2 * 256 * 2


LOGICAL = {
    "meta-llama__Llama-3.1-8B-Instruct": 131_072,
    "Qwen__Qwen3-235B-A22B": 192_512,
    "deepseek-ai__DeepSeek-V3": 70_272,
    "moonshotai__Kimi-K2-Instruct": 70_272,
    "openai__gpt-oss-120b": 37_008,
    "google__gemma-4-26B-A4B": 26_880,
    "nvidia__Gemma-4-31B-IT-NVFP4": 107_520,
    "Qwen__Qwen3.5-35B-A3B": 22_445,
    "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": 7642,
    "nvidia__Nemotron-H-56B-Base-8K": 68_811,
    "MiniMaxAI__MiniMax-M2.5": 253_952,
    "Qwen__Qwen3-VL-8B-Instruct": 147_456,
}


@pytest.mark.parametrize("stem", LOGICAL)
def test_logical_truth_at_32k(stem):
    """capacity.md, section 3: bytes per token at 32,768 tokens in bf16; states in f32, their filters in bf16."""
    model = spec(stem)
    state = sum(
        4 * x.mixer.state_elements + 2 * x.mixer.conv_elements for x in model.layers if isinstance(x.mixer, Recurrent)
    )
    assert (model.kv_bytes(32_768, BF) + state) / 32_768 == pytest.approx(LOGICAL[stem], abs=1)

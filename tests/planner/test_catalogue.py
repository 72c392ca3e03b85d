"""The bundled models: what they say, how names find them, and that they agree with the configs they come from."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "spec"))

from kvist.errors import BadValue, CorruptFile
from kvist.planner.models import catalogue
from kvist.planner.models.catalogue import candidates, names, nearest, rows_of, same_model, spec_named
from kvist.planner.weights.facts import WeightFormat, assumed_weights
from kvist.spec.format import BF16, KVFormat
from kvist.spec.hf import read_config
from kvist.spec.weights import weight_elements
from shared_configs import config, needs_shared

HALF = KVFormat(BF16, BF16)


def test_there_are_many_and_every_one_loads():
    entries = [spec_named(name) for name in names()]
    assert len({entry.spec.layers for entry in entries}) >= 75
    for entry in entries:
        assert entry.spec.name == entry.name and "/" in entry.name
        assert entry.date and entry.source and entry.evidence in ("config", "facts", "log")
        assert WeightFormat.parse(entry.weights_format).text == entry.weights_format
        assert entry.spec.kv_bytes_per_token(HALF) > 0
        if entry.evidence == "log":
            assert entry.spec.shape_only and any("printed" in note for note in entry.spec.notes)
        if not entry.spec.shape_only:
            assert assumed_weights(entry.spec, WeightFormat.parse(entry.weights_format)).total_bytes > 0


PUBLISHED = {
    "meta-llama/Llama-3.2-1B": 1.236e9, "meta-llama/Llama-3.2-3B": 3.213e9, "meta-llama/Meta-Llama-3-8B": 8.03e9,
    "Qwen/Qwen2.5-0.5B": 0.494e9, "Qwen/Qwen2.5-14B": 14.77e9, "Qwen/Qwen2.5-72B": 72.7e9, "Qwen/Qwen3-4B": 4.02e9,
    "google/gemma-2-2b": 2.61e9, "google/gemma-2-9b": 9.24e9, "google/gemma-2-27b": 27.2e9,
    "google/gemma-3-270m": 0.268e9, "google/gemma-3-1b-it": 1.0e9, "microsoft/Phi-3-mini-4k-instruct": 3.82e9,
    "microsoft/phi-4": 14.66e9, "mistralai/Mistral-7B-v0.3": 7.25e9, "mistralai/Mistral-Small-24B-Base-2501": 23.57e9,
    "HuggingFaceTB/SmolLM2-360M": 0.362e9, "HuggingFaceTB/SmolLM3-3B": 3.08e9, "allenai/OLMo-2-1124-7B": 7.30e9,
    "allenai/OLMoE-1B-7B-0125-Instruct": 6.92e9, "01-ai/Yi-6B": 6.06e9, "openai-community/gpt2-xl": 1.56e9,
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": 1.10e9, "ibm-granite/granite-4.0-h-small": 32.2e9,
    "Qwen/Qwen3-Next-80B-A3B-Instruct": 79.7e9, "zai-org/GLM-4.5-Air": 106.9e9, "Qwen/Qwen1.5-MoE-A2.7B": 14.3e9,
    "deepseek-ai/DeepSeek-V2.5": 235.7e9, "mistralai/Mistral-Large-Instruct-2411": 122.6e9,
}  # fmt: skip
"""Totals that the models' own pages state."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_weights_agree_with_the_published_totals(name):
    assert weight_elements(spec_named(name).spec).total == pytest.approx(PUBLISHED[name], rel=0.003)


@needs_shared
@pytest.mark.parametrize(
    "stem",
    ["deepseek-ai__DeepSeek-V3.2", "google__gemma-4-26B-A4B", "moonshotai__Kimi-K3", "openai__gpt-oss-120b",
     "nvidia__Llama-3_3-Nemotron-Super-49B-v1", "Qwen__Qwen3.5-397B-A17B", "sgl-project__DeepSeek-V4-Pro-FP8"],
)  # fmt: skip
def test_an_entry_is_what_its_config_says(stem):
    name = stem.replace("__", "/", 1)
    assert spec_named(name).spec == read_config(config(stem), name=name)


SAME = [
    ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct"),
    ("META-LLAMA/llama-3.1-8b-instruct", "meta-llama/Llama-3.1-8B-Instruct"),
    ("Llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
    ("llama 3.1 8b", "meta-llama/Llama-3.1-8B"),
    ("Llama_3.1_8B", "meta-llama/Llama-3.1-8B"),
    ("Qwen3-32B-FP8", "Qwen/Qwen3-32B-FP8"),
    ("gpt oss 120b", "openai/gpt-oss-120b"),
    ("Llama-3-8B", "meta-llama/Meta-Llama-3-8B"),
    ("gemma 3 27b", "google/gemma-3-27b-it"),
    ("Qwen3.5-122B", "Qwen/Qwen3.5-122B-A10B"),
    ("unsloth/Llama-3.2-1B", "meta-llama/Llama-3.2-1B"),
]


@pytest.mark.parametrize("asked,name", SAME)
def test_names_are_found_in_many_spellings(asked, name):
    assert spec_named(asked).name == name


def test_an_exact_name_wins_over_longer_ones():
    assert spec_named("deepseek-v3").name == "deepseek-ai/DeepSeek-V3"
    assert spec_named("phi-4").name == "microsoft/phi-4"
    assert len(candidates("deepseek-v3")) == 1


def test_several_matches_are_listed():
    with pytest.raises(BadValue, match="several match.*openai/gpt-oss-120b, openai/gpt-oss-20b"):
        spec_named("gpt-oss")


def test_one_shape_in_several_formats_means_the_widest():
    assert len(candidates("Laguna-S")) == 2
    assert spec_named("Laguna-S").name == "poolside/Laguna-S-2.1"


@pytest.mark.parametrize("asked,near", [("Qwen3-33B", "Qwen/Qwen3-32B"), ("gpt-oss-121b", "openai/gpt-oss-120b")])
def test_unknown_names_show_the_nearest(asked, near):
    assert near in nearest(asked)
    with pytest.raises(BadValue, match="the nearest names are") as caught:
        spec_named(asked)
    assert near in str(caught.value)


@pytest.mark.parametrize("asked", ["", "/", "???", "x" * 100_000, "no-such-thing-whatever"])
def test_nonsense_is_refused_shortly(asked):
    with pytest.raises(BadValue) as caught:
        spec_named(asked)
    assert len(str(caught.value)) < 700


def test_the_same_model_under_another_owner():
    assert same_model("somebody/Qwen3-8B").name == "Qwen/Qwen3-8B"
    assert same_model("somebody/Qwen3-8B-tuned") is None


def test_a_printed_log_and_published_facts_are_marked():
    laguna = spec_named("poolside/Laguna-S-2.1")
    assert laguna.evidence == "facts" and laguna.spec.shape_only
    assert sum(not layer.retention.bounded for layer in laguna.spec.layers) == 12
    assert sum(layer.cache_parts[0].row_bytes(HALF) for layer in laguna.spec.layers) == 48 * 8 * 256 * 2
    assert spec_named("google/gemma-4-12b-it").evidence == "log"


def test_an_unreadable_catalogue_says_so():
    good = {"format": 1, "date": "2026-01-01", "models": []}
    assert rows_of(json.dumps(good).encode(), "models.json") == {}
    for text in (b"{", b"[]", b'{"format": 9}', json.dumps({**good, "models": [{"name": 3}]}).encode()):
        with pytest.raises(CorruptFile, match=r"models\.json"):
            rows_of(text, "models.json")


def test_data_is_one_model_a_line_and_no_config_text():
    text = catalogue.DATA.read_text()
    data = json.loads(text)
    assert len(text.splitlines()) == len(data["models"]) + 2
    for word in ("hidden_size", "num_hidden_layers", "torch_dtype", "quantization_config", "architectures"):
        assert word not in text


def test_one_lookup_is_quick():
    """Parsing the file, finding a name and building its spec, in a fresh process: 30 ms of CPU, without imports."""
    code = (
        "import time; from kvist.planner.models.catalogue import spec_named; t = time.process_time(); "
        "spec_named('qwen3-235b-a22b'); print(time.process_time() - t)"
    )
    seconds = [float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(3)]
    assert min(seconds) < 0.03

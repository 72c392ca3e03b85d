"""From what a person writes to a spec and its weights: paths, the hub's cache, the catalogue, the hub."""

import json
import os
import struct
import sys
import time
import types
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "spec"))

from gguf_maker import KEYS, blocks, build
from hypothesis import given
from hypothesis import strategies as st

from kvist.errors import BadValue, KvistError, MissingField, ModelError
from kvist.planner.models.find import find
from kvist.planner.models.hub import cache_folder, cached_snapshot, is_id
from shared_configs import CONFIGS, LLAMA, config, needs_shared

UNUSUAL = LLAMA | {"num_hidden_layers": 7}


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    """No test sees this machine's cache or the network."""
    for name in ("HF_HOME", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    return tmp_path / "hub"


def put(folder, raw=UNUSUAL, **files):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw))
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(json.dumps(content))
    return folder


def weights_file(path, n_bytes):
    header = json.dumps({"a": {"dtype": "U8", "shape": [n_bytes], "data_offsets": [0, n_bytes]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(n_bytes))


# --- paths ---


def test_a_folder_with_weights(tmp_path):
    folder = put(tmp_path / "mine")
    weights_file(folder / "model.safetensors", 1234)
    found = find(str(folder))
    assert found.spec.name == "mine" and len(found.spec.layers) == 7
    assert (found.weights.total_bytes, found.weights.tag) == (1234, "exact")
    assert found.spec.weight_bytes == 1234
    assert found.origin == f"folder: {folder}"
    for inside in ("config.json", "model.safetensors"):
        assert find(str(folder / inside)).weights == found.weights


def test_a_config_alone_has_assumed_weights(tmp_path):
    quantised = UNUSUAL | {"quantization_config": {"quant_method": "fp8"}}
    (tmp_path / "some__model.json").write_text(json.dumps(quantised))
    found = find(str(tmp_path / "some__model.json"))
    assert found.spec.name == "some__model"
    assert found.weights.tag == "assumed" and found.weight_format.text == "fp8"


def test_weights_beside_an_unrelated_config_are_not_its_own(tmp_path):
    (tmp_path / "other.json").write_text(json.dumps(UNUSUAL))
    weights_file(tmp_path / "model.safetensors", 1234)
    assert find(str(tmp_path / "other.json")).weights.tag == "assumed"


def test_a_quantisation_beside_the_config_counts(tmp_path):
    beside = {"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}}
    folder = put(tmp_path / "packed", hf_quant_config__json=beside)
    assert find(str(folder)).weight_format.text == "nvfp4"
    strange = UNUSUAL | {"quantization_config": {"quant_method": "newest"}}
    assert any("'newest', which is not known" in note for note in find(str(put(tmp_path / "new", strange))).notes)


def test_a_gguf_file_and_its_folder(tmp_path):
    path = tmp_path / "tiny.gguf"
    path.write_bytes(build("llama", KEYS, blocks()))
    found = find(str(path))
    assert found.weights.tag == "exact" and found.weights.total_bytes == found.spec.weight_bytes
    assert find(str(tmp_path)).spec == found.spec


def test_a_mere_shape_must_be_asked_for(tmp_path):
    raw = {"num_hidden_layers": 3, "num_key_value_heads": 2, "head_dim": 64}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with pytest.raises(MissingField):
        find(str(tmp_path))
    found = find(str(tmp_path), shape_only=True)
    assert found.spec.shape_only and found.weights.total_bytes == 0
    full = find(str(put(tmp_path / "full")), shape_only=True)
    assert not full.spec.shape_only


@pytest.mark.parametrize("text", ["./nothing.json", "/no/such/place", "a/b/c", "~/nothing-here.gguf", "model.gguf"])
def test_what_looks_like_a_path_must_exist(text):
    with pytest.raises(BadValue, match="an existing folder"):
        find(text)


def test_a_folder_without_a_model(tmp_path):
    with pytest.raises(MissingField, match=r"config\.json"):
        find(str(tmp_path))


# --- the cache ---


def test_the_hubs_cache_goes_before_the_catalogue(empty_cache):
    assert find("Qwen/Qwen3-8B").origin.startswith("bundled")
    snapshots = empty_cache / "models--Qwen--Qwen3-8B" / "snapshots"
    put(snapshots / "aaa")
    found = find("Qwen/Qwen3-8B")
    assert len(found.spec.layers) == 7 and found.spec.name == "Qwen/Qwen3-8B"
    assert found.origin.startswith("Hugging Face cache")


def test_the_snapshot_that_main_names_is_taken(empty_cache):
    model = empty_cache / "models--a--b"
    old, new = put(model / "snapshots" / "old", UNUSUAL), put(model / "snapshots" / "new", LLAMA)
    os.utime(old, (1, 1))
    assert cached_snapshot("a/b") == new
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("old\n")
    assert cached_snapshot("a/b") == old
    (model / "snapshots" / "partial").mkdir()
    (model / "refs" / "main").write_text("partial")
    assert cached_snapshot("a/b") in (old, new)


def test_where_the_cache_is(monkeypatch, tmp_path):
    assert cache_folder() == tmp_path / "hub"
    monkeypatch.delenv("HF_HUB_CACHE")
    monkeypatch.setenv("HF_HOME", "/some/where")
    assert cache_folder() == Path("/some/where/hub")
    monkeypatch.delenv("HF_HOME")
    assert cache_folder() == Path("~/.cache/huggingface/hub").expanduser()


@pytest.mark.parametrize("text,good", [("a/b", True), ("a/b/c", False), ("a", False), ("../b", False), ("a/..", False),
                                       ("a/b..c", False), ("/a", False), ("a b/c", False)])  # fmt: skip
def test_what_an_id_is(text, good):
    assert is_id(text) == good
    if not good:
        assert cached_snapshot(text) is None


# --- the catalogue ---


def test_a_bundled_name():
    found = find("llama 3.1 8b", online=False)
    assert found.spec.name == "meta-llama/Llama-3.1-8B"
    assert found.weights.tag == "assumed" and found.weights.total_bytes == pytest.approx(16.06e9, rel=1e-3)
    assert "litgpt" in found.origin


def test_bundled_weights_include_towers_and_published_totals():
    vision = find("Mistral-Small-3.2-24B-Instruct-2506")
    assert vision.weights.beside_elements > 4e8 and "beside the decoder" in vision.weights.how
    assert find("Laguna-S-2.1").weights.total_bytes == pytest.approx(2 * 117.6e9)


def test_an_ambiguous_name_lists_what_matches():
    with pytest.raises(BadValue, match="several match"):
        find("gpt-oss")


def test_another_owners_copy_is_said_to_be_one():
    found = find("someone/Qwen3-8B", online=False)
    assert found.spec.name == "Qwen/Qwen3-8B"
    assert found.notes[0].startswith("someone/Qwen3-8B itself was not found (offline")


@pytest.mark.parametrize("text", ["Qwen3-33B", "nobody/nothing-7B", ""])
def test_nothing_says_where_it_looked(text, empty_cache):
    with pytest.raises(BadValue) as caught:
        find(text)
    assert str(empty_cache) in str(caught.value) and "bundled models" in str(caught.value)
    if text == "Qwen3-33B":
        assert "Qwen/Qwen3-32B" in str(caught.value)
    if "/" in text:
        assert "huggingface_hub is not installed" in str(caught.value)


# --- the hub ---


def hub(monkeypatch, tmp_path, files, sizes=(), fail=None):
    """A hub that has one model, ``new/model``."""
    asked = []

    class Api:
        def model_info(self, model_id, *, files_metadata, timeout):
            asked.append((model_id, timeout))
            if fail:
                raise fail
            all_sizes = {name: len(json.dumps(content)) for name, content in files.items()} | dict(sizes)
            return types.SimpleNamespace(
                siblings=[types.SimpleNamespace(rfilename=name, size=n) for name, n in all_sizes.items()]
            )

    def download(model_id, name, *, etag_timeout):
        asked.append(name)
        (tmp_path / name).write_text(json.dumps(files[name]))
        return str(tmp_path / name)

    module = types.SimpleNamespace(HfApi=Api, hf_hub_download=download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    return asked


def test_the_hub_is_asked_for_small_files_only(monkeypatch, tmp_path):
    index = {"metadata": {"total_size": 4321}, "weight_map": {"a": "m-1.safetensors"}}
    files = {"config.json": UNUSUAL, "model.safetensors.index.json": index}
    asked = hub(monkeypatch, tmp_path, files, {"m-1.safetensors": 10**12})
    found = find("new/model")
    assert found.spec.name == "new/model" and len(found.spec.layers) == 7
    assert (found.weights.total_bytes, found.weights.tag) == (4321, "exact")
    assert asked[0] == ("new/model", 5.0) and set(asked[1:]) == set(files)


def test_a_single_weights_file_is_weighed_by_its_size(monkeypatch, tmp_path):
    hub(monkeypatch, tmp_path, {"config.json": UNUSUAL}, {"model.safetensors": 777})
    assert find("new/model").weights.total_bytes == 777


def test_the_hub_is_asked_last_and_not_when_offline(monkeypatch, tmp_path):
    asked = hub(monkeypatch, tmp_path, {"config.json": UNUSUAL})
    assert find("Qwen/Qwen3-8B").origin.startswith("bundled")
    with pytest.raises(BadValue, match="offline"):
        find("new/model", online=False)
    assert asked == []


def test_a_copy_on_the_hub_goes_before_a_bundled_namesake(monkeypatch, tmp_path):
    hub(monkeypatch, tmp_path, {"config.json": UNUSUAL})
    assert find("someone/Qwen3-8B").origin == "Hugging Face hub: someone/Qwen3-8B"


def test_a_hub_that_fails_is_quoted(monkeypatch, tmp_path):
    hub(monkeypatch, tmp_path, {}, fail=OSError("no route\nto host"))
    with pytest.raises(BadValue, match="OSError: no route;"):
        find("new/model")
    assert find("someone/Qwen3-8B").spec.name == "Qwen/Qwen3-8B"


def test_a_hub_model_without_or_with_a_huge_config(monkeypatch, tmp_path):
    hub(monkeypatch, tmp_path, {}, {"x.bin": 3})
    with pytest.raises(BadValue, match=r"no config\.json"):
        find("new/model")
    hub(monkeypatch, tmp_path, {"config.json": UNUSUAL}, {"config.json": 1 << 40})
    with pytest.raises(ModelError, match="no config"):
        find("new/model")


# --- all of it ---


@given(st.text(max_size=40))
def test_any_text_gives_a_model_or_an_error_of_ours(text):
    try:
        find(text, online=False)
    except KvistError:
        pass


def test_strange_paths(tmp_path):
    for text in ("\0", "a" * 5000, "~nobody-such/x", "/dev/null/x"):
        with pytest.raises(KvistError):
            find(text, online=False)


@needs_shared
def test_full_configs_are_read_quickly():
    """50 ms each, counted as CPU time and the best of a few tries: the machine may be busy."""
    for path in sorted(CONFIGS.glob("*.json")):
        if not config(path.stem).get("_minimal"):
            assert any(_seconds(path) < 0.05 for _ in range(10)), path.stem


def _seconds(path):
    start = time.process_time()
    assert find(str(path)).weights.total_bytes > 0
    return time.process_time() - start

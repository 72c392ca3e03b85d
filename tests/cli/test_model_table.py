"""The table of ``kvist model``: its data add up, and its drawing says what the data say."""

import json
from pathlib import Path

import pytest

from kvist.cli.model import describe, render
from kvist.cli.model_facts import ranges
from kvist.spec.format import KVFormat
from kvist.spec.hf import read_config, read_shape
from kvist.spec.layout import plan_layout
from kvist.units import format_bytes
from real_model import packaged

rich = pytest.importorskip("rich.console")

CONFIGS = Path(__file__).parents[3] / "shared" / "data" / "model_configs"
SOME = (
    "google__gemma-3-270m-it", "deepseek-ai__DeepSeek-V3", "Qwen__Qwen3.5-35B-A3B", "openai__gpt-oss-20b",
    "deepseek-ai__DeepSeek-V4-Flash", "google__gemma-4-E2B-it", "nvidia__Llama-3_3-Nemotron-Super-49B-v1",
    "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "meta-llama__Llama-4-Scout-17B-16E-Instruct",
)  # fmt: skip
LLAMA = {
    "model_type": "llama", "num_hidden_layers": 30, "hidden_size": 576, "num_attention_heads": 9,
    "num_key_value_heads": 3, "intermediate_size": 1536, "vocab_size": 49_152, "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5, "rope_theta": 100_000, "tie_word_embeddings": True,
}  # fmt: skip


def spec_of(stem):
    path = CONFIGS / f"{stem}.json"
    if not path.is_file():
        pytest.skip(f"no shared config {path}")
    return read_shape(path) if json.loads(path.read_bytes()).get("_minimal") else read_config(path)


def drawn(spec, fmt="f16", width=110):
    console = rich.Console(width=width, record=True, file=open("/dev/null", "w"), color_system=None)  # noqa: SIM115
    render(spec, plan_layout(spec, KVFormat.parse(fmt)), console)
    console.file.close()
    return console.export_text()


@pytest.mark.parametrize("numbers,text", [
    ([0, 1, 2, 4], "0-2, 4"), ([7], "7"), ([0, 2], "0, 2"), ([5, 11, 17, 23], "5, 11, ... 23"),
    (list(range(40)), "0-39"), ([0, 1, 3, 4, 6, 7, 9, 10, 12, 13, 15, 16, 18, 19], "0-1, 3-4, 6-7, 9-10, ... 18-19"),
])  # fmt: skip
def test_ranges(numbers, text):
    assert ranges(numbers) == text


def test_smollm2():
    text = drawn(read_config(LLAMA, name="SmolLM2"))
    for part in (
        "SmolLM2", "llama · 30 layers", "134.5M weights", "context 8,192", "46,080", "23,040", "3 x (k 64 + v 64)",
        "blocks of 720 KiB (737,280 bytes)", "2 x 64 x 16 f16", "any tail can be cut", "runs of 32 tokens",
    ):  # fmt: skip
        assert part in text, part
    assert "8,192 tokens (full)" in text and "32,768" not in text


def test_packed_tiles_have_pairs_side_by_side_and_scales_behind():
    text = " ".join(drawn(read_config(LLAMA, name="SmolLM2"), "f16/int8t", width=140).split())
    assert "2 x 64 x 16 f16" in text and "16 x 64 x 2 int8t, 32 scales f16" in text
    text = " ".join(drawn(read_config(LLAMA, name="SmolLM2"), "int8t", width=140).split())
    assert "2 x 32 x 16 x 2 int8t, 32 scales f16" in text and "int8t 11,880" in text


@pytest.mark.parametrize("stem", SOME)
def test_data_add_up(stem):
    spec = spec_of(stem)
    layout = plan_layout(spec, KVFormat())
    d = describe(spec, layout)
    assert json.loads(json.dumps(d)) == d
    assert sorted(i for run in d["runs"] for i in run["layers"]) == list(range(len(spec.layers)))
    assert (
        sum(run["bytes_per_token"] for run in d["runs"])
        == d["bytes_per_token"]["f16"]
        == spec.kv_bytes_per_token(KVFormat())
    )
    longest = max(map(int, d["sequence_bytes"]["f16"]))
    assert sum(run["sequence_bytes"] for run in d["runs"]) == d["sequence_bytes"]["f16"][str(longest)]
    assert d["sequence_bytes"]["f16"]["1024"] == spec.kv_bytes(1024, KVFormat()) + d["state_bytes"]
    assert all(g["used_bytes"] + g["padding_bytes"] == d["block_bytes"] for g in d["groups"])
    for group in d["groups"]:
        last = group["streams"][-1]
        assert last["offset_bytes"] + last["bytes"] <= group["head_bytes"]
        assert group["head_bytes"] * group["kv_heads"] == group["record_bytes"]


@pytest.mark.parametrize("stem", SOME)
def test_every_model_can_be_drawn_in_a_narrow_terminal(stem):
    text = drawn(spec_of(stem), width=80)
    assert max(map(len, text.splitlines())) <= 80
    assert "What one sequence costs" in text and "[layer][head]" in text


@pytest.mark.parametrize("stem,parts", [
    ("google__gemma-3-270m-it", ["0-4, 6-10, 12-16", "the last 512", "windows of 512", "only the shape of its cache"]),
    ("deepseek-ai__DeepSeek-V3", ["latent 576", "671B weights, 37.55B of them active", "1 multi-token"]),
    ("Qwen__Qwen3.5-35B-A3B", ["a state (gated delta)", "62.81 MiB of each is state", "snapshot", "gated delta rule"]),
    ("openai__gpt-oss-20b", ["0, 2, ... 22", "the last 128", "8 x (k 64 + v 64)"]),
    ("deepseek-ai__DeepSeek-V4-Flash", ["1 row for every 4", "index 128"]),
    ("google__gemma-4-E2B-it", ["layer 13's cache", "nothing"]),
    ("meta-llama__Llama-4-Scout-17B-16E-Instruct", ["its chunk of 8,192"]),
])  # fmt: skip
def test_what_people_look_for_is_there(stem, parts):
    text = " ".join(drawn(spec_of(stem), width=140).split())
    for part in parts:
        assert part in text, part


def shown(*args):
    from typer.testing import CliRunner

    from kvist.cli.main import app

    done = CliRunner().invoke(app, ["model", *map(str, args)])
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def test_it_says_what_the_weights_are_kept_as():
    """What ``--dtype packed`` will hold, from the file's header: most first, in text and as JSON."""
    loaded = json.loads(shown(packaged(), "--json"))["loaded_bytes"]
    assert list(loaded) == ["w4", "w8", "f32"]
    from kvist.model.weights import load_weights
    from kvist.spec.read import read_spec

    assert loaded == load_weights(packaged(), read_spec(packaged()), dtype="packed").kind_bytes
    parts = ", ".join(f"{kind} {format_bytes(n)}" for kind, n in loaded.items())
    assert f"weights {parts} in memory (--dtype packed)" in shown(packaged())


def test_without_files_nothing_is_said_of_kinds(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert json.loads(shown(tmp_path, "--json"))["loaded_bytes"] == {}
    assert "--dtype packed" not in shown(tmp_path)


def test_a_folder_half_fetched_is_still_described(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 20)
    text = shown(tmp_path)
    assert "note weights:" in text and "llama" in text and "--dtype packed" not in text


def test_brackets_are_not_markup():
    text = drawn(read_config(LLAMA | {"hidden_act": "[red]odd"}, name="a [bold] name"))
    assert "a [bold] name" in text and "activation [red]odd" in text


def test_the_plain_install_shows_models_and_says_what_running_needs(tmp_path):
    """Without torch and its companions ``kvist model`` works, and ``kvist generate`` says what to install."""
    import json
    import subprocess
    import sys
    import textwrap

    config = tmp_path / "config.json"
    small = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    more = {"num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 512}
    rest = {"rms_norm_eps": 1e-5, "rope_theta": 1e4, "tie_word_embeddings": False, "hidden_act": "silu"}
    config.write_text(json.dumps(small | more | rest))
    code = textwrap.dedent("""
        import sys
        class Absent:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in ("torch", "tokenizers", "gguf", "safetensors", "jinja2", "msgpack"):
                    raise ModuleNotFoundError("No module named " + repr(name), name=name)
        sys.meta_path.insert(0, Absent())
        from kvist.cli.entry import run
        run()
    """)
    shown = subprocess.run([sys.executable, "-c", code, "model", str(config)], capture_output=True, text=True)
    assert shown.returncode == 0 and "llama" in shown.stdout, shown.stderr
    refused = subprocess.run([sys.executable, "-c", code, "generate", "x"], capture_output=True, text=True)
    assert refused.returncode == 1
    assert "pip install 'kvist[demo]'" in refused.stderr and refused.stderr.count("\n") == 1

"""The commands as a person runs them: exit codes, one-line errors, JSON, ledger, batch."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from cache_kit import kvist as inside  # noqa: E402  (in this process, where torch is loaded already)

from real_model import packaged  # noqa: E402

FIELDS = {
    "text", "token_ids", "prompt_tokens", "cached_tokens", "completion_tokens", "finish_reason", "ttft_s", "tpot_s",
    "blocks_held", "kv_bytes_held", "kv_bytes_formula", "model", "dtype", "kv_format",
}  # fmt: skip


def kvist(*args, env=None, stdin=None, timeout=120):
    return subprocess.run(
        [sys.executable, "-c", "from kvist.cli.entry import run; run()", *args],
        capture_output=True,
        text=True,
        timeout=timeout,
        input=stdin,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(env or {})},
    )


def one_line_error(done, code, *parts):
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
    assert "Traceback" not in done.stderr
    for part in parts:
        assert str(part) in done.stderr, (part, done.stderr)


def test_generate_prints_text_and_a_ledger_that_agrees():
    packaged()
    done = kvist("generate", "The capital of France is", "--max-tokens", "8")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(" Paris.")
    ledger = done.stderr.strip().splitlines()[-1]
    assert "5 prompt (0 cached) + 8 new tokens" in ledger
    assert "(equal)" in ledger and "TTFT" in ledger and "TPOT" in ledger


NO_ROTATION = {
    "model_type": "smollm3", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5, "rope_theta": 1e4, "tie_word_embeddings": False, "hidden_act": "silu",
    "head_dim": 21, "no_rope_layers": [0, 0],
}  # fmt: skip


@pytest.mark.parametrize("kv_format", ["int8t", "f16/int8t", "int8t/f32"])
def test_int8t_refuses_odd_head_dims_by_number(tmp_path, kv_format):
    """8-bit integers lie in pairs: a head of 21 has none for its last. Said before any weight is read."""
    from kvist.config import CacheConfig, EngineConfig
    from kvist.errors import BadValue
    from kvist.runtime.build import BuildOptions
    from kvist.runtime.llm import load

    (tmp_path / "config.json").write_text(json.dumps(NO_ROTATION))
    said = (f"kv_format='{kv_format}'", "rows of 21 numbers", "multiples of 2")
    for command in (("model", str(tmp_path)), ("generate", "x", "--model", str(tmp_path))):
        one_line_error(inside(*command, "--kv-format", kv_format), 2, *said)
    with pytest.raises(BadValue) as error:
        load(tmp_path, BuildOptions(engine=EngineConfig(CacheConfig(format=kv_format))))
    assert all(part in str(error.value) for part in said)
    (tmp_path / "config.json").write_text(json.dumps(NO_ROTATION | {"head_dim": 22}))
    assert inside("model", str(tmp_path), "--kv-format", kv_format).returncode == 0


def test_json_has_every_field_and_the_bytes_are_the_formulas():
    packaged()
    how = "--max-tokens 40 --temperature 0 --ignore-eos --json".split()
    done = inside("generate", "One two three four", *how)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    out = json.loads(done.stdout)
    assert FIELDS <= set(out)
    assert len(out["token_ids"]) == out["completion_tokens"] == 40
    computed = out["prompt_tokens"] + 39
    assert out["computed_tokens"] == computed
    assert out["blocks_held"] == -(-computed // 32)
    assert out["kv_bytes_held"] == out["kv_bytes_formula"] == out["blocks_held"] * 32 * 2 * 30 * 3 * 64 * 2
    assert out["kv_row_bytes"] == computed * 23040


def test_several_prompt_files_run_as_one_batch_a_line_each(tmp_path):
    packaged()
    files = []
    for i, text in enumerate(("Hello there", "The sun is", "My name is")):
        file = tmp_path / f"{i}.txt"
        file.write_text(text)
        files += ["--prompt-file", str(file)]
    done = inside("generate", *files, "--max-tokens", "6", "--json", env={"KVIST_IGNORE_EOS": "1"})
    assert done.returncode == 0, done.stderr
    lines = [json.loads(x) for x in done.stdout.splitlines()]
    assert [x["completion_tokens"] for x in lines] == [6, 6, 6]
    plain = inside("generate", *files, "--max-tokens", "6")
    assert len(plain.stdout.splitlines()) == 3
    assert plain.stderr.count("(equal)") == 3


def test_a_prompt_can_come_from_standard_input():
    packaged()
    done = kvist("generate", "-f", "-", "--max-tokens", "2", "--json", stdin="Hello")
    assert json.loads(done.stdout)["prompt_tokens"] >= 1 and done.stderr == ""


@pytest.mark.parametrize(
    "args,parts",
    [
        (["generate"], ["no prompt"]),
        (["generate", ""], ["prompt", "at least one character"]),
        (["generate", "x", "--bogus"], ["--bogus"]),
        (["nonsense"], ["nonsense"]),
        (["generate", "x", "--threads", "100000"], ["threads=100000", "256"]),
        (["generate", "x", "--n", "100000"], ["n=100000", "256"]),
        (["generate", "x", "--logprobs", "2"], ["--json"]),
        (["generate", "x", "--logit-bias", "999999=5"], ["999999", "49152"]),
        (["generate", "x", "--max-tokens", "0"], ["max_tokens=0"]),
        (["generate", "x", "--max-tokens", "-3"], ["max_tokens=-3"]),
        (["generate", "x", "--max-tokens", "many"], ["max_tokens='many'", "whole number"]),
        (["generate", "x", "--temperature", "nan"], ["temperature=nan"]),
        (["generate", "x", "--temperature", "-1"], ["temperature=-1"]),
        (["generate", "x", "--top-p", "0"], ["top_p=0.0"]),
        (["generate", "x", "--n", "0"], ["n=0"]),
        (["generate", "x", "--stop", ""], ["stop"]),
        (["generate", "x", "--dtype", "f8"], ["dtype='f8'", "bf16"]),
        (["generate", "x", "--kv-format", "int3"], ["kv_format='int3'", "f16"]),
        (["generate", "x", "--block-tokens", "17"], ["block_tokens=17", "32"]),
        (["generate", "x", "--attention", "warp"], ["attention='warp'", "native"]),
        (["generate", "x", "--kv-memory", "lots"], ["kv_memory='lots'"]),
        (["generate", "x", "--prompt-file", "y"], ["both a prompt and --prompt-file"]),
        (["generate", "--prompt-file", "/no/such/file"], ["/no/such/file", "cannot be read"]),
        (["generate", "x", "--config", "/no/such.toml"], ["/no/such.toml"]),
    ],
    ids=lambda x: " ".join(x[1:]) if isinstance(x, list) and x[0] == "generate" else "",
)
def test_wrong_calls_exit_with_2_and_one_line(args, parts):
    packaged()
    one_line_error(inside(*args), 2, *parts)


@pytest.mark.parametrize(
    "args,code,parts",
    [
        (["nonsense"], 2, ["nonsense"]),
        (["generate", "x", "--dtype", "f8"], 2, ["dtype='f8'", "bf16"]),
        (["generate", "x", "--logit-bias", "999999=5"], 2, ["999999", "49152"]),
        (["generate", "x", "--model", "/no/such/model"], 1, ["does not exist"]),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) and x[0] == "generate" else "",
)
def test_one_refusal_of_each_kind_from_a_process_of_its_own(args, code, parts):
    """By the command line's library, by an option, by the loaded model; and a failure that is no wrong call."""
    packaged()
    one_line_error(kvist(*args), code, *parts)


def test_a_prompt_longer_than_the_context_says_both_numbers(tmp_path):
    packaged()
    file = tmp_path / "long.txt"
    file.write_text("word " * 9000)
    one_line_error(inside("generate", "-f", str(file), "--max-tokens", "4"), 2, "9001", "8192")


def test_a_pool_too_small_for_the_prompt_says_how_much_is_needed(tmp_path):
    packaged()
    file = tmp_path / "p.txt"
    file.write_text("word " * 200)
    one_line_error(inside("generate", "-f", str(file), "--kv-blocks", "3"), 1, "7", "3")


def test_broken_models_exit_with_1(tmp_path):
    whole = packaged().read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[: len(whole) // 2])
    one_line_error(inside("generate", "x", "--model", str(cut)), 1, "cut.gguf")
    junk = tmp_path / "junk.gguf"
    junk.write_bytes(b"not a model" * 100)
    one_line_error(inside("generate", "x", "--model", str(junk)), 1, "junk.gguf")
    one_line_error(inside("generate", "x", "--model", str(tmp_path / "none")), 1, "does not exist")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps({"model_type": "quantum_llm", "architectures": ["QuantumForCausalLM"]})
    )
    one_line_error(inside("generate", "x", "--model", str(folder)), 1, "quantum_llm", "known")


def test_a_folder_with_one_gguf_file_is_that_file(tmp_path):
    (tmp_path / "model.gguf").symlink_to(packaged())
    done = inside("generate", "The capital of France is", "--max-tokens", "2", "--model", str(tmp_path), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["text"].startswith(" Paris")


def test_a_folder_without_a_tokenizer_says_what_was_looked_for(tmp_path):
    pytest.importorskip("transformers")
    from tiny_models import tiny

    folder = tmp_path / "tiny"
    shutil.copytree(tiny("llama", tmp_path / "made").folder, folder)
    one_line_error(inside("generate", "x", "--model", str(folder)), 1, "tokenizer.json")
    weights = next(folder.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-100])
    one_line_error(inside("generate", "x", "--model", str(folder)), 1)


def test_flags_win_over_the_environment_over_the_file(tmp_path):
    packaged()
    config = tmp_path / "kvist.toml"
    config.write_text('max_tokens = 3\nkv_format = "f32"\nignore_eos = true\n')
    env = {"KVIST_CONFIG": str(config)}
    assert json.loads(inside("generate", "Hi", "--json", env=env).stdout)["completion_tokens"] == 3
    env["KVIST_MAX_TOKENS"] = "4"
    out = json.loads(inside("generate", "Hi", "--json", env=env).stdout)
    assert (out["completion_tokens"], out["kv_format"]) == (4, "f32")
    assert json.loads(inside("generate", "Hi", "--json", "--max-tokens", "5", env=env).stdout)["completion_tokens"] == 5
    config.write_text("max_tokns = 3\n")
    one_line_error(inside("generate", "Hi", env=env), 2, "max_tokns", "max_tokens")


def test_chat_continues_on_the_cache_forks_and_takes_back():
    packaged()
    commands = (
        "/branches",
        "What is my name?",
        "/undo",
        "/stats",
        "/switch 0",
        "/nonsense",
        "/switch x",
        "/undo",
        "/undo",
    )
    said = "\n".join(["My name is Ada.", "/fork", *commands, "/quit", ""])
    done = kvist("chat", "--temperature", "0", "--max-tokens", "12", stdin=said)
    assert done.returncode == 0, done.stderr
    assert "on branch 1 now" in done.stdout and "* 1: 1 turns" in done.stdout
    assert "took back: What is my name?" in done.stdout
    assert "prompt tokens asked" in done.stdout
    ledgers = [x for x in done.stderr.splitlines() if "(equal)" in x]
    assert len(ledgers) == 2
    first = int(ledgers[0].split(" prompt")[0].strip("["))
    cached = int(ledgers[1].split("(")[1].split(" cached")[0])
    assert cached >= first
    assert "unknown command /nonsense" in done.stderr and "/switch needs a branch number" in done.stderr
    assert "nothing to undo" in done.stderr


def test_model_shows_bytes_per_token_as_table_and_json():
    packaged()
    table = kvist("model")
    assert table.returncode == 0 and "llama" in table.stdout.lower()
    out = json.loads(kvist("model", "--json").stdout)
    assert "23040" in json.dumps(out)
    one_line_error(inside("model", "/no/such/model"), 1, "does not exist")


def test_help_is_quick_and_complete():
    done = kvist("generate", "--help", env={"COLUMNS": "200"})
    assert done.returncode == 0
    from kvist.cli.options import ALL

    for name in ALL:
        assert f"--{name.replace('_', '-')}" in done.stdout
    assert kvist("--version").stdout.startswith("kvist ")


def test_an_interrupt_exits_with_130():
    import signal
    import time

    packaged()
    child = subprocess.Popen(
        [sys.executable, "-c", "from kvist.cli.entry import run; run()", "generate", "Once", "--max-tokens", "4000",
         "--ignore-eos"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert child.stdout.read(1)
    time.sleep(0.2)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=30)
    assert child.returncode == 130
    assert b"Traceback" not in err


def test_paths_of_this_repository_are_not_baked_in():
    assert "/work/" not in (Path(__file__).parents[2] / "README.md").read_text()

"""``kvist serve`` and ``kvist bench serve`` as commands, each in a process of its own."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import httpx
import pytest

from real_model import packaged

KVIST = [sys.executable, "-c", "from kvist.cli.entry import run; run()"]


def start(*args, env=None):
    packaged()
    return subprocess.Popen(
        [*KVIST, "serve", "--paper", "--port", "0", *args], stderr=subprocess.PIPE, text=True,
        env={**os.environ, **(env or {})},
    )  # fmt: skip


def until_ready(process):
    """What it said until it was ready, and where it listens."""
    said = []
    for line in process.stderr:
        said.append(line)
        found = re.match(r"ready: (\S+)/v1", line)
        if found:
            return "".join(said), found[1]
    pytest.fail("it ended: " + "".join(said))


def stop(process, sig=signal.SIGTERM):
    process.send_signal(sig)
    process.wait(20)
    return process.stderr.read()


def refused(*args, env=None):
    done = subprocess.run(
        [*KVIST, "serve", *args], capture_output=True, text=True, timeout=60, env={**os.environ, **(env or {})}
    )
    return done.returncode, done.stderr


def test_it_says_what_it_resolved_answers_and_ends_with_0():
    process = start("--max-model-len", "1024", "--max-num-seqs", "4", "--kv-cache-memory", "64MiB")
    said, url = until_ready(process)
    for word in ("model", "SmolLM2", "pool", "blocks", "guaranteed", "1,024 tokens", "anyone", "prefix"):
        assert word in said, said
    assert httpx.get(url + "/v1/models").json()["data"][0]["max_model_len"] == 1024
    answer = httpx.post(url + "/v1/completions", json={"prompt": "Hello", "max_tokens": 3, "ignore_eos": True})
    assert answer.json()["usage"]["completion_tokens"] == 3
    assert "stopped" in stop(process)
    assert process.returncode == 0


def test_an_interrupt_ends_it_with_130_after_running_answers():
    process = start()
    _, url = until_ready(process)
    with httpx.stream(
        "POST",
        url + "/v1/completions",
        json={"prompt": "Hello", "max_tokens": 2000, "ignore_eos": True, "stream": True},
    ) as answer:
        lines = answer.iter_lines()
        next(lines)
        process.send_signal(signal.SIGINT)
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    process.wait(20)
    assert process.returncode == 130
    assert "Traceback" not in process.stderr.read()


def test_flags_win_over_the_environment_over_the_file(tmp_path):
    file = tmp_path / "serve.toml"
    file.write_text('max_model_len = 512\nserved_model_name = ["from-file"]\napi_key = ["a:one", "b:two:2"]\n')
    process = start("--config", str(file), "--served-model-name", "mine,also", env={"KVIST_MAX_MODEL_LEN": "768"})
    said, url = until_ready(process)
    assert "a (weight 1), b (weight 2)" in said
    assert httpx.get(url + "/v1/models").status_code == 401
    models = httpx.get(url + "/v1/models", headers={"Authorization": "Bearer two"}).json()["data"]
    assert [m["id"] for m in models] == ["mine", "also"]
    assert models[0]["max_model_len"] == 768
    assert stop(process) and process.returncode == 0


def test_elsewhere_without_a_key_it_warns():
    process = start("--host", "0.0.0.0")
    said, _ = until_ready(process)
    assert "warning" in said and "--api-key" in said
    stop(process)


@pytest.mark.parametrize(
    "args,env,code,words",
    [
        (["--port", "70000"], {}, 2, "port=70000"),
        (["--max-queue", "0"], {}, 2, "max_queue"),
        (["--api-key", "a:same", "--api-key", "b:same"], {}, 2, "key of their own"),
        (["--api-key", "a:secret:nan"], {}, 2, "weight"),
        (["--itl-slo", "0.5x", "--paper"], {}, 2, "itl_slo"),
        (["--order", "random", "--paper"], {}, 2, "fcfs, prefix"),
        (["--log-format", "xml"], {}, 2, "text"),
        (["/no/such/model.gguf"], {}, 1, "/no/such/model.gguf"),
        (["one.gguf", "--model", "two.gguf"], {}, 2, "name one"),
        ([], {"KVIST_MAX_MODEL_LEN": "10", "KVIST_CONTEXT_TOKENS": "20"}, 2, "not both"),
        ([], {"KVIST_MAX_MODEL_LENGTH": "10"}, 2, "max_model_len"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_what_cannot_be_served_ends_at_once_with_one_line(args, env, code, words):
    got, said = refused(*args, env=env)
    last = said.strip().splitlines()[-1]
    assert (got, "Traceback" in said) == (code, False), said
    assert last.startswith("error: ") and words in last, said
    assert "secret" not in said


def test_a_port_in_use_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, said = refused("--paper", "--port", str(port))
    assert code == 2 and str(port) in said and "--port" in said


@pytest.mark.parametrize("after_s", [0, 0.02, 0.05, 0.1, 0.2, 0.4])
def test_a_signal_while_it_loads_ends_it(after_s):
    process = start()
    for line in process.stderr:
        if "listens" in line:
            break
    time.sleep(after_s)
    stop(process)
    assert process.returncode in (0, -signal.SIGTERM)


def test_bench_serve_measures_it(tmp_path):
    process = start("--kv-blocks", "400")
    _, url = until_ready(process)
    out = tmp_path / "run.json"
    done = subprocess.run(
        [*KVIST, "bench", "serve", "--url", url, "--workload", "multi-turn", "--clients", "2", "--rounds", "3",
         "--prefix-tokens", "64", "--suffix-tokens", "32", "--output-tokens", "8", "--json", str(out)],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    record = json.loads(out.read_text())
    assert record
    stop(process)


@pytest.mark.parametrize("attention", ["best", "reference"])
def test_it_knows_why_steps_go_layer_by_layer(attention):
    """What loading found goes on to the features; nothing where steps are native."""
    native_module = pytest.importorskip("kvist.kernels.native_module")
    if native_module.absent_reason():
        pytest.skip(native_module.absent_reason())
    from kvist.cli.options import Settings
    from kvist.cli.serve.real import Models
    from kvist.config import CacheConfig, EngineConfig
    from kvist.server.config import ServeConfig
    from kvist.server.observe.features import features

    settings = Settings(str(packaged()), attention=attention, engine=EngineConfig(CacheConfig(blocks=8)))
    served = Models(settings, None).first(lambda done: None)
    told = {f.name: f for f in features(served, ServeConfig())}["native_steps"]
    assert told.active == (attention == "best")
    assert ("reference" in told.why) == ("no_native_steps" in served.facts) == (attention == "reference")

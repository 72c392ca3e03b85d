"""``kvist bench`` as a person runs it: exit codes, tables, files, interrupts."""

import json
import os
import signal
import subprocess
import sys
import time

import jsonschema
import pytest
from fake_server import FakeServer

KVIST = """
import kvist.cli.main as main
from kvist.cli import bench
from kvist.cli.entry import run
if not any(group.name == "bench" for group in main.app.registered_groups):
    main.app.add_typer(bench.app, name="bench")
run()
"""
QUICK = "--workload prefix-repetition --groups 2 --prompts 3 --output-tokens 3 --calibrate 0".split()


def started(*args, **env):
    clean = {k: v for k, v in os.environ.items() if not k.endswith("_API_KEY")}
    return subprocess.Popen(
        [sys.executable, "-c", KVIST, "bench", *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**clean, "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "150", **env},
    )


def kvist(*args, **env):
    process = started(*args, **env)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_a_table_for_a_person():
    with FakeServer() as server:
        code, out, err = kvist("serve", "--url", server.url, *QUICK, "--slo", "ttft=9s", "--concurrency", "2")
    assert code == 0, err
    for word in ("TTFT", "TPOT", "ITL", "E2E", "p50", "p99", "output tok/s", "goodput", "reported", "optimum", "6 ok"):
        assert word in out, word
    assert "cannot be inferred" in out and "Traceback" not in err and "\x1b" not in out + err


def test_json_is_all_there_is_and_fits_its_schema(tmp_path):
    code, text, _ = kvist("schema")
    assert code == 0
    schema = json.loads(text)
    with FakeServer() as server:
        code, out, err = kvist("serve", "--url", server.url, *QUICK, "--json", "-")
        assert code == 0, err
        report = json.loads(out)
        jsonschema.validate(report, schema)
        assert "details" not in report and report["requests"]["ok"] == 6
        file = tmp_path / "r.json"
        code, out, _ = kvist("serve", "--url", server.url, *QUICK, "--json", file, "--details", OPENAI_API_KEY="hush")
        whole = json.loads(file.read_text())
        jsonschema.validate(whole, schema)
        assert "TTFT" in out and len(whole["details"]) == 6 and "hush" not in file.read_text()
        broken = {**whole, "throughput": {}}
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(broken, schema)


@pytest.mark.parametrize("suffix,magic", [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_pictures_and_saved_runs(tmp_path, suffix, magic):
    pytest.importorskip("matplotlib")
    picture, saved = tmp_path / f"p.{suffix}", tmp_path / "run.json"
    with FakeServer(faults={0: "busy"}) as server:
        turns = ("--workload", "multi-turn", "--clients", "2", "--rounds", "3", "--scale", "0.1", "--calibrate", "0")
        code, out, err = kvist("serve", "--url", server.url, *turns, "--plot", picture, "--save", saved)
    assert code == 1, err
    assert "by turn" in out and "http_503" in out and "draining" in out
    assert picture.read_bytes().startswith(magic)
    assert len(json.loads(saved.read_text())["details"]) == 4


def test_a_failed_calibration_is_shown():
    with FakeServer(faults={1: "busy"}) as server:
        code, out, err = kvist("serve", "--url", server.url, *QUICK[:-1], "2", "--warmup", "1")
    assert code == 1 and "6 ok, 0 failed" in out and "1 warm-up, 2 (1 failed) calibration" in out
    assert "note: 1 of 2 calibration requests failed, the first with http_503: draining" in err


def test_two_runs_are_compared(tmp_path):
    for name, delay in (("a", 0.001), ("b", 0.05)):
        with FakeServer(token_s=delay) as server:
            code, _, err = kvist("serve", "--url", server.url, *QUICK, "--save", tmp_path / f"{name}.json")
            assert code == 0, err
    code, out, err = kvist("compare", tmp_path / "a.json", tmp_path / "b.json", "--json")
    rows = {r["name"]: r for r in json.loads(out)["rows"]}
    a, b = (json.loads((tmp_path / f"{name}.json").read_text()) for name in "ab")
    slower = b["latency_s"]["tpot"]["p50"] / a["latency_s"]["tpot"]["p50"]
    assert code == 0 and rows["TPOT p50"]["ratio"] == slower and slower > 1
    assert rows["hits optimum"]["ratio"] == 1.0 and rows["failed"] == {
        "name": "failed", "a": 0.0, "b": 0.0, "ratio": None, "better": "lower",
    }  # fmt: skip
    code, out, err = kvist("compare", tmp_path / "a.json", tmp_path / "b.json")
    assert "B / A" in out and "TTFT p99" in out and "target.url" in err
    (tmp_path / "c.json").write_text("{}")
    for wrong in ("c.json", "none.json"):
        code, out, err = kvist("compare", tmp_path / "a.json", tmp_path / wrong)
        assert code == 2 and err.startswith("error: ") and wrong in err


def test_an_interrupt_prints_what_was_measured(tmp_path):
    saved = tmp_path / "s.json"
    with FakeServer(token_s=0.01) as server:
        many = ("--workload", "random", "--prompts", "500", "--suffix-tokens", "5", "--output-tokens", "5")
        process = started("serve", "--url", server.url, *many, "--calibrate", "0", "--save", saved)
        deadline = time.monotonic() + 30
        while len(server.seen.bodies) < 25 and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "TTFT" in out and "interrupted" in err and "Traceback" not in err
    report = json.loads(saved.read_text())
    assert report["interrupted"] and report["requests"]["ok"] >= 10 and report["requests"]["failed"] == 0
    assert report["requests"]["interrupted"] >= 1 and report["requests"]["not_sent"] > 400


def test_an_interrupt_before_anything_was_measured():
    with FakeServer(overhead_s=20) as server:
        process = started("serve", "--url", server.url, *QUICK)
        deadline = time.monotonic() + 30
        while not server.seen.bodies and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130 and "Traceback" not in err


@pytest.mark.parametrize(
    "args,parts",
    [
        (("--workload", "nothing"), ("multi-turn",)),
        (("--workload", "random", "--groups", "3"), ("groups", "range_ratio")),
        (("--slo", "fast"), ("ttft=2s",)),
        (("--rate", "1", "--concurrency", "2"), ("--max-concurrency",)),
        (("--trace", "/no/such"), ("exists",)),
        (("--save", "/no/such/folder/x.json"), ("cannot be written",)),
        (("--plot", "x.gif"), (".png",)),
        (("--url", "ftp://x"), ("http://127.0.0.1:8000",)),
        (("--concurrency", "many"), ("concurrency",)),
    ],
)
def test_wrong_calls_are_told_in_one_line(args, parts):
    code, out, err = kvist("serve", *args)
    assert code == 2 and out == "", err
    assert err.startswith("error: ") and err.count("\n") == 1
    for part in parts:
        assert part in err


def test_a_dead_server_is_told_in_one_line():
    code, out, err = kvist("serve", "--url", "http://127.0.0.1:9", *QUICK)
    assert code == 1 and out == "" and err.startswith("error: no server answers at http://127.0.0.1:9")


def test_keys_come_from_the_environment():
    with FakeServer(api_key="sesame") as server:
        assert kvist("serve", "--url", server.url, *QUICK, KVIST_API_KEY="sesame")[0] == 0
        assert kvist("serve", "--url", server.url, *QUICK, OPENAI_API_KEY="sesame")[0] == 0
        code, _, err = kvist("serve", "--url", server.url, *QUICK)
        assert code == 1 and "--api-key" in err


def test_workloads_are_listed():
    from kvist.bench.workload import registry

    code, out, _ = kvist("workloads")
    assert code == 0 and all(f"{name}: " in out for name in registry.names())
    assert "prefix_tokens=2048" in out

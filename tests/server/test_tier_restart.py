"""Conversations survive their server: killed or stopped, the next one goes on with what was computed and generated."""

import os
import signal
import subprocess
import time

import httpx
import pytest
from test_serve_command import KVIST, until_ready
from tier_served_kit import real_models, serving

from real_model import packaged

BLOCK = 16


def start(folder, *more):
    packaged()
    place = f"disk:{folder}?size=256MiB&reserve=0"
    args = [
        "--port",
        "0",
        "--block-tokens",
        str(BLOCK),
        "--kv-memory",
        "64MiB",
        "--tier",
        place,
        "--tier-min-tokens",
        "16",
    ]
    return subprocess.Popen([*KVIST, "serve", *args, *more], stderr=subprocess.PIPE, text=True, env=dict(os.environ))


def chat(url, messages, n=24, **more):
    body = {"messages": messages, "max_tokens": n, "temperature": 0, "ignore_eos": True, **more}
    answer = httpx.post(url + "/v1/chat/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    told = answer.json()
    messages.append(told["choices"][0]["message"])
    return told


def records(url):
    text = httpx.get(url + "/metrics", timeout=10).text
    found = [line for line in text.splitlines() if line.startswith('kvist_tier_records{tier="disk"}')]
    return float(found[0].split()[-1])


def until(check, seconds=20.0):
    end = time.time() + seconds
    while not check():
        assert time.time() < end, "it does not happen"
        time.sleep(0.05)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=["killed", "ended", "interrupted"])
def test_a_conversation_goes_on_after_a_restart(tmp_path, how):
    """Also the answers that were generated are found, with the very ids that the model drew."""
    folder, messages = tmp_path / "cache", [{"role": "system", "content": "You are a river. " * 20}]
    process = start(folder)
    said, url = until_ready(process)
    assert str(folder) in said and "answers.db" in said and "sessions" in said
    messages.append({"role": "user", "content": "Where do you begin?"})
    chat(url, messages)
    messages.append({"role": "user", "content": "And where do you end?"})
    second = chat(url, messages)["usage"]
    said_tokens = second["prompt_tokens"] + second["completion_tokens"]
    if how is signal.SIGKILL:
        until(lambda: records(url) >= (said_tokens - 1) // BLOCK)
        time.sleep(0.3)
    process.send_signal(how)
    process.wait(30)
    assert "Traceback" not in process.stderr.read()
    assert process.returncode == {signal.SIGKILL: -9, signal.SIGTERM: 0, signal.SIGINT: 130}[how]

    process = start(folder)
    try:
        _, url = until_ready(process)
        messages.append({"role": "user", "content": "Thank you."})
        third = chat(url, messages)
        details = third["usage"]["prompt_tokens_details"]
        whole = (said_tokens - 1) // BLOCK * BLOCK
        assert details["cached_tokens"] == whole, (details, said_tokens)
        assert details["cached_tokens_by_tier"] == {"pool": 0, "disk": whole}
        assert third["kvist"]["kept_tokens"] >= said_tokens - 1
        story = httpx.get(f"{url}/v1/requests/{third['kvist']['request_id']}", timeout=10).json()
        assert story["tiers"]["decision"] == "load" and story["tiers"]["loaded_tokens"] == whole
        assert story["tiers"]["took_ms"] > 0 and story["tiers"]["reason"] is None
        told = httpx.get(url + "/server_info", timeout=10).json()
        assert told["features"]["tiers"]["effect"]["sched_loaded_tokens"] == whole
        assert told["tiers"]["places"][0]["condition"] == "ok" and told["tiers"]["answers"]["condition"] == "ok"
    finally:
        process.kill()
        process.wait(20)


def test_the_same_weights_loaded_anew_find_what_the_old_ones_left(tmp_path):
    """Old tiers are closed, new ones opened over the same folder; the answers that were kept are there, too."""
    models = real_models(tmp_path)
    body = {"messages": [{"role": "user", "content": "Name rivers, and their seas. " * 8}], "max_tokens": 24}
    body |= {"temperature": 0, "ignore_eos": True}
    with serving(models.first(lambda done: None), loader=models.again) as client:
        before = client.server.service.served
        first = client.post("/v1/chat/completions", body).json()
        said = first["usage"]["total_tokens"]
        told = client.post("/update_weights", {"path": before.path})
        assert told.status_code == 200, told.text
        assert client.server.service.served.places is not before.places
        talk = [*body["messages"], first["choices"][0]["message"], {"role": "user", "content": "More."}]
        second = client.post("/v1/chat/completions", {**body, "messages": talk}).json()
        assert second["kvist"]["kept_tokens"] >= said - 1
        whole = (said - 1) // 16 * 16
        details = second["usage"]["prompt_tokens_details"]
        assert details["cached_tokens_by_tier"] == {"pool": 0, "disk": whole}
        assert client.get("/server_info").json()["tiers"]["answers"]["condition"] == "ok"


def test_a_folder_that_cannot_be_written_to_does_not_stop_the_server(tmp_path):
    """Conversations are remembered in memory; the tier says that it is off or read-only, and why."""
    (tmp_path / "answers.db").mkdir()
    with serving(real_models(tmp_path).first(lambda done: None)) as client:
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
        assert client.post("/v1/chat/completions", body).status_code == 200
        told = client.get("/server_info").json()["tiers"]["answers"]
        assert told["condition"] != "ok" and told["reason"]


def refused(*args):
    done = subprocess.run([*KVIST, "serve", *args], capture_output=True, text=True, timeout=60, env=dict(os.environ))
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "args,words",
    [
        (["--tier", "nowhere:5"], "ram, disk"),
        (["--tier", "ram:much"], "much"),
        (["--tier", "ram:1GiB", "--tier", "ram:2GiB"], "once"),
        (["--tier", "disk:/tmp/x?size=1GiB", "--tier-key", "/no/such/key"], "/no/such/key"),
        (["--tier", "redis://user:hunter2@host?size=x&size", "--tier-write", "never"], "through, back or evict"),
        (["--tier-load", "sometimes"], "auto, always or never"),
    ],
    ids=str,
)
@pytest.mark.parametrize("paper", [["--paper"], []], ids=["paper", "real"])
def test_places_that_make_no_sense_are_refused_at_once(args, words, paper):
    code, said = refused(*paper, *args)
    assert code in (1, 2) and "Traceback" not in said
    last = said.strip().splitlines()[-1]
    assert last.startswith("error: ") and words in last, said
    assert "hunter2" not in said


def test_a_server_on_paper_has_tiers_on_paper(tmp_path):
    process = subprocess.Popen(
        [*KVIST, "serve", "--paper", "--port", "0", "--kv-blocks", "24", "--tier", "ram:64MiB", "--tier",
         str(tmp_path / "never"), "--tier-load", "always"],
        stderr=subprocess.PIPE, text=True, env=dict(os.environ),
    )  # fmt: skip
    try:
        said, url = until_ready(process)
        assert "ram:64MiB (on paper)" in said
        for start in (0, 5000, 0):
            body = {"prompt": [start + n for n in range(600)], "max_tokens": 4, "ignore_eos": True}
            usage = httpx.post(url + "/v1/completions", json=body, timeout=60).json()["usage"]
            time.sleep(0.1)
        assert usage["prompt_tokens_details"]["cached_tokens_by_tier"]["tiers"] >= 256, usage
        told = httpx.get(url + "/server_info", timeout=10).json()["tiers"]
        assert [p["name"] for p in told["places"]] == ["ram", "disk"] and told["places"][0]["records"] > 0
        assert not (tmp_path / "never").exists()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)
    assert process.returncode == 0 and "Traceback" not in process.stderr.read()

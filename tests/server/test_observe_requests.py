"""``/v1/requests``: what became of a request, why it missed, and that nobody sees another's."""

import threading
import time

import pytest
from attack_kit import BODY, all_routers, ask, connect, key, post_bytes, until
from served_kit import parts, running, served

from kvist.server.observe.misses import WORDS
from kvist.server.tenants import Tenants

TENANTS = Tenants.parse(["ann:ka", "bob:kb"], admin_key="root")


@pytest.fixture(autouse=True)
def patched(monkeypatch):
    all_routers(monkeypatch)


@pytest.fixture
def server():
    with running(served("hello world", step_s=0.002), tenants=TENANTS) as server:
        yield server
        server.books()


@pytest.fixture(scope="module")
def quiet():
    """One that nobody asks for an answer."""
    with pytest.MonkeyPatch.context() as patch:
        all_routers(patch)
        with running(served("hello world"), tenants=TENANTS) as server:
            yield server


def post(server, who="ka", name=None, **changes):
    headers = {**key(who), **({"X-Request-Id": name} if name else {})}
    status, heads, answer = ask(server.url, "POST", "/v1/completions", {**BODY, **changes}, headers)
    assert status == 200, answer
    return heads["x-request-id"]


def get(server, path, who="ka"):
    status, _, answer = ask(server.url, "GET", path, None, key(who))
    return status, answer


def test_the_story_of_a_request(server):
    name = post(server, name="mine", n=2)
    status, told = get(server, f"/v1/requests/{name}")
    assert status == 200 and told["id"] == "req-1" and told["name"] == "mine" and told["status"] == "done"
    assert told["finish_reason"] in ("stop", "length") and told["endpoint"] == "completion" and told["tenant"] == "ann"
    line = told["timeline"]
    assert list(line) == ["queued", "matched", "computed", "first_token", "done"]
    times = list(line.values())
    assert times == sorted(times) and times[0] >= 0 and times[-1] > 0.004
    spent = told["durations_ms"]
    assert spent["e2e"] == pytest.approx(line["done"] * 1000, abs=0.01)
    assert spent["queue"] + spent["prefill"] + spent["decode"] <= spent["e2e"] + 0.01
    assert spent["ttft"] == pytest.approx(line["first_token"] * 1000, abs=0.01) and spent["tpot"] > 0
    usage = told["usage"]
    assert usage["prompt_tokens"] == 4 and usage["completion_tokens"] == sum(
        s["completion_tokens"] for s in told["samples"]
    )
    assert [s["index"] for s in told["samples"]] == [0, 1]
    assert told["kept_tokens"] == 0 and told["first_rewritten"] is None
    assert get(server, "/v1/requests/req-1")[1] == told


def test_why_it_missed(server):
    """The index of the first token that differs, both tokens, and a reason in words."""
    tokenizer = parts()[2]
    base = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
    post(server, prompt=base + " red fox")
    told = get(server, f"/v1/requests/{post(server, prompt=base + ' blue fox')}")[1]
    miss, ids = told["miss"], tokenizer.encode(base + " blue fox", add_bos=False)
    at = miss["first_differing_index"]
    assert miss["code"] == "diverged" and miss["reason"] == WORDS["diverged"]
    assert miss["prompt_token"] == {"id": ids[at], "text": " blue"} and miss["cached_token"]["text"] == " red"
    assert told["usage"]["cached_tokens"] <= at
    again = get(server, f"/v1/requests/{post(server, prompt=base + ' blue fox')}")[1]
    assert again["miss"] is None and again["usage"]["cached_tokens"] == len(ids) - 1
    first = get(server, "/v1/requests/req-1")[1]["miss"]
    assert first["code"] == "empty" and first["cached_token"] is None and first["first_differing_index"] == 0
    longer = get(server, f"/v1/requests/{post(server, prompt=base + ' blue fox and more of it')}")[1]["miss"]
    assert longer["prompt_token"]["text"] == " and"


def test_each_sees_its_own(server):
    """Another's request does not exist, by our id or by the name its owner gave it; an admin sees all."""
    post(server, "ka", "secret-name")
    for path in ("secret-name", "req-1", "req-2", "nothing"):
        status, answer = get(server, f"/v1/requests/{path}", "kb")
        assert status == 404 and answer["error"]["code"] == "request_not_found"
        assert answer["error"]["message"].replace(path, "X") == get(server, "/v1/requests/zzz", "kb")[1]["error"][
            "message"
        ].replace("zzz", "X")
    assert get(server, "/v1/requests", "kb")[1]["data"] == []
    assert [r["name"] for r in get(server, "/v1/requests", "ka")[1]["data"]] == ["secret-name"]
    assert get(server, "/v1/requests/secret-name", "root")[0] == 200
    assert ask(server.url, "GET", "/v1/requests")[0] == 401


def test_the_same_name_is_the_newest(server):
    """F083: two requests of one name are two requests; each tenant's name finds its own."""
    post(server, "ka", "same", max_tokens=1)
    post(server, "ka", "same", max_tokens=2)
    post(server, "kb", "same", max_tokens=3)
    assert get(server, "/v1/requests/same")[1]["max_tokens"] == 2
    assert get(server, "/v1/requests/same", "kb")[1]["max_tokens"] == 3
    assert get(server, "/v1/requests/req-1")[1]["max_tokens"] == 1


def test_the_list(server):
    names = [post(server, name=f"n{i}") for i in range(5)]
    assert [r["name"] for r in get(server, "/v1/requests")[1]["data"]] == names[::-1]
    assert [r["name"] for r in get(server, "/v1/requests?limit=2")[1]["data"]] == ["n4", "n3"]
    for bad in ("0", "-1", "1001", "x", "1e9", "9" * 5000, ""):
        status, answer = get(server, f"/v1/requests?limit={bad}")
        assert status == 400 and "limit" in answer["error"]["message"]


@pytest.mark.parametrize("odd", ["%20", "a%20b", "%F0%9F%98%80", "%00", "a/b", "..%2f..", "'%22<>", "x" * 2000])
def test_odd_names(quiet, odd):
    status, answer = get(quiet, f"/v1/requests/{odd}")
    assert status == 404 and len(answer["error"]["message"]) < 500


def test_names_with_odd_characters(server):
    """F083: what is printable is taken as it is, the rest gets a name of ours: headers are never split."""
    for name in ("a/b?c", "a'b\"<c>", "~" * 128, "%41"):
        heads = ask(server.url, "POST", "/v1/completions", BODY, {**key("ka"), "X-Request-Id": name})[1]
        assert heads["x-request-id"] == name
    for name in ("", "a b", "~" * 129, "ä", "\t"):
        heads = ask(server.url, "POST", "/v1/completions", BODY, {**key("ka"), "X-Request-Id": name.encode("latin-1")})[
            1
        ]
        assert heads["x-request-id"] != name and len(heads["x-request-id"]) == 16
    assert get(server, "/v1/requests/a/b%3Fc")[0] == 200


def test_live_requests_show_their_stage(monkeypatch):
    """One decodes, one waits for a place, and each says so; a third is in its prefill."""
    with running(served("hello", token_s=0.001, max_sequences=1, token_budget=32), tenants=TENANTS) as server:
        body = {**BODY, "max_tokens": 2000, "ignore_eos": True}
        long = {**body, "prompt": "a b c " * 300}
        with connect(server.url) as one, connect(server.url) as two:
            one.sendall(post_bytes("/v1/completions", long, headers=["Authorization: Bearer ka"]))
            assert until(lambda: get(server, "/v1/requests/req-1")[1].get("status") == "prefill")
            two.sendall(post_bytes("/v1/completions", body, headers=["Authorization: Bearer ka"]))
            assert until(lambda: get(server, "/v1/requests/req-2")[1].get("status") == "queued")
            told = get(server, "/v1/requests/req-2")[1]
            assert told["samples"][0]["waits_for"] in ("queue", "capacity", "leader") and told["finish_reason"] is None
            assert until(lambda: get(server, "/v1/requests/req-1")[1]["status"] == "decode")
            assert get(server, "/v1/requests/req-1")[1]["completion_tokens"] > 0
            assert len(get(server, "/v1/requests")[1]["data"]) == 2
            assert get(server, "/v1/requests/req-1", "kb")[0] == 404
        assert until(lambda: get(server, "/v1/requests/req-2")[1]["finish_reason"] == "abort")
        server.books()


def test_a_long_step_does_not_hide_a_request():
    """The engine cannot be asked: the request is there, without its stage."""
    with running(served("hello", token_s=0.02), tenants=TENANTS) as server:
        body = {**BODY, "prompt": "a b " * 75, "max_tokens": 1}
        thread = threading.Thread(target=post, args=(server,), kwargs=body)
        thread.start()
        assert until(lambda: server.service.open == 1)
        time.sleep(0.1)
        begin = time.time()
        told = get(server, "/v1/requests/req-1")[1]
        assert time.time() - begin < 1 and told["status"] == "accepted" and told["samples"] is None
        thread.join()
        assert get(server, "/v1/requests/req-1")[1]["status"] == "done"


def test_the_history_is_bounded():
    with running(served("hello"), tenants=TENANTS, history=5) as server:
        for i in range(12):
            post(server, prompt=[1000 + i, 50, 51, 52])
        assert len(get(server, "/v1/requests?limit=1000")[1]["data"]) == 5
        assert get(server, "/v1/requests/req-1")[0] == 404
        kept = [x for x in server.service.observers if hasattr(x, "_found")]
        assert [len(x._found) for x in kept] == [5]


def test_without_isolation_no_foreign_token_is_shown():
    """One cache for all: that something differs may be told, what another wrote there may not."""
    both = Tenants.parse(["ann:ka", "bob:kb"], isolate=False)
    with running(served("hello"), tenants=both) as server:
        base = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seven"
        post(server, "ka", prompt=base + " red fox")
        miss = get(server, f"/v1/requests/{post(server, 'kb', prompt=base + ' blue fox')}", "kb")[1]["miss"]
        assert miss["code"] == "diverged" and miss["cached_token"] is None and miss["prompt_token"]["text"] == " blue"

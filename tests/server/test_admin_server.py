"""Health, facts and switches: who may do what, and that nothing claims more than it is."""

import threading
import time
from importlib.metadata import version

import pytest
from attack_kit import BODY, all_routers, ask, key, until
from served_kit import running, served

from kvist.config import CacheConfig, EngineConfig, SchedConfig
from kvist.errors import ModelError
from kvist.server.config import ServeConfig
from kvist.server.observe.features import features
from kvist.server.tenants import Tenants

KEYS = ["ann:ka", "bob:kb"]
TENANTS = Tenants.parse(KEYS, admin_key="root")
LONG = "one two three four five six seven eight nine ten " * 10


@pytest.fixture(autouse=True)
def patched(monkeypatch):
    all_routers(monkeypatch)


@pytest.fixture
def server():
    with running(served("hello"), tenants=TENANTS) as server:
        yield server
        server.books()


def post(server, who, path="/v1/completions", body=None, **changes):
    body = {**BODY, "prompt": LONG, **changes} if body is None else body
    status, _, answer = ask(server.url, "POST", path, body, key(who) if who else {})
    return status, answer


def cached(server, who):
    return post(server, who)[1]["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("path", ["/health", "/ready", "/ping", "/version", "/metrics"])
def test_open_to_all(server, path):
    assert ask(server.url, "GET", path)[0] == 200
    assert ask(server.url, "GET", path, None, key("wrong"))[0] == 200


@pytest.mark.parametrize("path", ["/server_info", "/v1/models", "/v1/requests"])
def test_closed_without_a_key(server, path):
    for headers in ({}, key(""), key("wrong"), {"Authorization": "ka"}, {"Authorization": "Basic ka"}, key("KA")):
        status, heads, answer = ask(server.url, "GET", path, None, headers)
        assert status == 401 and heads["www-authenticate"] == "Bearer" and "key" in answer["error"]["message"]
    for headers in (key("ka"), {"x-api-key": "kb"}, {"authorization": "bearer  ka "}):
        assert ask(server.url, "GET", path, None, headers)[0] == 200


def test_version(server):
    assert ask(server.url, "GET", "/version")[2] == {"version": version("kvist")}


def test_server_info(server):
    post(server, "ka"), post(server, "ka")
    status, _, info = ask(server.url, "GET", "/server_info", None, key("ka"))
    assert status == 200 and info["model"]["names"] == ["tiny"] and info["version"] == version("kvist")
    cache = info["cache"]
    assert cache["blocks"] == 2000 and cache["block_tokens"] == 16 and cache["format"] == "f16"
    assert cache["pool_bytes"] == 2000 * cache["block_bytes"]
    assert cache["longest_request_tokens"] == info["model"]["context"] and cache["guaranteed"]["whole_requests"] == 3
    told = info["features"]
    assert told["prefix_cache"]["state"] == "active" and told["prefix_cache"]["effect"]["sched_cached_tokens"] > 90
    assert told["tiers"]["state"] == "inactive" and told["tiers"]["why"]
    why = "llguidance is not installed (pip install 'kvist[server]')"
    assert told["structured_output"] == {"state": "inactive", "why": why}
    assert info["limits"]["max_queue"] == 256 and 0 < info["uptime_s"] < 60


def test_each_inactive_feature_says_why():
    """F096: a switch without effect is never shown as active, and every inactive one has a reason."""
    what = served("hello")
    for config in (ServeConfig(), ServeConfig(tenants=TENANTS), ServeConfig(keep_answers=False, append_only=True)):
        for feature in features(what, config):
            assert feature.active or feature.why, feature
    found = {f.name: f for f in features(what, ServeConfig(keep_answers=False, append_only=True))}
    assert not found["keep_answers"].active and not found["append_only"].active and not found["tenant_isolation"].active
    found = {f.name: f for f in features(what, ServeConfig(tenants=Tenants.parse(KEYS, isolate=False)))}
    assert not found["tenant_isolation"].active and "--no-isolate" in found["tenant_isolation"].why


class Counting:
    """A paper executor that says of each step that it ran natively, or of the last ones that they did not."""

    def __init__(self, inner):
        self.inner, self.native, self.layered = inner, 0, 0

    def execute(self, plan):
        wide = sum(len(c.tokens) for c in plan.chunks) > 50
        self.native, self.layered = self.native + (not wide), self.layered + wide
        return self.inner.execute(plan)

    @property
    def counters(self):
        return {"native_steps": self.native, "layered_steps": self.layered}


def test_how_steps_ran_is_told():
    """Both counters are in /server_info and /metrics, from the executor, and grow with its steps."""
    what = served("hello")
    what.engine.executor = Counting(what.engine.executor)
    with running(what) as server:
        post(server, None), post(server, None, max_tokens=2)
        told = ask(server.url, "GET", "/server_info")[2]["features"]["native_steps"]
        scraped = ask(server.url, "GET", "/metrics")[2]
        ran = what.engine.executor.counters
    assert ran["native_steps"] > 1 and ran["layered_steps"] == 1
    assert told["state"] == "active" and told["effect"] == {f"exec_{name}": n for name, n in ran.items()}
    for name, n in ran.items():
        assert f'kvist_effects_total{{counter="exec_{name}"}} {n}.0' in scraped


def test_why_steps_go_layer_by_layer_is_told():
    from dataclasses import replace

    what = served("hello")
    told = {f.name: f for f in features(what, ServeConfig())}["native_steps"]
    assert not told.active and "no layers" in told.why, "a model on paper has no steps of either kind"
    what.engine.executor = Counting(what.engine.executor)
    what = replace(what, facts={"no_native_steps": "layer 3 has latent attention (MLA)"})
    told = {f.name: f for f in features(what, ServeConfig())}["native_steps"]
    assert told.told({}) == {"state": "inactive", "why": "layer by layer: layer 3 has latent attention (MLA)"}


@pytest.mark.parametrize(
    "sched,cache,name,active",
    [
        ({"itl_slo": "2x"}, {}, "itl_slo", True),
        ({}, {}, "itl_slo", False),
        ({"order": "prefix"}, {}, "cache_aware_order", True),
        ({}, {}, "cache_aware_order", False),
        ({"token_budget": 100_000}, {}, "chunked_prefill", False),
        ({"token_budget": 100_000, "chunk_tokens": 256}, {}, "chunked_prefill", True),
    ],
)
def test_features_follow_the_config(sched, cache, name, active):
    from dataclasses import replace

    what = replace(served("hello"), config=EngineConfig(CacheConfig(**cache), SchedConfig(**sched)))
    assert {f.name: f.active for f in features(what, ServeConfig())}[name] is active


@pytest.mark.parametrize("path", ["/reset_prefix_cache", "/flush_cache"])
def test_a_tenant_resets_its_own_part(server, path):
    for who in ("ka", "kb"):
        post(server, who)
        assert cached(server, who) > 90
    status, answer = post(server, "ka", path, body=b"")
    assert status == 200 and answer["tenant"] == "ann" and answer["freed_blocks"] >= 6
    assert cached(server, "ka") == 0 and cached(server, "kb") > 90


def test_a_tenant_cannot_reset_anothers(server):
    post(server, "kb")
    for body in ({"tenant": "bob"}, {"tenant": "nobody"}, {"tenant": ""}):
        status, answer = post(server, "ka", "/flush_cache", body)
        assert status == 403 and answer["error"]["param"] == "tenant"
    assert post(server, "ka", "/flush_cache", {"tenant": "ann"})[0] == 200
    assert cached(server, "kb") > 90


def test_an_admin_resets_one_or_all(server):
    for who in ("ka", "kb"):
        post(server, who)
    assert post(server, "root", "/flush_cache", {"tenant": "bob"})[1]["tenant"] == "bob"
    assert cached(server, "kb") == 0 and cached(server, "ka") > 90
    status, answer = post(server, "root", "/flush_cache", {})
    assert status == 200 and answer["tenant"] is None and answer["freed_blocks"] > 10
    assert cached(server, "ka") == 0 == cached(server, "kb")
    assert post(server, "root", "/flush_cache", {"tenant": "nobody"})[0] == 404


def test_a_tenant_named_in_the_address_is_not_overlooked(server):
    """Or the admin would empty everybody's part."""
    post(server, "ka")
    status, answer = post(server, "root", "/reset_prefix_cache?tenant=bob", {})
    assert status == 400 and answer["error"]["param"] == "tenant" and "body" in answer["error"]["message"]
    assert cached(server, "ka") > 90
    assert post(server, "root", "/reset_prefix_cache?reset_running_requests=false", {"tenant": "bob"})[0] == 200


def test_one_cache_for_all_is_the_admins():
    with running(served("hello"), tenants=Tenants.parse(KEYS, admin_key="root", isolate=False)) as server:
        post(server, "ka")
        assert post(server, "kb", "/flush_cache", {})[0] == 403
        assert cached(server, "kb") > 90
        assert post(server, "root", "/flush_cache", {})[0] == 200
        assert cached(server, "kb") == 0


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"tenant": 3}', b'{"tenant": null, "x": 1}', b'"ann"', b"\xff"])
def test_wrong_reset_bodies(server, body):
    status, answer = post(server, "root", "/flush_cache", body)
    assert status == 400 and answer["error"]["message"]


@pytest.mark.parametrize("path", ["/reset_prefix_cache", "/flush_cache", "/update_weights"])
def test_changing_needs_post_and_a_key(server, path):
    status, heads, _ = ask(server.url, "GET", path, None, key("root"))
    assert status == 405 and heads["allow"] == "POST"
    assert post(server, None, path, {"path": "x"})[0] == 401


def test_new_weights(monkeypatch):
    """Only for an admin; what fails changes nothing; nothing cached survives."""
    asked = []

    def loader(path):
        asked.append(path)
        if path == "bad":
            raise ModelError("no such model", remedy="name one")
        return served("other words")

    with running(served("hello"), loader=loader, tenants=TENANTS) as server:
        first = post(server, "ka")[1]["choices"][0]["text"]
        assert post(server, "ka", "/update_weights", {"path": "x"})[0] == 403 and asked == []
        for body in ({}, {"path": ""}, {"path": "a\0b"}, {"path": "x" * 5000}, {"path": 3}, {"path": "x", "y": 1}):
            assert post(server, "root", "/update_weights", body)[0] == 400 and asked == []
        status, answer = post(server, "root", "/update_weights", {"path": "bad"})
        assert status == 400 and "no such model" in answer["error"]["message"]
        assert post(server, "ka")[1]["choices"][0]["text"] == first
        status, answer = post(server, "root", "/update_weights", {"path": "good"})
        assert status == 200 and answer["context"] > 0
        again = post(server, "ka")[1]
        assert again["choices"][0]["text"] != first and again["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        server.books()


def test_no_loader(server):
    assert post(server, "root", "/update_weights", {"path": "x"})[0] == 400


def test_ready_while_weights_load():
    gate = threading.Event()

    def loader(path):
        gate.wait(10)
        return served("other")

    with running(served("hello"), loader=loader) as server:
        thread = threading.Thread(target=post, args=(server, None, "/update_weights", {"path": "x"}))
        thread.start()
        assert until(lambda: ask(server.url, "GET", "/ready")[0] == 503)
        assert ask(server.url, "GET", "/ready")[2] == {"status": "loading"}
        begin = time.time()
        assert ask(server.url, "GET", "/health")[0] == 200 and ask(server.url, "GET", "/metrics")[0] == 200
        assert ask(server.url, "GET", "/server_info")[0] == 200
        assert time.time() - begin < 2
        gate.set()
        thread.join()
        assert ask(server.url, "GET", "/ready")[0] == 200


def test_draining():
    with running(served("hello"), drain_s=5.0) as server:
        server.service.draining = True
        for path in ("/health", "/ready", "/ping"):
            assert ask(server.url, "GET", path)[0] == 503
        server.service.draining = False
        assert ask(server.url, "GET", "/ping")[0] == 200


def test_a_dead_engine_is_said_to_be_dead(server):
    """The facts that are left are served; nothing waits for an engine that does not answer."""
    server.service.dead = RuntimeError("secret detail")
    try:
        for path in ("/health", "/ready"):
            status, _, answer = ask(server.url, "GET", path)
            assert status == 503 and answer["status"] == "dead" and "secret" not in str(answer)
        assert ask(server.url, "GET", "/ping")[0] == 503 and ask(server.url, "GET", "/metrics")[0] == 200
        assert ask(server.url, "GET", "/server_info", None, key("ka"))[0] == 200
        assert ask(server.url, "GET", "/v1/requests", None, key("ka"))[0] == 200
        assert post(server, "ka", "/flush_cache", {})[1]["error"]["code"] == "engine_dead"
    finally:
        server.service.dead = None


def test_loading():
    """From the first moment every path answers, and says how far it is."""
    gate = threading.Event()

    def load(progress):
        progress(0.25)
        gate.wait(10)
        return served("hello")

    from kvist.server.run import Host

    host = Host(load, ServeConfig(port=0, drain_s=1.0), now=time.perf_counter)
    thread = threading.Thread(target=host.run, daemon=True)
    thread.start()
    try:

        def answered():
            status, heads, answer = ask(host.address, "GET", "/health")
            return status == 503 and answer["progress"] == 0.25 and heads["retry-after"]

        assert until(answered, 10)
        for method, path in (("GET", "/metrics"), ("POST", "/v1/completions"), ("GET", "/nowhere")):
            status, _, answer = ask(host.address, method, path, b"x" * 1000)
            assert status == 503 and answer["error"]["code"] == "loading"
        gate.set()
        assert until(lambda: ask(host.address, "GET", "/health")[0] == 200, 10)
    finally:
        gate.set()
        host.stop()
        thread.join(10)
    assert not thread.is_alive()


def test_stopped_while_it_loads_nothing_starts_to_serve():
    """The model is there only after everything was closed: the run ends as it should, without an engine or an error."""
    model, loading, ready, failures = served("hello"), threading.Event(), [], []

    def load(progress):
        loading.set()
        assert until(lambda: host._socket.fileno() < 0, 10)
        return model

    from kvist.server.run import Host

    config = ServeConfig(port=0, drain_s=1.0)
    host = Host(load, config, now=time.perf_counter, on_ready=lambda *said: ready.append(said))

    def run():
        try:
            host.run()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert loading.wait(10)
    host.stop()
    thread.join(10)
    assert not thread.is_alive() and not failures and not ready and host.service is None

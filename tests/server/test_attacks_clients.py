"""Clients that leave, that do not read, that come in hundreds: others are served, and everything is given back."""

import resource
import struct
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from socket import SO_LINGER, SOL_SOCKET

import pytest
from attack_kit import BODY, all_routers, ask, connect, post_bytes, read_all, until
from served_kit import running, served

from kvist.server.guard import GuardedProtocol

ENDLESS = {**BODY, "max_tokens": 2000, "ignore_eos": True}


@pytest.fixture(autouse=True)
def patched(monkeypatch):
    all_routers(monkeypatch)


def steps(server):
    return server.service.served.engine.scheduler.counters.steps


def stopped_within(server, seconds):
    """The engine has nothing left to do that soon, and then does nothing more."""
    if not until(lambda: server.service.open == 0 and server.service.served.engine.idle, seconds):
        return False
    before = steps(server)
    time.sleep(0.05)
    return steps(server) == before


def leave(sock, how):
    if how == "reset":
        sock.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


MODES = [{"stream": True}, {}, {"stream": True, "n": 4}, {"n": 4}]


@pytest.fixture(scope="module")
def slow():
    """2 ms a step, 64 tokens of a prompt at a time, two sequences at most."""
    with pytest.MonkeyPatch.context() as patch:
        all_routers(patch)
        with running(served(None, step_s=0.002, token_budget=64, max_sequences=8)) as server:
            yield server


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("when", ["at once", "in prefill", "mid-stream"])
def test_work_ends_when_the_client_leaves(slow, mode, how, when):
    """F082: before the first token, in the prefill of a long prompt, in the middle; both ways to leave."""
    before = slow.service.counts["disconnected"]
    tokens = slow.service.served.engine.scheduler.counters.sampled_tokens
    prompt = "a b c d " * 400 if when == "in prefill" else f"{mode} {how} {when}"
    sock = connect(slow.url)
    sock.sendall(post_bytes("/v1/completions", {**ENDLESS, "prompt": prompt, **mode}))
    assert until(lambda: slow.service.open == 1)
    if when == "in prefill":
        assert until(lambda: slow.service.served.engine.scheduler.running)
        time.sleep(0.01)
    elif when == "mid-stream":
        assert until(lambda: slow.service.served.engine.scheduler.counters.sampled_tokens > tokens + 20)
    leave(sock, how)
    assert stopped_within(slow, 1.0)
    assert slow.service.counts["disconnected"] == before + 1
    slow.books()
    assert ask(slow.url, "POST", "/v1/completions", BODY)[0] == 200


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_those_in_the_queue_leave_too(mode):
    """F082: what waits behind another request goes at once; the other one goes on undisturbed."""
    with running(served(None, step_s=0.002, max_sequences=1)) as server:
        answer = {}

        def first():
            answer["first"] = ask(server.url, "POST", "/v1/completions", {**ENDLESS, "max_tokens": 200})

        thread = threading.Thread(target=first)
        thread.start()
        assert until(lambda: server.service.open == 1)
        sock = connect(server.url)
        sock.sendall(post_bytes("/v1/completions", {**ENDLESS, "prompt": "another", **mode}))
        assert until(lambda: server.service.open == 2)
        time.sleep(0.02)
        leave(sock, "close")
        assert until(lambda: server.service.open == 1, 0.2)
        thread.join()
        assert answer["first"][0] == 200 and answer["first"][2]["usage"]["completion_tokens"] == 200
        server.books()


def test_two_of_one_name():
    """F083: the end of one never touches the other of the same id; both get their whole answers."""
    with running(served(None, step_s=0.002)) as server:
        name = ["X-Request-Id: same"]
        leaver, stayer = connect(server.url), connect(server.url)
        leaver.sendall(post_bytes("/v1/completions", ENDLESS, headers=name))
        stayer.sendall(post_bytes("/v1/completions", {**BODY, "max_tokens": 100}, headers=[*name, "Connection: close"]))
        assert until(lambda: server.service.open == 2)
        leave(leaver, "close")
        got = read_all(stayer)
        assert got.startswith(b"HTTP/1.1 200") and b'"completion_tokens":' in got and b"x-request-id: same" in got
        assert until(lambda: server.service.open == 0, 1)
        told = ask(server.url, "GET", "/v1/requests")[2]["data"]
        assert sorted(t["finish_reason"] for t in told)[0] == "abort" and len(told) == 2
        counts = server.service.counts
        assert counts["disconnected"] == 1 and min(counts.values()) >= 0 and not server.service._inside
        server.books()


def rss_bytes():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def test_those_who_never_read(monkeypatch):
    """Twenty streams that nobody reads are cut off after the write timeout; a reader beside them does not notice."""
    monkeypatch.setattr(GuardedProtocol, "write_timeout_s", 1.0)
    body = {**ENDLESS, "max_tokens": 8000, "stream": True, "logprobs": 5}
    with running(served(None, blocks=12_000, check=False), write_timeout_s=1.0) as server, ExitStack() as stack:
        for i in range(20):
            sock = stack.enter_context(connect(server.url, receive_bytes=4096))
            sock.sendall(post_bytes("/v1/completions", {**body, "prompt": f"number {i}"}))
        assert until(lambda: server.service.open == 20)
        begin = time.time()
        status, _, answer = ask(server.url, "POST", "/v1/completions", {**BODY, "max_tokens": 50, "ignore_eos": True})
        assert status == 200 and answer["usage"]["completion_tokens"] == 50 and time.time() - begin < 10
        connections = server.host._server.server_state.connections
        assert until(lambda: server.service.open == 0 and len(connections) <= 1, 30)
        assert server.service.counts["disconnected"] == 20
        server.books()


def test_one_who_reads_slowly_is_served(monkeypatch):
    """Progress counts: a client that takes a little now and then gets its whole answer."""
    monkeypatch.setattr(GuardedProtocol, "write_timeout_s", 0.5)
    with running(served(None), write_timeout_s=30.0) as server, connect(server.url, receive_bytes=4096) as sock:
        ask_ = {**BODY, "max_tokens": 3000, "ignore_eos": True, "logprobs": 5, "stream": True}
        sock.sendall(post_bytes("/v1/completions", ask_, headers=["Connection: close"]))
        got = b""
        begin = time.time()
        while part := sock.recv(40_000):
            got = got[-100:] + part
            if time.time() - begin < 3:
                time.sleep(0.05)
        assert b"[DONE]" in got
        server.books()


def test_many_idle_streams():
    """Five hundred streams wait in the queue beside one thousand silent connections: others get in between."""
    config = {"max_queue": 2000, "read_timeout_s": 60.0}
    with running(served(None, step_s=0.001, max_sequences=4), **config) as server, ExitStack() as stack:
        silent = [stack.enter_context(connect(server.url)) for _ in range(1000)]
        streams = [stack.enter_context(connect(server.url)) for _ in range(500)]
        for i, sock in enumerate(streams):
            sock.sendall(post_bytes("/v1/completions", {**ENDLESS, "prompt": f"stream {i}", "stream": True}))
        assert until(lambda: server.service.open == 500, 20)
        begin = time.time()
        assert ask(server.url, "GET", "/health")[0] == 200 and ask(server.url, "GET", "/metrics")[0] == 200
        assert time.time() - begin < 2
        for sock in streams:
            leave(sock, "close")
        assert until(lambda: server.service.open == 0, 10)
        assert server.service.counts["disconnected"] == 500
        assert len(server.host._server.server_state.connections) >= len(silent)
        server.books()


def containers(server):
    """Sizes of everything in the server that could grow."""
    service, engine = server.service, server.service.served.engine
    sizes = {"live": len(service._live), "inside": len(service._inside), "records": len(service.records.ended())}
    sizes |= {"live_records": len(service.records.live()), "loads": len(service._pressure._loads)}
    sizes |= {"open": len(service._engine_loop._open), "tickets": len(service._engine_loop._tickets)}
    sizes |= {"timelines": len(engine.ended()), "known": engine.executor.known_sequences()}
    for observer in service.observers:
        names = observer.__dict__.keys() & {"_last", "_found", "requests", "_starts"}
        sizes |= {f"{type(observer).__name__}{name}": len(getattr(observer, name)) for name in names}
    tasks = server.host._server.server_state.tasks
    assert until(lambda: not tasks)
    return sizes


@pytest.mark.slow
def test_memory_of_many_tiny_requests():
    """F113, small: 3,000 requests, some refused, some abandoned: containers stay bounded, memory stops growing."""
    with running(served("ok", check=False), history=200) as server:

        def some(n):
            for i in range(n):
                kind = i % 10
                body = BODY if kind else {**BODY, "temperature": -1}
                if kind == 1:
                    with connect(server.url) as sock:
                        sock.sendall(post_bytes("/v1/completions", {**ENDLESS, "prompt": "leaver"}))
                else:
                    ask(server.url, "POST", "/v1/completions", {**body, "prompt": f"tiny {i % 50}"})

        some(1500)
        assert until(lambda: server.service.open == 0)
        server.service.served.engine.step()
        before, sizes = rss_bytes(), containers(server)
        some(1500)
        assert until(lambda: server.service.open == 0)
        grown = rss_bytes() - before
        server.service.served.engine.step()  # idle: it only lets go of what it remembers beyond its bound
        after = containers(server)
        assert after == sizes and max(after.values()) <= 1024
        assert grown / 1500 < 2048, f"{grown / 1500:.0f} bytes a request"
        server.books()

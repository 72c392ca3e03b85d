"""Heads of requests that no client should send, connections that say nothing, and many requests on one connection."""

import concurrent.futures
import itertools
import socket
import time
from contextlib import ExitStack

import pytest
from attack_kit import BODY, all_routers, ask, connect, post_bytes, read_all, read_answer, until
from served_kit import running, served

import kvist.server.guard as guard

GET = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(scope="module")
def server():
    with pytest.MonkeyPatch.context() as patch:
        all_routers(patch)
        with running(served("hello world", token_s=0.0), read_timeout_s=1.0) as server:
            yield server
            server.books()


@pytest.fixture(autouse=True)
def still_alive(server):
    yield
    status, _, answer = ask(server.url, "POST", "/v1/completions", BODY)
    assert status == 200 and answer["choices"][0]["text"]


@pytest.mark.parametrize(
    "path",
    ["/", "/nothing", "/v1", "/v1/../health", "/%00", "/%ff", "/" + "a" * 5000, "/v1/requests/%2f"],
)
def test_unknown_paths(server, path):
    status, _, answer = ask(server.url, "GET", path)
    assert status in (404, 405) and answer["error"]["message"]


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE"])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/flush_cache", "/reset_prefix_cache"])
def test_other_methods(server, method, path):
    status, headers, _ = ask(server.url, method, path)
    assert status == 405 and "POST" in headers["allow"]


@pytest.mark.parametrize(
    "line",
    [
        b"BREW /health HTTP/1.1", b"GET /health HTTP/9.9", b"CONNECT x:1 HTTP/1.1", b"GET  HTTP/1.1",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET http:// HTTP/1.1", b"GET /h\xffealth HTTP/1.1",
        b"PRI * HTTP/2.0", b"GET //[:: HTTP/1.1",
    ],
)  # fmt: skip
def test_lines_that_are_no_http(server, line):
    """A 400 (or the 404 of a path that does not exist), once, and no second answer."""
    with connect(server.url) as sock:
        sock.sendall(line + b"\r\nHost: x\r\n\r\n")
        got = read_all(sock, 3)
    assert got.count(b"HTTP/1.1") <= 1
    assert not got or got.split()[1] in (b"400", b"404", b"405"), got


def test_upgrades_are_not_taken(server):
    for what in (b"websocket", b"h2c"):
        with connect(server.url) as sock:
            sock.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: %b\r\n\r\n" % what)
            status, _, _ = read_answer(sock)
        assert status == 200


def head_of(count, size=10):
    return b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"".join(b"x-%d: %b\r\n" % (i, b"y" * size) for i in range(count))


@pytest.mark.parametrize("bad", [head_of(200), head_of(2, 40_000), head_of(100, 1000), b"GET /" + b"a" * 70_000])
def test_heads_that_are_too_large(server, bad):
    """431, once, naming both limits; and the connection closes."""
    with connect(server.url) as sock:
        sock.sendall(bad + b"\r\n\r\n" if bad.startswith(b"GET /health") else bad + b" HTTP/1.1\r\n\r\n")
        got = read_all(sock, 5)
    assert got.startswith(b"HTTP/1.1 431") and got.count(b"HTTP/1.1") == 1
    assert b"128 headers" in got and b"65536 bytes" in got


def test_heads_below_the_limit(server):
    with connect(server.url) as sock:
        sock.sendall(head_of(100, 500) + b"\r\n")
        assert read_answer(sock)[0] == 200


@pytest.fixture(scope="module")
def patient():
    """Time limits that nothing here reaches: only bytes are counted."""
    with pytest.MonkeyPatch.context() as patch:
        all_routers(patch)
        with running(served("hello"), read_timeout_s=60.0) as server:
            yield server


@pytest.mark.parametrize("start", [b"GET /", b"GET /health HTTP/1.1\r\n", b"GET /health HTTP/1.1\r\nx: ", b"A"])
def test_heads_without_an_end(patient, start):
    """Sent in small pieces: refused after a head's worth of bytes and never kept in memory."""
    sent = 0
    with connect(patient.url) as sock:
        sock.sendall(start)
        try:
            while sent < 20_000_000:
                sock.sendall(b"a" * 8192)
                sent += 8192
                time.sleep(0.0005)
        except OSError:
            pass
    assert sent < guard.LINGER_BYTES + 2_000_000


@pytest.mark.parametrize("start", [b"1;", b"0\r\nx: "])
def test_endless_chunk_headers(patient, start):
    """Extensions and trailers of chunks that never end cost a head's worth of bytes, not memory."""
    with connect(patient.url) as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + start)
        with pytest.raises(OSError):
            for _ in range(2000):
                sock.sendall(b"y" * 10_000)
                time.sleep(0.0005)


def test_slow_heads(server):
    """A byte now and then keeps nothing open: not at the start, not between two requests, not before the first."""
    cases = list(itertools.product((b"", GET), (b"", b"G", b"\r\n")))
    with concurrent.futures.ThreadPoolExecutor(len(cases)) as pool:
        closed_s = list(pool.map(lambda case: _closed_after_s(server.url, *case), cases))
    for case, took_s in zip(cases, closed_s, strict=True):
        if case == (GET, b""):
            assert took_s is None, "that is keep-alive, which has a time of its own"
        else:
            assert took_s is not None and took_s < 3, case


def _closed_after_s(url, first, drop):
    """When the server closed a connection that sent ``first`` and then bytes now and then; None: not within 3 s."""
    with connect(url) as sock:
        sock.sendall(first)
        if first:
            assert read_answer(sock)[0] == 200
        begin = time.time()
        sock.settimeout(0.1)
        while time.time() - begin < 3:
            try:
                if drop:
                    sock.sendall(drop)
                    drop = b"E" if drop == b"G" else drop
                if sock.recv(1000) == b"":
                    return time.time() - begin
            except TimeoutError:
                continue
            except OSError:
                return time.time() - begin
    return None


def test_pipelining(server):
    """Many requests at once: all answers, in order."""
    n = 200
    with connect(server.url) as sock:
        many = b"".join(b"GET /h%d HTTP/1.1\r\nHost: x\r\nX-Request-Id: q%d\r\n\r\n" % (i, i) for i in range(n))
        sock.sendall(many + GET[:-2] + b"Connection: close\r\n\r\n")
        got = read_all(sock, 10)
    assert got.count(b"HTTP/1.1 404") == n and got.count(b"HTTP/1.1 200") == 1
    names = [line[14:] for line in got.split(b"\r\n") if line.startswith(b"x-request-id: q")]
    assert names == [b"q%d" % i for i in range(n)]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("together", [False, True])
def test_pipelined_work_ends_with_the_connection(server, stream, together):
    """The client leaves: what is being done for it ends, although another request came behind it."""
    slow = {**BODY, "max_tokens": 100_000, "ignore_eos": True, "prompt": f"long ago {stream}", "stream": stream}
    before = server.service.counts["disconnected"]
    with connect(server.url) as sock:
        sock.sendall(post_bytes("/v1/completions", slow) + GET * together)
        assert until(lambda: server.service.open == 1)
        if not together:
            time.sleep(0.05)
            sock.sendall(GET)
            time.sleep(0.05)
    assert until(lambda: server.service.open == 0, 0.5)
    assert server.service.counts["disconnected"] == before + 1


def test_half_closed(server):
    """A client that closes its sending side after the request has left: the work ends within a second."""
    for stream in (False, True):
        with connect(server.url) as sock:
            sock.sendall(
                post_bytes("/v1/completions", {**BODY, "max_tokens": 100_000, "ignore_eos": True, "stream": stream})
            )
            assert until(lambda: server.service.open == 1)
            sock.shutdown(socket.SHUT_WR)
            assert until(lambda: server.service.open == 0, 1)
            read_all(sock, 2)


def test_many_keys(server):
    """No keys are known here: whatever is sent is nobody's business."""
    with connect(server.url) as sock:
        many = b"".join(b"Authorization: Bearer k%d\r\nx-api-key: \xff%d\r\n" % (i, i) for i in range(50))
        sock.sendall(GET[:-2] + many + b"\r\n")
        assert read_answer(sock)[0] == 200


def test_a_thousand_idle_connections(server):
    """They cost nobody anything, and go when their time is over."""
    with ExitStack() as stack:
        socks = [stack.enter_context(connect(server.url)) for _ in range(1000)]
        begin = time.time()
        assert ask(server.url, "GET", "/health")[0] == 200
        assert time.time() - begin < 1
        assert until(lambda: server.host._server.server_state.connections == set(), 8)
        assert all(sock.recv(1) == b"" for sock in socks)


def test_more_connections_than_allowed():
    """One too many is told so; those inside are served, and there is room again when they leave."""
    with pytest.MonkeyPatch.context() as patch:
        all_routers(patch)
        with running(served("hello"), max_connections=10) as server:
            with ExitStack() as stack:
                socks = [stack.enter_context(connect(server.url)) for _ in range(12)]
                connections = server.host._server.server_state.connections
                assert until(lambda: len(connections) == 12)
                assert ask(server.url, "GET", "/health")[0] == 503
                for sock in socks[:4]:
                    sock.close()
                assert until(lambda: len(connections) == 8)
                socks[8].sendall(GET)
                assert read_answer(socks[8])[0] == 200
            assert until(lambda: ask(server.url, "POST", "/v1/completions", BODY)[0] == 200)

"""Clients that leave: whenever they do, the work for them ends and everything is given back. Both protocols."""

import json
import socket
import time
from urllib.parse import urlsplit

import pytest
from served_kit import running, served

BODIES = {
    "/v1/messages": {"model": "tiny", "max_tokens": 4000, "messages": [{"role": "user", "content": "hi"}]},
    "/v1/responses": {"model": "tiny", "max_output_tokens": 4000, "input": "hi"},
}
"""At 10 ms a token these would take 40 s."""


@pytest.fixture(scope="module")
def server():
    with running(served(None, step_s=0.01)) as it:
        yield it


def connect(server):
    place = urlsplit(server.url)
    return socket.create_connection((place.hostname, place.port), timeout=10)


def request(path, **changes):
    body = json.dumps({**BODIES[path], **changes}).encode()
    return b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
        path.encode(), len(body), body,
    )  # fmt: skip


def until(condition, seconds=5.0):
    end = time.time() + seconds
    while not condition() and time.time() < end:
        time.sleep(0.005)
    return condition()


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("after_s", [0.0, 0.004, 0.015, 0.2])
def test_leaving_ends_the_work(server, path, stream, after_s):
    before = server.service.counts["accepted"]
    with connect(server) as sock:
        sock.sendall(request(path, stream=stream))
        if not after_s:
            assert until(lambda: server.service.counts["accepted"] > before)
        time.sleep(after_s)
    assert until(lambda: server.service.counts["accepted"] > before or after_s < 0.1)
    assert until(lambda: server.service.open == 0)
    server.books()


@pytest.mark.parametrize("path", BODIES)
def test_leaving_in_the_middle_of_a_stream(server, path):
    gone = server.service.counts["disconnected"]
    with connect(server) as sock:
        sock.sendall(request(path, stream=True))
        got = b""
        while got.count(b"delta") < 6:
            got += sock.recv(4096)
        assert server.service.open == 1
    assert until(lambda: server.service.open == 0)
    assert server.service.counts["disconnected"] == gone + 1
    server.books()


@pytest.mark.parametrize("path", BODIES)
def test_leaving_in_the_middle_of_the_request(server, path):
    accepted = server.service.counts["accepted"]
    whole = request(path)
    for part in (10, whole.index(b"\r\n\r\n") + 4, len(whole) - 1):
        with connect(server) as sock:
            sock.sendall(whole[:part])
            time.sleep(0.02)
    time.sleep(0.05)
    assert server.service.counts["accepted"] == accepted and server.service.open == 0
    server.books()


@pytest.mark.parametrize("path", BODIES)
def test_a_crowd_that_leaves_makes_room_for_the_next(server, path):
    socks = [connect(server) for _ in range(20)]
    for n, sock in enumerate(socks):
        sock.sendall(request(path, stream=bool(n % 2)))
    assert until(lambda: server.service.open == 20)
    for sock in socks:
        sock.close()
    assert until(lambda: server.service.open == 0)
    server.books()

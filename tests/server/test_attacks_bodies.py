"""Bodies that no client should send: each gets its 4xx naming the limit, nothing gets a 5xx, the server lives on."""

import json
import time

import pytest
from attack_kit import BODY, all_routers, ask, connect, post_bytes, read_all, read_answer, until
from served_kit import running, served

DEEP = 100_000


@pytest.fixture(scope="module")
def server():
    with pytest.MonkeyPatch.context() as patch:
        all_routers(patch)
        with running(served("hello world"), max_body_bytes=200_000, read_timeout_s=1.0) as server:
            yield server
            server.books()


def alive(server):
    status, _, answer = ask(server.url, "POST", "/v1/completions", BODY)
    assert status == 200 and answer["choices"][0]["text"]


def lie(name, value):
    return json.dumps({**BODY, name: value}).encode()


MALFORMED = {
    "nothing": b"",
    "half": b'{"prompt": "a',
    "not json": b"prompt=hello",
    "two": b"{}{}",
    "bytes": b'{"prompt": "\xff\xfe"}',
    "a list": b"[1, 2]",
    "a string": b'"hello"',
    "null": b"null",
    "zero bytes": b"\0" * 100,
    "deep lists": b"[" * DEEP + b"]" * (DEEP - 1000),
    "deep objects": b'{"a":' * 30_000 + b"1" + b"}" * 30_000,
    "deep prompt": b'{"prompt": ' + b"[" * 90_000 + b"]" * 90_000 + b"}",
    "digits": b'{"prompt": "a", "max_tokens": ' + b"9" * 100_000 + b"}",
    "infinite": lie("temperature", 1).replace(b'"temperature": 1', b'"temperature": 1e999'),
    "nan": lie("temperature", 1).replace(b'"temperature": 1', b'"temperature": NaN'),
    "minus infinity": lie("top_p", 1).replace(b'"top_p": 1', b'"top_p": -Infinity'),
}
WRONG = {
    "prompt is a number": lie("prompt", 3),
    "prompt is an object": lie("prompt", {"a": 1}),
    "prompt of nulls": lie("prompt", [None]),
    "prompt beyond the vocabulary": lie("prompt", [10**9]),
    "prompt beyond 64 bits": lie("prompt", [10**40]),
    "prompt below zero": lie("prompt", [-1]),
    "prompt of fractions": lie("prompt", [1.5]),
    "half a character": lie("prompt", "a\ud800"),
    "max_tokens below zero": lie("max_tokens", -1),
    "max_tokens is text": lie("max_tokens", "many"),
    "max_tokens beyond 64 bits": lie("max_tokens", 10**30),
    "n of none": lie("n", 0),
    "n of many": lie("n", 10**6),
    "temperature below zero": lie("temperature", -1),
    "temperature is text": lie("temperature", "hot"),
    "top_p": lie("top_p", 2),
    "stop of numbers": lie("stop", [1, 2]),
    "stop of many": lie("stop", ["a"] * 1000),
    "logit_bias": lie("logit_bias", {"x": 1}),
    "seed": lie("seed", "x"),
    "stream": lie("stream", "perhaps"),
    "model": lie("model", 7),
    "unknown model": lie("model", "x" * 100_000),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_bodies(server, name):
    for path in ("/v1/completions", "/v1/chat/completions"):
        status, _, answer = ask(server.url, "POST", path, MALFORMED[name])
        assert status == 400 and answer["error"]["message"], (name, status, answer)
        assert len(json.dumps(answer)) < 5000


@pytest.mark.parametrize("name", WRONG)
def test_wrong_values(server, name):
    status, _, answer = ask(server.url, "POST", "/v1/completions", WRONG[name])
    assert status in (400, 404) and answer["error"]["message"], (name, status, answer)
    assert len(json.dumps(answer)) < 5000


def test_the_door_stays_open(server):
    alive(server)


def test_too_large_by_announcement(server):
    """Refused before a byte of it came; the limit is named."""
    with connect(server.url) as sock:
        sock.sendall(post_bytes("/v1/completions", b"", length=10**12))
        status, _, body = read_answer(sock)
    error = json.loads(body)["error"]
    assert status == 413 and "200000" in error["message"] and error["code"] == "body_too_large"


@pytest.mark.parametrize("length", ["-1", "1e9", "0x10", "9" * 30, "9" * 5000, "1, 1", "²"])
def test_lengths_that_are_none(server, length):
    with connect(server.url) as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %b\r\n\r\n" % length.encode())
        got = read_all(sock, 5)
    assert got.startswith((b"HTTP/1.1 4", b"")) and b" 500 " not in got[:20]
    assert not got or got.split()[1] in (b"400", b"413", b"408")


def test_too_large_in_chunks(server):
    """A body of unknown length is cut off at the limit."""
    with connect(server.url) as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            for _ in range(100):
                sock.sendall(b"2710\r\n" + b" " * 10_000 + b"\r\n")
        except OSError:
            pass
        got = read_all(sock, 10)
    assert b"HTTP/1.1 413" in got and b"200000" in got
    alive(server)


def test_a_refused_body_is_not_read_for_ever(server):
    """After a 413 the rest may come for as long as a body may take, then the connection goes."""
    with connect(server.url) as sock:
        sock.sendall(post_bytes("/v1/completions", b"", length=10**12))
        read_answer(sock)
        begin = time.time()
        with pytest.raises(OSError):
            while time.time() - begin < 10:
                sock.sendall(b"x" * 1000)
                time.sleep(0.02)
        assert time.time() - begin < 5


@pytest.mark.parametrize("drop", [b"", b" "])
def test_a_body_that_comes_slowly(server, drop):
    """All of it has to come in time, not only the next byte."""
    with connect(server.url) as sock:
        sock.sendall(post_bytes("/v1/completions", b"", length=1000))
        begin = time.time()
        sock.settimeout(0.05)
        got = b""
        while time.time() - begin < 8 and b"\r\n\r\n" not in got:
            try:
                sock.sendall(drop)
                got += sock.recv(4096)
            except TimeoutError:
                continue
        took = time.time() - begin
    assert b"HTTP/1.1 408" in got and b"1 s" in got, got
    assert 0.9 < took < 3


def test_wrong_chunks(server):
    for chunk in (b"zz\r\nabc\r\n", b"-5\r\nabc\r\n", b"ffffffffffffffffff\r\nabc", b"5\r\nabc", b"3 ; x\r\nabcdef"):
        with connect(server.url) as sock:
            sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk)
            got = read_all(sock, 4)
        assert b" 500 " not in got[:20] and got.split()[1:2] in ([], [b"400"], [b"408"]), (chunk, got)
    alive(server)


def test_a_body_cut_in_the_middle(server):
    """The client leaves while it sends: nothing is left of it."""
    for _ in range(5):
        with connect(server.url) as sock:
            sock.sendall(post_bytes("/v1/completions", b'{"prompt": "a', length=1000))
    assert until(lambda: server.service.open == 0)
    alive(server)

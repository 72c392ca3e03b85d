"""Raw sockets against a running server, and all endpoints that the attacks need."""

import http.client
import json
import socket
import time
from contextlib import closing
from urllib.parse import urlsplit

import kvist.server.run as run
from kvist.server import admin
from kvist.server.door import Door
from kvist.server.observe import metrics, requests
from kvist.server.openai import chat, completions, models

BODY = {"model": "tiny", "prompt": "Once upon a time", "max_tokens": 4}


def all_routers(monkeypatch, **options):
    """Serve every endpoint, whatever ``routes.py`` lists."""

    def routers(desk):
        rooms = [admin.router(desk), models.router(desk), completions.router(desk), chat.router(desk)]
        return [*rooms, metrics.router(desk, **options), requests.router(desk)]

    monkeypatch.setattr(run, "routers", routers)


def counting_door(monkeypatch):
    """A door that counts what it refuses into the service's counts, once there is one."""

    class Counting(Door):
        def _count(self, path, status):
            self._counts = self.service().counts
            super()._count(path, status)

    made = {}
    old = run.Service

    def service(*args, **kwargs):
        made["service"] = old(*args, **kwargs)
        return made["service"]

    Counting.service = staticmethod(lambda: made["service"])
    monkeypatch.setattr(run, "Service", service)
    monkeypatch.setattr(run, "Door", Counting)


def place(url):
    parts = urlsplit(url)
    return parts.hostname, parts.port


def connect(url, receive_bytes=None, timeout=20):
    sock = socket.socket()
    if receive_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.settimeout(timeout)
    sock.connect(place(url))
    return sock


def post_bytes(path, body, *, headers=(), length=None):
    """A whole request."""
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json"]
    lines.append(f"Content-Length: {len(body) if length is None else length}")
    return "\r\n".join([*lines, *headers, "", ""]).encode() + body


def read_all(sock, seconds=20):
    """Everything until the other side closes (or resets, or ``seconds`` passed)."""
    got, until = b"", time.time() + seconds
    while time.time() < until:
        try:
            sock.settimeout(max(0.01, until - time.time()))
            part = sock.recv(65536)
        except OSError:
            break
        if not part:
            break
        got += part
    return got


def read_answer(sock):
    """One answer: status, headers (lower case), body."""
    answer = http.client.HTTPResponse(sock)
    answer.begin()
    return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()


def ask(url, method, path, body=None, headers=None, timeout=20):
    """A well-formed request; status, headers, body (parsed when JSON)."""
    with closing(http.client.HTTPConnection(*place(url), timeout=timeout)) as connection:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        given = {"Content-Type": "application/json", **(headers or {})}
        connection.request(method, path, data, given)
        answer = connection.getresponse()
        text = answer.read()
        kind = answer.headers.get("content-type", "")
        heads = {k.lower(): v for k, v in answer.getheaders()}
        return answer.status, heads, json.loads(text) if text and kind[:16] == "application/json" else text.decode()


def until(condition, seconds=5):
    """Wait for it; whether it came."""
    end = time.time() + seconds
    while time.time() < end:
        if condition():
            return True
        time.sleep(0.005)
    return False


def key(secret):
    return {"Authorization": f"Bearer {secret}"}

"""A small OpenAI server for tests: deterministic, with a prefix cache, delays, and faults on request.

Also a program: ``python fake_server.py`` prints its port and serves until it is killed (for measuring the client).
"""

from __future__ import annotations

import json
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

VOCAB = 1000


@dataclass
class Ways:
    """How the server behaves. ``faults``: request number (from 0, after ``quiet`` ones) to a kind of fault."""

    models: tuple[str, ...] = ("fake",)
    tokenize: bool = True
    server_info: dict[str, Any] | None = None
    ids_accepted: bool = True
    chat: bool = True
    completions: bool = True
    usage: bool = True
    cached: bool = True
    refuses: tuple[str, ...] = ()
    tells_ids: bool = True
    per_event: int = 1
    together: bool = False
    """Whether all events of an answer are sent at once."""
    prefill_s_per_token: float = 0.0
    overhead_s: float = 0.0
    token_s: float = 0.0
    api_key: str = ""
    capacity: int | None = None
    """Prompts the cache remembers (None: all)."""
    stop_after: int | None = None
    done_line: bool = True
    newline: bytes = b"\n"
    faults: dict[int, str] = field(default_factory=dict)
    every: str = ""
    sleep: Callable[[float], None] = time.sleep
    skip: int = 1
    """Requests answered normally before ``faults`` and ``every`` count: the probe."""


@dataclass
class Seen:
    """What arrived: bodies of generating requests, and other paths."""

    bodies: list[dict[str, Any]] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    known: list[list[int]] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0


def ids_of(text: str) -> list[int]:
    """An answer's words (w17) give the ids they were made of; others a digest."""
    return [
        int(word[1:]) if word[:1] == "w" and word[1:].isdigit() else zlib.crc32(word.encode()) % VOCAB
        for word in text.split()
    ]


def prompt_ids(body: dict[str, Any]) -> list[int]:
    if "messages" in body:
        return [i for m in body["messages"] for i in [VOCAB + len(m["role"]), *ids_of(m["content"])]]
    prompt = body["prompt"]
    return ids_of(prompt) if isinstance(prompt, str) else prompt


def answer_ids(ids: list[int], count: int) -> list[int]:
    state, out = zlib.crc32(repr(ids).encode()), []
    for _ in range(count):
        state = zlib.crc32(repr(state).encode())
        out.append(state % VOCAB)
    return out


def shared(a: list[int], b: list[int]) -> int:
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    ways: Ways
    seen: Seen
    lock: threading.Lock

    def log_message(self, *_: Any) -> None:
        pass

    def reply(self, status: int, body: Any, kind: str = "application/json") -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def refuse(self, status: int, message: str) -> None:
        self.reply(status, {"error": {"message": message}})

    def allowed(self) -> bool:
        if self.ways.api_key and self.headers.get("Authorization") != f"Bearer {self.ways.api_key}":
            self.refuse(401, "no key")
            return False
        return True

    def do_GET(self) -> None:
        if not self.allowed():
            return
        if self.path == "/v1/models":
            self.reply(200, {"object": "list", "data": [{"id": m} for m in self.ways.models]})
        elif self.path == "/server_info" and self.ways.server_info is not None:
            self.reply(200, self.ways.server_info)
        else:
            self.refuse(404, "no such path")

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["Content-Length"] or 0))
        if not self.allowed():
            return
        if self.path == "/tokenize" and self.ways.tokenize:
            ids = ids_of(json.loads(raw)["prompt"])
            self.reply(200, {"tokens": ids, "count": len(ids)})
        elif self.path == "/reset_prefix_cache":
            self.seen.paths.append(self.path)
            self.seen.known.clear()
            self.reply(200, b"")
        elif (self.path == "/v1/completions" and self.ways.completions) or (
            self.path == "/v1/chat/completions" and self.ways.chat
        ):
            self.generate(raw)
        else:
            self.refuse(404, "no such path")

    def generate(self, raw: bytes) -> None:
        body, ways, seen = json.loads(raw), self.ways, self.seen
        for name in ways.refuses:
            if name in body:
                return self.refuse(400, f"unknown field {name}")
        if body["model"] not in ways.models:
            return self.refuse(404, "no such model")
        if isinstance(body.get("prompt"), list) and not ways.ids_accepted:
            return self.refuse(400, "prompt must be a string")
        with self.lock:
            number = len(seen.bodies) - ways.skip
            seen.bodies.append(body)
            seen.raw.append(raw)
            seen.in_flight += 1
            seen.most_in_flight = max(seen.most_in_flight, seen.in_flight)
        try:
            self.answer(body, ways.faults.get(number, ways.every) if number >= 0 else "")
        finally:
            with self.lock:
                seen.in_flight -= 1

    def answer(self, body: dict[str, Any], fault: str) -> None:
        ways, ids = self.ways, prompt_ids(body)
        if fault == "busy":
            return self.refuse(503, "draining")
        if fault == "json":
            return self.reply(200, {"choices": [{"text": "whole"}]})
        if fault == "drop":
            self.close_connection = True
            return self.connection.shutdown(2)
        with self.lock:
            kept = self.seen.known[-ways.capacity :] if ways.capacity else self.seen.known
            cached = min(max((shared(ids, k) for k in kept), default=0), len(ids) - 1)
        ways.sleep(ways.overhead_s + ways.prefill_s_per_token * (len(ids) - cached))
        count = min(body["max_tokens"], ways.stop_after or body["max_tokens"])
        out = answer_ids(ids, count)
        with self.lock:
            self.seen.known.append([*ids, *out])
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.stream(body, ids, out, cached, fault)

    def chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def event(self, payload: Any) -> None:
        data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        if self.ways.together:
            self.held = getattr(self, "held", b"") + b"data: " + data + self.ways.newline * 2
        else:
            self.chunk(b"data: " + data + self.ways.newline * 2)

    def stream(self, body: dict[str, Any], ids: list[int], out: list[int], cached: int, fault: str) -> None:
        ways, chat = self.ways, "messages" in body
        if chat:
            self.event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        for at in range(0, 0 if fault == "empty" else len(out), ways.per_event):
            some = out[at : at + ways.per_event]
            time.sleep(ways.token_s)
            if fault and at >= len(out) // 2:
                return self.go_wrong(fault)
            text = "".join(f" w{i}" for i in some)
            choice: dict[str, Any] = {"delta": {"content": text}} if chat else {"text": text}
            if ways.tells_ids and body.get("return_token_ids"):
                choice["token_ids"] = some
            choice["finish_reason"] = "length" if at + len(some) == len(out) else None
            self.event({"choices": [choice]})
        if ways.usage and body.get("stream_options"):
            usage: dict[str, Any] = {
                "prompt_tokens": len(ids),
                "completion_tokens": 0 if fault == "empty" else len(out),
            }
            if ways.cached:
                usage["prompt_tokens_details"] = {"cached_tokens": cached}
            self.event({"choices": [], "usage": usage})
        if ways.done_line:
            self.event(b"[DONE]")
        if ways.together:
            self.chunk(self.held)
            self.held = b""
        self.chunk(b"")

    def go_wrong(self, fault: str) -> None:
        self.close_connection = True
        if fault == "garbage":
            self.event(b"{not json")
            self.chunk(b"")
        elif fault == "shape":
            self.event({"choices": [{"text": 5}]})
            self.chunk(b"")
        elif fault == "error":
            self.event({"error": {"message": "out of blocks"}})
            self.chunk(b"")
        elif fault == "end":
            self.chunk(b"")
        elif fault == "hang":
            time.sleep(1.0)
        elif fault == "cut":
            self.connection.shutdown(2)


class Quiet(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_: Any) -> None:
        """Clients may go away."""


class FakeServer:
    """``with FakeServer(per_event=4) as server: server.url``."""

    def __init__(self, **ways: Any) -> None:
        self.seen = Seen()
        bound = {"ways": Ways(**ways), "seen": self.seen, "lock": threading.Lock(), "wbufsize": 0}
        self.http = Quiet(("127.0.0.1", 0), type("Bound", (Handler,), bound))
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def __enter__(self) -> FakeServer:
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.http.shutdown()
        self.http.server_close()


if __name__ == "__main__":
    with FakeServer() as running:
        print(running.url, flush=True)
        threading.Event().wait()

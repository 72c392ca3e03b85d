"""A server in its own process, and a client that costs next to nothing: plain sockets, one connection a request."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

START_S = 120


@dataclass
class Server:
    """A running ``kvist serve``."""

    port: int
    process: subprocess.Popen[bytes]

    def get(self, path: str) -> Any:
        """A JSON answer."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as answer:
            return json.loads(answer.read())

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """A JSON answer to a JSON question."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            json.dumps(body or {}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=300) as answer:
            return json.loads(answer.read())

    def metric(self, name: str, label: str = "") -> float:
        """The sum of a metric over its labels, or over those that hold ``label`` (``state="live"``)."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        found = [line for line in lines if line.split("{")[0].split(" ")[0] == name and label in line]
        if not found:
            raise SystemExit(f"/metrics has no {name} {label}")
        return sum(float(line.rsplit(" ", 1)[1]) for line in found)

    def cpu_s(self) -> float:
        """Processor seconds the server has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_bytes(self) -> int:
        """Resident memory."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def open_sockets(self) -> int:
        """Sockets the server has open."""
        links = Path(f"/proc/{self.process.pid}/fd").iterdir()
        return sum(_is_socket(link) for link in links)


def _is_socket(link: Path) -> bool:
    try:
        return os.readlink(link).startswith("socket:")
    except OSError:
        return False


@contextmanager
def serve(*args: str, threads: int | None = None) -> Iterator[Server]:
    """``kvist serve`` with these arguments on a free port, ready; SIGTERM at the end."""
    port = _free_port()
    command = [sys.executable, "-c", "from kvist.cli.entry import run; run()", "serve", "--port", str(port)]
    if threads:
        args = (*args, "--threads", str(threads))
    process = subprocess.Popen([*command, "--log-level", "warning", *args], stderr=subprocess.PIPE)
    server = Server(port, process)
    try:
        _wait(server)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()


def _free_port() -> int:
    import socket

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _wait(server: Server) -> None:
    until = time.time() + START_S
    while time.time() < until:
        if server.process.poll() is not None:
            assert server.process.stderr is not None
            raise SystemExit("the server ended: " + server.process.stderr.read().decode()[-2000:])
        try:
            if server.get("/ready"):
                return
        except OSError:
            time.sleep(0.05)
    raise SystemExit("the server did not start")


@dataclass
class Reply:
    """One answer. ``at_s`` are the moments at which bytes with events came, ``events`` how many came in each."""

    status: int = 0
    start_s: float = 0.0
    end_s: float = 0.0
    at_s: list[float] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    body: bytes = b""

    @property
    def json(self) -> Any:
        """The body of a whole answer."""
        return json.loads(self.body)

    @property
    def ttft_s(self) -> float:
        """Seconds to the first event."""
        return self.at_s[0] - self.start_s

    @property
    def gaps_s(self) -> list[float]:
        """Seconds between events."""
        return [b - a for a, b in zip(self.at_s, self.at_s[1:], strict=False)]

    @property
    def usage(self) -> dict[str, Any]:
        """What it cost: of a whole answer, or of a stream that was asked to say."""
        if not self.at_s:
            return dict(self.json["usage"])
        found: dict[str, Any] = {}
        for line in self.body.split(b"\n"):
            if line.startswith(b"data: {") and b'"usage":{' in line:
                found = json.loads(line[6:])["usage"]
        return found

    def token_ids(self) -> list[int]:
        """Ids of a stream or of a whole answer that was asked to return them."""
        if not self.at_s:
            return list(self.json["choices"][0]["token_ids"])
        out: list[int] = []
        for line in self.body.split(b"\n"):
            if line.startswith(b"data: {"):
                for choice in json.loads(line[6:]).get("choices", ()):
                    out += choice.get("token_ids") or []
        return out


class Client:
    """Sends requests to one server."""

    def __init__(self, port: int, key: str = "") -> None:
        self._port = port
        self._key = key

    async def post(self, path: str, body: dict[str, Any], *, keep_body: bool = True) -> Reply:
        """Send, and read to the end."""
        reply = Reply()
        await self._post(reply, path, body, keep_body=keep_body)
        return reply

    async def stream_into(self, reply: Reply, body: dict[str, Any]) -> None:
        """Stream a completion; what came before it is cancelled stays in ``reply``."""
        await self._post(reply, "/v1/completions", body, keep_body=False)

    async def _post(self, reply: Reply, path: str, body: dict[str, Any], *, keep_body: bool) -> None:
        reply.start_s = time.perf_counter()
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 22)
        try:
            data = json.dumps(body).encode()
            key = f"Authorization: Bearer {self._key}\r\n" if self._key else ""
            head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n{key}"
            writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
            await self._read(reader, reply, stream=bool(body.get("stream")), keep_body=keep_body)
        finally:
            writer.close()
        reply.end_s = time.perf_counter()

    async def _read(self, reader: asyncio.StreamReader, reply: Reply, *, stream: bool, keep_body: bool) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        reply.status = int(head.split(b" ", 2)[1])
        chunked = b"chunked" in head.lower()
        parts: list[bytes] = []
        while chunked:
            size = int(await reader.readuntil(b"\r\n"), 16)
            data = (await reader.readexactly(size + 2))[:-2]
            if not size:
                break
            if stream and (count := data.count(b"data: {")):
                reply.at_s.append(time.perf_counter())
                reply.events.append(count)
            if keep_body:
                parts.append(data)
        reply.body = b"".join(parts) if chunked else await reader.read()


def completion(prompt: list[int] | str, max_tokens: int, **more: Any) -> dict[str, Any]:
    """A greedy completion that does not stop early."""
    return {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, **more}


def ids(n: int, seed: int) -> list[int]:
    """Made-up token ids, the same for a seed."""
    import random

    draw = random.Random(seed)
    return [draw.randrange(1000, 40000) for _ in range(n)]

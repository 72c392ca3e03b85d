"""Talks to the server: streams an answer event by event, or asks a small question. Failures have kinds."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from kvist.bench.record import Timeline
from kvist.bench.sse import EventParser
from kvist.bench.wire import Failure, error_message, read_piece

CONNECT_S: Final = 10.0
DRAIN_S: Final = 1.0
"""How long the end of a stream is awaited after ``[DONE]``, so that the connection can be used again."""
_LOCAL: Final = ("localhost", "127.0.0.1", "::1")

clock: Callable[[], float] = time.perf_counter


class Client:
    """One server, by its root address. An async context manager."""

    def __init__(self, root: str, *, api_key: str | None, timeout_s: float) -> None:
        headers = {"Accept-Encoding": "identity", "Content-Type": "application/json"}
        if api_key:
            headers["Authorization"] = f"Bearer {api_key}"
        self.root = root
        self._timeout_s = timeout_s
        self._http = httpx.AsyncClient(
            headers=headers,
            timeout=httpx.Timeout(None, connect=min(CONNECT_S, timeout_s)),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            trust_env=urlsplit(root).hostname not in _LOCAL,
        )

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """One JSON answer. Raises ``Failure``."""
        content = None if body is None else json.dumps(body).encode()
        async with _kinds(self._timeout_s):
            response = await self._http.request(method, self.root + path, content=content)
        if response.status_code != 200:
            raise Failure(f"http_{response.status_code}", _message(response.content))
        if not response.content:
            return None
        try:
            return response.json()
        except ValueError:
            raise Failure("garbage", f"{path} answered no JSON: {response.text[:120]!r}") from None

    async def stream(self, path: str, body: Any, line: Timeline) -> None:
        """Send and fill ``line`` event by event. Raises ``Failure``; ``line`` then holds what came."""
        content = json.dumps(body, separators=(",", ":")).encode()
        line.sent_s = clock()
        async with (
            _kinds(self._timeout_s, line) as limit,
            self._http.stream("POST", self.root + path, content=content) as response,
        ):
            if response.status_code != 200:
                raise Failure(f"http_{response.status_code}", _message(await response.aread()))
            kind = response.headers.get("content-type", "none")
            if not kind.startswith("text/event-stream"):
                raise Failure("not_sse", f"asked for a stream, got {kind}")
            await _read(response, line, limit)
        if line.end_s is None:
            line.end_s = clock()
            if not line.finish_reason:
                raise Failure("cut", f"the stream ended after {line.events} events without [DONE] or a finish_reason")
        if not line.events and not line.counted_output_tokens:
            raise Failure("empty", "the stream carried no tokens")


async def _read(response: httpx.Response, line: Timeline, limit: asyncio.Timeout) -> None:
    parser = EventParser()
    async for chunk in response.aiter_raw():
        now_s = clock()
        for data in parser.feed(chunk):
            if data == b"[DONE]":
                line.end_s = now_s
                limit.reschedule(asyncio.get_running_loop().time() + DRAIN_S)
            elif line.end_s is None and data:
                line.take(_parse(data), now_s)


def _parse(data: bytes) -> Any:
    try:
        return read_piece(json.loads(data))
    except (ValueError, RecursionError):
        raise Failure("garbage", f"an event is not JSON: {data[:120]!r}") from None


def _message(content: bytes) -> str:
    try:
        return error_message(json.loads(content))
    except (ValueError, RecursionError):
        return content[:200].decode(errors="replace")


@asynccontextmanager
async def _kinds(timeout_s: float, line: Timeline | None = None) -> AsyncIterator[asyncio.Timeout]:
    """Exceptions of the network become ``Failure``; a stream that said ``[DONE]`` may end as it likes."""
    try:
        async with asyncio.timeout(timeout_s) as limit:
            yield limit
    except (TimeoutError, httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        if line is not None and line.end_s is not None:
            return
        raise _failure(error, timeout_s) from error


def _failure(error: Exception, timeout_s: float) -> Failure:
    if isinstance(error, httpx.ConnectTimeout):
        return Failure("timeout", f"no connection within {min(CONNECT_S, timeout_s):g} s")
    if isinstance(error, TimeoutError | httpx.TimeoutException):
        return Failure("timeout", f"no end within {timeout_s:g} s")
    if isinstance(error, httpx.ConnectError | httpx.InvalidURL | httpx.UnsupportedProtocol):
        return Failure("refused", str(error) or "connection refused")
    return Failure("cut", str(error) or type(error).__name__)

"""Answers on their way to a client: as events while they come, or whole; either ends when the client goes away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any, Final, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")
DONE: Final = b"data: [DONE]\n\n"


class Gone(Exception):
    """The client went away: there is nobody to answer."""


def dump(value: Any) -> bytes:
    """JSON in UTF-8. Half characters (lone surrogates) go out escaped: they are JSON, if not text."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


class Json(Response):
    """A JSON answer."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The body."""
        return dump(content)


def event(value: Any, name: str = "") -> bytes:
    """One server-sent event."""
    head = f"event: {name}\n".encode() if name else b""
    return b"%sdata: %s\n\n" % (head, dump(value))


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """``chunks`` (whole events) as they come. ``close`` is called at the end, whatever the end was.

    A client that takes nothing for ``write_timeout_s`` is treated as one that went away.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        chunks: AsyncIterator[bytes],
        close: Callable[[], None],
        *,
        write_timeout_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._chunks = chunks
        self._close = close
        self._write_timeout_s = write_timeout_s
        self.status_code = 200
        self.background = None
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **(headers or {})})

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        """Headers without a length: nobody knows it."""
        given = {"content-type": "text/event-stream; charset=utf-8", **(headers or {})}
        self.raw_headers = [(k.lower().encode("latin-1"), v.encode("latin-1")) for k, v in given.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the chunks end or the client is gone."""
        tasks: list[asyncio.Task[None]] = []
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            pump = asyncio.ensure_future(self._pump(send))
            tasks += [pump, asyncio.ensure_future(_until_gone(receive))]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if pump.done():
                pump.result()
        finally:
            self._close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pump(self, send: Send) -> None:
        try:
            async for chunk in self._chunks:
                async with asyncio.timeout(self._write_timeout_s) as limit:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                    limit.reschedule(None)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            return


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T], close: Callable[[], None]) -> T:
    """The result of ``work``; raises ``Gone`` when the client went away first. ``close`` is called either way."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_until_gone(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Gone
        return task.result()
    finally:
        close()
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)

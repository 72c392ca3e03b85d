"""Answers from the first moment: while the model is loading every request gets 503 and how far it is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from kvist.server.refuse import busy
from kvist.server.shapes import error_body
from kvist.server.stream import Json


class Front:
    """The outermost application. ``load`` runs once, as a task, when the server starts to listen.

    ``progress`` is the loaded part in [0, 1]. When ``load`` raises, ``on_failure`` is told.
    """

    def __init__(
        self,
        load: Callable[[], Awaitable[ASGIApp]],
        on_failure: Callable[[BaseException], None],
        on_stop: Callable[[], Awaitable[None]],
    ) -> None:
        self.progress = 0.0
        self._load = load
        self._on_failure = on_failure
        self._on_stop = on_stop
        self._app: ASGIApp | None = None
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, once there is somebody to pass to."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif self._app is not None:
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            refusal = busy(f"the model is loading ({self.progress:.0%})", retry_after_s=2, status=503, code="loading")
            body = {"status": "loading", "progress": round(self.progress, 3), **error_body(refusal, scope["path"])}
            await Json(body, status_code=503, headers=refusal.headers)(scope, receive, send)

    def abandon(self) -> None:
        """Load no further: what is being loaded is let go of and never starts to answer."""
        if self._task is not None:
            self._task.cancel()

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        self._task = asyncio.create_task(self._open())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self.abandon()
        await self._on_stop()
        await send({"type": "lifespan.shutdown.complete"})

    async def _open(self) -> None:
        try:
            self._app = await self._load()
        except Exception as error:
            self._on_failure(error)

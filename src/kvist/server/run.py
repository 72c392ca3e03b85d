"""One server from start to end: listen, load, serve, drain."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from kvist.errors import UsageError
from kvist.server.app import make_app
from kvist.server.chat import Chats
from kvist.server.config import ServeConfig
from kvist.server.desk import Desk
from kvist.server.door import Door
from kvist.server.front import Front
from kvist.server.guard import GuardedProtocol
from kvist.server.observe.base import Observer
from kvist.server.routes import routers
from kvist.server.served import Loader, Served
from kvist.server.service import Service
from kvist.server.sessions.sessions import Sessions

Progress = Callable[[float], None]


class Host:
    """A server that has not started yet. ``load`` is called on a worker thread with a function to report progress to.

    ``on_ready`` is told the address, the service, and where what people wrote is kept besides the tiers.
    """

    def __init__(
        self,
        load: Callable[[Progress], Served],
        config: ServeConfig,
        *,
        now: Callable[[], float],
        loader: Loader | None = None,
        observers: Sequence[Observer] = (),
        on_ready: Callable[[str, Service, Mapping[str, Path]], None] = lambda address, service, kept: None,
    ) -> None:
        self.config = config
        self.service: Service | None = None
        self.chats: Chats | None = None
        self.failure: BaseException | None = None
        self.cut = 0
        """Answers that had not ended when the time to drain was over."""
        self._load = load
        self._now = now
        self._loader = loader
        self._observers = observers
        self._on_ready = on_ready
        self._front = Front(self._open, self._fail, self._close)
        self._socket = _listen(config)
        host, port = self._socket.getsockname()[:2]
        self.address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        """Where it listens."""
        self._server = _Server(self._uvicorn_config(), self._drain)

    @property
    def interrupted(self) -> bool:
        """True when Ctrl-C ended it."""
        return self._server.interrupted

    def run(self) -> None:
        """Serve until a signal or ``stop``. Raises what made loading, or the engine, fail."""
        try:
            with asyncio.Runner(loop_factory=self._server.config.get_loop_factory()) as runner:
                runner.run(self._server.serve(sockets=[self._socket]))
        finally:
            self._socket.close()
            gc.unfreeze()
        if self.failure is not None:
            raise self.failure

    def stop(self) -> None:
        """End it: like a SIGTERM. Safe from any thread."""
        self._server.begin_drain()

    def _uvicorn_config(self) -> uvicorn.Config:
        config = self.config
        return uvicorn.Config(
            self._front,
            http=GuardedProtocol.of(header_timeout_s=config.read_timeout_s, write_timeout_s=config.write_timeout_s),
            ws="none",
            loop="auto",
            lifespan="on",
            access_log=False,
            log_config=None,
            server_header=False,
            limit_concurrency=config.max_connections,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=5,
            backlog=2048,
        )

    async def _open(self) -> ASGIApp:
        served = await asyncio.to_thread(self._load, self._note_progress)
        gc.collect()
        gc.freeze()  # what is loaded stays: looking through it again and again would stop answers for tens of ms
        service = Service(served, self.config, now=self._now, loader=self._loader)
        service.observers += self._observers
        service.on_death = self._fail
        service.start()
        self.service = service
        self.chats = Chats(service)
        await asyncio.to_thread(self.chats.memory.open)
        desk = Desk(service, self.chats, Sessions(service), self.config)
        app = make_app(routers(desk), lambda inner: Door(inner, self.config, service.counts), version=version("kvist"))
        self._on_ready(self.address, service, _kept(desk))
        return app

    def _note_progress(self, part: float) -> None:
        self._front.progress = part

    def _fail(self, error: BaseException) -> None:
        self.failure = error
        self._server.should_exit = True

    async def _close(self) -> None:
        if self.service is not None:
            await self.service.stop()
        if self.chats is not None:
            await asyncio.to_thread(self.chats.memory.close)

    async def _drain(self) -> None:
        """Running answers and then the tiers have ``drain_s`` together, the tiers a few seconds in any case."""
        if self.service is None:
            self._front.abandon()
        else:
            until = self._now() + self.config.drain_s
            self.cut = await self.service.drain(self.config.drain_s)
            await self.service.stop(flush_s=until - self._now())


class _Server(uvicorn.Server):
    """Drains on the first signal, leaves at once on the second."""

    def __init__(self, config: uvicorn.Config, drain: Callable[[], Any]) -> None:
        super().__init__(config)
        self._drain = drain
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.interrupted = False

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Until it is told to end."""
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    def begin_drain(self) -> None:
        """From any thread, or from a signal."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._start_drain)

    def _start_drain(self) -> None:
        if self._task is None:
            self._task = asyncio.ensure_future(self._drain_then_leave())

    async def _drain_then_leave(self) -> None:
        await self._drain()
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal came."""
        if self._task is not None:
            os._exit(130 if sig == signal.SIGINT else 1)  # asked twice: nothing is worth waiting for
        self.interrupted = sig == signal.SIGINT
        self.begin_drain()


def _kept(desk: Desk) -> dict[str, Path]:
    """Where answers and sessions are kept, as far as they are."""
    places = {"answers": desk.chats.memory.path, "sessions": desk.sessions.folder}
    return {what: path for what, path in places.items() if path is not None}


def _listen(config: ServeConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((config.host, config.port))
    except OSError as error:
        sock.close()
        what = f"cannot listen on {config.host}:{config.port} ({error.strerror or error})"
        raise UsageError(what, remedy="choose another --port or --host, or stop what listens there") from error
    sock.listen(2048)
    sock.set_inheritable(True)
    return sock

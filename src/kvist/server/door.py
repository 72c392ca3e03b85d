"""The first thing a request meets: who asks, how big it is, how long it takes to come, what it is called.

Runs before anything is parsed, so that nobody without a key, and nobody with a body beyond the limit, costs more than
a glance.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections import Counter
from dataclasses import replace
from typing import Final

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvist.server.config import ServeConfig
from kvist.server.observe.trace import PARENT
from kvist.server.refuse import Refusal
from kvist.server.shapes import refuse
from kvist.server.stream import Gone
from kvist.server.tenants import Tenant

OPEN_PATHS: Final = frozenset({"/health", "/ready", "/ping", "/version", "/metrics"})
GONE: Final = 499
"""The status of answers to nobody."""
NAME: Final = re.compile(r"[\x21-\x7e]{1,128}")
"""What a client may call its request: printable ASCII without spaces, 128 characters at most."""
MAX_DIGITS: Final = 18


class Unfit(HTTPException):
    """A body refused while it is being read. The framework lets only its own kind of error through."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.status, refusal.what)
        self.refusal = refusal


class Door:
    """ASGI middleware. ``scope["state"]`` gets ``tenant`` and ``name``; the answer gets ``X-Request-Id``.

    ``counts`` gets ``refused_<status>`` for every answer with an error, but for the open paths.
    """

    def __init__(self, app: ASGIApp, config: ServeConfig, counts: Counter[str] | None = None) -> None:
        self._app = app
        self._config = config
        self._counts: Counter[str] = Counter() if counts is None else counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let it in, or say why not."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
        name = headers.get("x-request-id", "")
        name = name if NAME.fullmatch(name) else secrets.token_hex(8)
        state = scope.setdefault("state", {})
        state["name"] = name
        PARENT.set(headers.get("traceparent", ""))  # always: the task of a connection's next request inherits it
        limited = _Limited(receive, self._config.max_body_bytes, self._config.read_timeout_s)
        started = False

        async def named(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                self._count(scope["path"], message["status"])
                message["headers"] = [*message["headers"], (b"x-request-id", name.encode())]
            await send(message)

        try:
            state["tenant"] = self._tenant(scope["path"], headers)
            limited.check_length(headers.get("content-length"))
            await self._app(scope, limited, named)
        except Refusal as error:
            if started:
                raise
            await refuse(error, scope["path"])(scope, receive, named)
        except Gone:
            return

    def _count(self, path: str, status: int) -> None:
        if status >= 400 and status != GONE and path not in OPEN_PATHS:
            self._counts[f"refused_{status}"] += 1

    def _tenant(self, path: str, headers: dict[str, str]) -> Tenant:
        tenants = self._config.tenants
        scheme, _, token = headers.get("authorization", "").partition(" ")
        key = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key")
        found = tenants.find(key)
        if found is not None and tenants.open and not self._config.loopback:
            return replace(found, admin=False)  # anybody on the network: not everybody's keeper
        if found is not None:
            return found
        if path in OPEN_PATHS:
            return Tenant("nobody")
        what = "no API key was given" if not key else "the API key is not known"
        remedy = "send Authorization: Bearer KEY, or x-api-key: KEY"
        raise Refusal(401, "invalid_api_key", what, remedy=remedy, headers={"WWW-Authenticate": "Bearer"})


class _Limited:
    """``receive`` with a bound on the bytes of a body and on the time that all of it takes to come."""

    def __init__(self, receive: Receive, max_bytes: int, timeout_s: float) -> None:
        self._receive = receive
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._until_s: float | None = None
        self._taken = 0
        self._whole = False

    def check_length(self, length: str | None) -> None:
        """Refuse by what the client announced."""
        if length is None or not length.isascii() or not length.isdigit():
            return
        if len(length) > MAX_DIGITS or int(length) > self._max_bytes:
            raise self._too_large(length.lstrip("0")[:MAX_DIGITS]).refusal

    def _too_large(self, size: int | str) -> Unfit:
        what = f"the body has {size} bytes or more, at most {self._max_bytes} are taken"
        return Unfit(
            Refusal(413, "body_too_large", what, remedy="send less, or start the server with --max-body-bytes")
        )

    async def __call__(self) -> Message:
        """The next message."""
        if self._whole:
            return await self._receive()
        if self._until_s is None:
            self._until_s = asyncio.get_running_loop().time() + self._timeout_s
        try:
            async with asyncio.timeout_at(self._until_s):
                message = await self._receive()
        except TimeoutError:
            what = f"the request did not come within {self._timeout_s:g} s"
            raise Unfit(Refusal(408, "request_timeout", what, headers={"Connection": "close"})) from None
        if message["type"] == "http.request":
            self._taken += len(message.get("body", b""))
            self._whole = not message.get("more_body", False)
            if self._taken > self._max_bytes:
                raise self._too_large(self._taken)
        return message

"""Bounds on a connection before there is a request: how large its head may be, and how long it may take to come."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES: Final = 64 * 1024
MAX_HEADERS: Final = 128
_REFUSE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n"
    b"at most %d headers and %d bytes of them are taken\n" % (MAX_HEADERS, MAX_HEAD_BYTES)
)


class GuardedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with a limit on the head of a request, in bytes, in headers and in seconds."""

    header_timeout_s: float = 30.0

    @classmethod
    def of(cls, *, header_timeout_s: float) -> type[GuardedProtocol]:
        """The protocol with another time limit."""
        return type(cls.__name__, (cls,), {"header_timeout_s": header_timeout_s})

    def connection_made(self, transport: Any) -> None:
        """A client came: its first request must follow."""
        super().connection_made(transport)
        self._head_bytes = self._head_count = 0
        self._late: asyncio.TimerHandle | None = None
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """It went."""
        self._head_came()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._head_bytes = self._head_count = 0
        self._expect_head()

    def on_url(self, url: bytes) -> None:
        """Part of the target."""
        self._weigh(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._head_count += 1
        self._weigh(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._head_came()
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        """Bytes. A head that never becomes a header is weighed too."""
        if self._late is not None:
            self._head_bytes += len(data) if len(data) > MAX_HEAD_BYTES else 0
        if not self.transport.is_closing():
            super().data_received(data)

    def _weigh(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES or self._head_count > MAX_HEADERS:
            self._head_came()
            self.transport.write(_REFUSE)
            self.transport.close()
            raise ValueError("the head of the request is too large")

    def _expect_head(self) -> None:
        if self._late is None:
            self._late = self.loop.call_later(self.header_timeout_s, self._too_late)

    def _head_came(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _too_late(self) -> None:
        self._late = None
        if not self.transport.is_closing():
            self.transport.close()

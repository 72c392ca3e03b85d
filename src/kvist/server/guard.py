"""Bounds on a connection that no application sees: how large the head of a request may be, how long its parts may take
to come, how long an answer may lie about unread; and every request on it learns when the client goes away.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

MAX_HEAD_BYTES: Final = 64 * 1024
MAX_HEADERS: Final = 128
MAX_PIPELINED: Final = 64
"""Requests that may wait behind the one being answered before reading stops."""
SEND_BUFFER_BYTES: Final = 128 * 1024
"""What the operating system may hold of an answer. It would take megabytes for each client that does not read."""
WRITE_HIGH_BYTES: Final = 16 * 1024
"""What this process holds before it waits for the client."""
LINGER_S: Final = 2.0
LINGER_BYTES: Final = 4 * 1024 * 1024
"""How long, and for how much, a refused client may still talk: closing at once would destroy the answer under way."""
GRACE_S: Final = 1.0
"""The door's own time limit comes first, for it can say why."""
_TOO_LARGE: Final = b"at most %d headers and %d bytes of them are taken" % (MAX_HEADERS, MAX_HEAD_BYTES)


class GuardedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits. ``header_timeout_s`` is for a head, and again for a body; a client that takes
    nothing for ``write_timeout_s`` while there is something for it is cut off.
    """

    header_timeout_s: float = 30.0
    write_timeout_s: float = 60.0

    @classmethod
    def of(cls, *, header_timeout_s: float, write_timeout_s: float | None = None) -> type[GuardedProtocol]:
        """The protocol with other time limits."""
        write = cls.write_timeout_s if write_timeout_s is None else write_timeout_s
        return type(cls.__name__, (cls,), {"header_timeout_s": header_timeout_s, "write_timeout_s": write})

    # --- the connection -------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """A client came: its first request must follow."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self._late: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._running: RequestResponseCycle | None = None
        self._deaf_bytes: int | None = None
        self._in_head, self._in_body = True, False
        self._head_bytes = self._head_count = self._raw_bytes = self._moves = 0
        self._expect(self.header_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """It went: whatever is being done for it, and whatever waits behind that, is told."""
        self._came()
        self._read()
        for cycle in (self._running, *(cycle for cycle, _ in self.pipeline)):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes. Those that never become a header, or part of a body, are weighed too."""
        if self._deaf_bytes is not None:
            self._deaf_bytes -= len(data)
            if self._deaf_bytes < 0:
                self.transport.abort()
            return
        if self.transport.is_closing():
            return
        moves = self._moves
        super().data_received(data)
        if self._moves != moves:
            self._raw_bytes = 0
        elif self._in_head or self._in_body:
            self._raw_bytes += len(data)
            if self._raw_bytes > MAX_HEAD_BYTES:
                self._answer(b"431 Request Header Fields Too Large", _TOO_LARGE)
        elif self._late is None and self._idle:
            self._expect(self.header_timeout_s)  # line ends between two requests: they keep nothing open

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP."""
        self._answer(b"400 Bad Request", msg.encode("ascii", "replace"))

    @property
    def _idle(self) -> bool:
        return self._running is None or self._running.response_complete

    def _answer(self, status: bytes, text: bytes) -> None:
        """Refuse without an application, and stop listening. Cuts the connection when another answer is under way."""
        if self._deaf_bytes is not None or self.transport.is_closing():
            return
        self._came()
        if not self._idle:
            self.transport.abort()
            return
        self._deaf_bytes = LINGER_BYTES
        head = (
            b"HTTP/1.1 %s\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head % (status, len(text)) + text)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._late = self.loop.call_later(LINGER_S, self._cut)

    # --- a request ------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._moves += 1
        self._in_head = True
        self._head_bytes = self._head_count = 0
        self._expect(self.header_timeout_s)

    def on_url(self, url: bytes) -> None:
        """Part of the target."""
        self._weigh(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, or one trailer of a body."""
        self._moves += 1
        self._head_count += 1
        self._weigh(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._moves += 1
        self._in_head, self._in_body = False, True
        self._came()
        self._expect(self.header_timeout_s + GRACE_S)
        super().on_headers_complete()
        if 0 < len(self.pipeline) <= MAX_PIPELINED:
            self.flow.resume_reading()  # else nobody would notice that the client goes

    def on_body(self, body: bytes) -> None:
        """Part of the body."""
        self._moves += 1
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is whole."""
        self._moves += 1
        self._in_body = False
        self._came()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The answer is whole: what of it the client has not taken yet must go."""
        super().on_response_complete()
        if self.transport.is_closing() and self.transport.get_write_buffer_size():
            self._watch()

    def timeout_keep_alive_handler(self) -> None:
        """Nothing more came."""
        self._cut()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _weigh(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES or self._head_count > MAX_HEADERS:
            self._answer(b"431 Request Header Fields Too Large", _TOO_LARGE)
            raise ValueError("the head of the request is too large")

    # --- time -----------------------------------------------------------------------------------------------------

    def _expect(self, timeout_s: float) -> None:
        if self._late is None:
            self._late = self.loop.call_later(timeout_s, self._too_late)

    def _came(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _too_late(self) -> None:
        self._late = None
        if self._in_body and self.flow.read_paused:
            self._expect(self.header_timeout_s)  # it is we who do not read
        else:
            self._cut()

    def _cut(self) -> None:
        """Close; at once when the client has not even read what it got."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        """The client does not read."""
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        """It does again."""
        self._read()
        super().resume_writing()

    def _watch(self) -> None:
        if self._unread is None:
            self._unread = self.loop.call_later(self.write_timeout_s, self._still_unread, self._left_bytes())

    def _read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _still_unread(self, before_bytes: int) -> None:
        self._unread = None
        left = self._left_bytes()
        if left >= before_bytes:
            self.transport.abort()
        elif left:
            self._watch()

    def _left_bytes(self) -> int:
        """What the client has not taken: here, and in the operating system, where it can be asked."""
        here: int = self.transport.get_write_buffer_size()
        try:
            answer = fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, b"\0\0\0\0")
        except (OSError, ValueError):
            return here
        there: int = struct.unpack("i", answer)[0]
        return here + there

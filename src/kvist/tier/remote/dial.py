"""Where a RESP server is (from a URL), and a pool of connections to it."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from kvist.tier.remote.place import left_s
from kvist.tier.remote.resp import Connection

T = TypeVar("T")

KEPT_IDLE: Final = 8


@dataclass(frozen=True, slots=True)
class Address:
    """``path`` is a unix socket, else ``host`` and ``port``. ``password`` empty: the server asks for none."""

    host: str = ""
    port: int = 6379
    path: str = ""
    tls: bool = False
    user: str = ""
    password: str = ""
    database: int = 0

    @property
    def where(self) -> str:
        """For people: without user and password."""
        if self.path:
            return f"unix://{self.path}" + (f"?db={self.database}" if self.database else "")
        place = f"{'rediss' if self.tls else 'redis'}://{self.host}:{self.port}"
        return f"{place}/{self.database}" if self.database else place


class Pool:
    """Opens connections when none is idle. One serves one thread at a time; after a failure it is closed."""

    def __init__(self, address: Address, *, connect_timeout_s: float = 1.0) -> None:
        self.where = address.where
        self._address = address
        self._connect_timeout_s = connect_timeout_s
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._closed = False

    def in_s(self, seconds: float) -> float:
        """A time that many seconds from now."""
        return time.monotonic() + seconds

    def use(self, until: float, work: Callable[[Connection], T]) -> T:
        """Do ``work`` with a connection; once more with a new one when an idle one turns out to be dead."""
        with self._lock:
            idle = self._idle.pop() if self._idle else None
        if idle is not None:
            try:
                return self._finish(idle, work)
            except TimeoutError:
                raise
            except OSError:  # the server went away, and perhaps came back, since this connection was last used
                self._drop_idle()
        return self._finish(self._connect(until), work)

    def close(self) -> None:
        """Close what is idle, and from now on whatever comes back."""
        self._closed = True
        self._drop_idle()

    def _finish(self, connection: Connection, work: Callable[[Connection], T]) -> T:
        try:
            result = work(connection)
        except BaseException:  # replies may be unread
            connection.close()
            raise
        self._give_back(connection)
        return result

    def _give_back(self, connection: Connection) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < KEPT_IDLE:
                self._idle.append(connection)
                return
        connection.close()

    def _drop_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _connect(self, until: float) -> Connection:
        until = min(until, time.monotonic() + self._connect_timeout_s)
        sock = self._open(until)
        try:
            connection, at = Connection(sock), self._address
            if at.password:
                connection.ask(["AUTH", *([at.user] if at.user else []), at.password], until)
            if at.database:
                connection.ask(["SELECT", at.database], until)
        except BaseException:
            sock.close()
            raise
        return connection

    def _open(self, until: float) -> socket.socket:
        at = self._address
        if at.path:
            sock = socket.socket(socket.AF_UNIX)
            try:
                sock.settimeout(left_s(until))
                sock.connect(at.path)
            except BaseException:
                sock.close()
                raise
            return sock
        sock = socket.create_connection((at.host, at.port), timeout=left_s(until))
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if at.tls:
                sock.settimeout(left_s(until))
                sock = ssl.create_default_context().wrap_socket(sock, server_hostname=at.host)
        except BaseException:
            sock.close()
            raise
        return sock

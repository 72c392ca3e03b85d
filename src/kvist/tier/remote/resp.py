"""The part of RESP2 (the protocol of Redis and Valkey) that a tier needs, over one socket.

Replies are read through a small buffer of our own; the bytes of a value go from the socket straight into the
caller's memory, but for the few that came with the line before them.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Final

from kvist.tier.remote.place import PlaceError, left_s

READ_BYTES: Final = 16384
LONGEST_LINE: Final = 65536


class Refused(PlaceError):
    """The server answered with an error; ``word`` is its first word (OOM, WRONGTYPE, READONLY, NOAUTH ...)."""

    def __init__(self, line: str) -> None:
        super().__init__(line)
        self.word = line.split(" ", 1)[0]


Reply = int | bytes | None | list["Reply"]


class Connection:
    """One socket. After an exception other than ``Refused`` it is out of step and fit for closing only."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = bytearray(READ_BYTES)
        self._at = self._end = 0
        """What was read and not used yet: buffer[at:end]."""

    def send(self, parts: Sequence[bytes | memoryview], until: float) -> None:
        """Write the parts one after the other."""
        for part in parts:
            self._sock.settimeout(left_s(until))
            self._sock.sendall(part)

    def ask(self, command: Sequence[bytes | int | str], until: float) -> Reply:
        """One command and its reply."""
        self.send([command_bytes(command)], until)
        return self.reply(until)

    def reply(self, until: float) -> Reply:
        """The next reply, whole. Raises ``Refused`` for an error reply."""
        kind, rest = self._line(until)
        if kind == b"+":
            return rest
        if kind == b"-":
            raise Refused(rest.decode(errors="replace"))
        if kind == b":":
            return _number(rest)
        if kind == b"$":
            size = _number(rest)
            if size < 0:
                return None
            body = bytearray(size)
            self.read_into(memoryview(body), until)
            self.end_bulk(until)
            return bytes(body)
        if kind == b"*":
            return [self.reply(until) for _ in range(_number(rest))]
        raise PlaceError(f"no RESP server: it answered {kind + rest[:40]!r}")

    def bulk_bytes(self, until: float) -> int | None:
        """Length of the value that comes next, to be read with ``read_into``, ``skip`` and ``end_bulk``. None: none."""
        kind, rest = self._line(until)
        if kind == b"-":
            raise Refused(rest.decode(errors="replace"))
        if kind != b"$":
            raise PlaceError(f"a value was expected, the server answered {kind + rest[:40]!r}")
        size = _number(rest)
        return None if size < 0 else size

    def read_into(self, view: memoryview, until: float) -> None:
        """Fill ``view`` with what comes next."""
        have = min(len(view), self._end - self._at)
        view[:have] = memoryview(self._buffer)[self._at : self._at + have]
        self._at += have
        while have < len(view):
            self._sock.settimeout(left_s(until))
            got = self._sock.recv_into(view[have:])
            if got == 0:
                raise ConnectionError("the server closed the connection")
            have += got

    def skip(self, n_bytes: int, until: float) -> None:
        """Read past bytes that nobody wants."""
        waste = memoryview(bytearray(min(n_bytes, 1 << 18)))
        while n_bytes > 0:
            some = waste[: min(n_bytes, len(waste))]
            self.read_into(some, until)
            n_bytes -= len(some)

    def end_bulk(self, until: float) -> None:
        """The two bytes that end every value."""
        end = bytearray(2)
        self.read_into(memoryview(end), until)
        if end != b"\r\n":
            raise PlaceError("the server's value is longer than it said")

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()

    def _line(self, until: float) -> tuple[bytes, bytes]:
        """The first byte of the next line and the rest of it."""
        line = b""
        while (end := self._buffer.find(b"\n", self._at, self._end)) < 0:
            line += self._buffer[self._at : self._end]
            if len(line) > LONGEST_LINE:
                raise PlaceError("no RESP server: its line does not end")
            self._sock.settimeout(left_s(until))
            self._at, self._end = 0, self._sock.recv_into(self._buffer)
            if self._end == 0:
                raise ConnectionError("the server closed the connection")
        line += self._buffer[self._at : end + 1]
        self._at = end + 1
        if len(line) < 3 or line[-2:] != b"\r\n":
            raise PlaceError(f"no RESP server: it answered {line[:40]!r}")
        return line[:1], line[1:-2]


def command_bytes(words: Sequence[bytes | int | str]) -> bytes:
    """A command as the server reads it."""
    parts = [w if isinstance(w, bytes) else str(w).encode() for w in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts)


def _number(text: bytes) -> int:
    try:
        return int(text)
    except ValueError:
        raise PlaceError(f"no RESP server: {text[:40]!r} is no number") from None

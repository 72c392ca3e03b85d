"""Server-sent events out of raw bytes, cut anywhere (WHATWG HTML, section 9.2.6; only ``data`` is kept)."""

from __future__ import annotations

from typing import Final

_BOM: Final = b"\xef\xbb\xbf"


class EventParser:
    """Feed it bytes as they come; it gives the data of each event that is complete."""

    __slots__ = ("_data", "_rest", "_skip_newline", "_started")

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._skip_newline = False
        self._started = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """Data of the events that ``chunk`` completes."""
        if not chunk:
            return []
        if self._skip_newline and chunk[0] == 10:  # the second half of a "\r\n" that was cut
            chunk = chunk[1:]
        self._skip_newline = chunk.endswith(b"\r")
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = (self._rest + chunk).split(b"\n")
        self._rest = lines.pop()
        if lines and not self._started:
            self._started = True
            lines[0] = lines[0].removeprefix(_BOM)
        return self._events(lines)

    def _events(self, lines: list[bytes]) -> list[bytes]:
        found, data = [], self._data
        for line in lines:
            if not line:
                if data:
                    found.append(data[0] if len(data) == 1 else b"\n".join(data))
                    data.clear()
            elif line.startswith(b"data:"):
                data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif line == b"data":
                data.append(b"")
        return found

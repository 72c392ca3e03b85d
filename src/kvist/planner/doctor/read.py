"""One way in for logs: find out who wrote it, and parse."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from kvist.errors import UsageError
from kvist.planner.doctor.base import EngineLog, Format, NothingRecognised
from kvist.planner.doctor.lines import MAX_LINES, split_lines
from kvist.planner.doctor.llama_cpp import LlamaCppFormat
from kvist.planner.doctor.sglang import SglangFormat
from kvist.planner.doctor.tensorrt_llm import TensorrtLlmFormat
from kvist.planner.doctor.vllm import VllmFormat
from kvist.planner.engines.registry import named
from kvist.units import MIB, format_bytes

FORMATS: Final[tuple[Format, ...]] = (VllmFormat(), SglangFormat(), LlamaCppFormat(), TensorrtLlmFormat())
ENGINES: Final = tuple(engine for one in FORMATS for engine in one.engines)
_ALIASES: Final = {"vllm-legacy": "vllm", "ipex-llm": "llama.cpp"}
"""Emulators whose engines write like another."""

MAX_BYTES: Final = 64 * MIB
"""Bytes that are read, from the start: engines print their memory before they serve, and a pipe may never end."""

_PIECE: Final = 1 << 20
_MARKS: Final = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be", b"\xef\xbb\xbf": "utf-8-sig"}


def parse_log(text: str, engine: str = "", *, bound: str = "") -> EngineLog:
    """Terms and settings of the last start in a log, whoever wrote it (or ``engine``, when given).

    The first ``MAX_LINES`` lines are looked at; ``bound`` says that ``text`` itself is only a start (``the first 64
    MiB``). A note then says so.

    The engine whose lines gave the most terms is taken. Raises ``NothingRecognised`` with the number of lines read, and
    ``UsageError`` for an engine whose logs are not known.
    """
    meant = _ALIASES.get(named(engine) or engine, named(engine) or engine)
    formats = [one for one in FORMATS if not engine or meant in one.engines]
    if not formats:
        raise UsageError(f"logs of {engine!r} are not known", remedy=f"one of {', '.join(ENGINES)}")
    lines = split_lines(text)
    if len(lines) == MAX_LINES or text.count("\n") > MAX_LINES:
        bound = f"the first {MAX_LINES:,} lines"
    found = [one.parse(lines) for one in formats]
    best = max(found, key=lambda log: (len(log.terms), len(log.settings)))
    if not best.terms:
        raise NothingRecognised(len(lines), ENGINES, bound)
    return replace(best, notes=(*best.notes, f"only {bound} of the log were read")) if bound else best


def read_log(path: str | Path, engine: str = "") -> EngineLog:
    """Parse the log in a file: UTF-8, or UTF-16 as Windows shells write it; bytes that are neither are skipped over.

    The start is read, up to ``MAX_BYTES``: also of a file or pipe that is longer or has no end. Raises ``UsageError``
    for a file that cannot be read, else as ``parse_log``.
    """
    place = Path(path)
    try:
        data, more = _start_of(place)
    except OSError as error:
        raise UsageError(f"{place} cannot be read: {error.strerror}", remedy="name a log file") from error
    encoding = next((e for mark, e in _MARKS.items() if data.startswith(mark)), "utf-8")
    bound = f"the first {format_bytes(MAX_BYTES)}" if more else ""
    return parse_log(data.decode(encoding, errors="replace"), engine, bound=bound)


def _start_of(place: Path) -> tuple[bytes, bool]:
    """The first bytes of a file or pipe, and whether there are more. Stops early at enough ends of lines."""
    data, ends = bytearray(), 0
    with place.open("rb") as file:
        while len(data) <= MAX_BYTES and ends <= MAX_LINES:
            piece = file.read(_PIECE)
            if not piece:
                return bytes(data), False
            data += piece
            ends += piece.count(b"\n")
    return bytes(data[:MAX_BYTES]), True

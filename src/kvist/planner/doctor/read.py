"""One way in for logs: find out who wrote it, and parse."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from kvist.errors import UsageError
from kvist.planner.doctor.base import EngineLog, Format, NothingRecognised
from kvist.planner.doctor.lines import split_lines
from kvist.planner.doctor.llama_cpp import LlamaCppFormat
from kvist.planner.doctor.sglang import SglangFormat
from kvist.planner.doctor.tensorrt_llm import TensorrtLlmFormat
from kvist.planner.doctor.vllm import VllmFormat
from kvist.planner.engines.registry import named
from kvist.units import format_bytes

FORMATS: Final[tuple[Format, ...]] = (VllmFormat(), SglangFormat(), LlamaCppFormat(), TensorrtLlmFormat())
ENGINES: Final = tuple(engine for one in FORMATS for engine in one.engines)
_ALIASES: Final = {"vllm-legacy": "vllm", "ipex-llm": "llama.cpp"}
"""Emulators whose engines write like another."""

MAX_BYTES: Final = 1 << 28
_MARKS: Final = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be", b"\xef\xbb\xbf": "utf-8-sig"}


def parse_log(text: str, engine: str = "") -> EngineLog:
    """Terms and settings of the last start in a log, whoever wrote it (or ``engine``, when given).

    The engine whose lines gave the most terms is taken. Raises ``NothingRecognised`` with the number of lines read, and
    ``UsageError`` for an engine whose logs are not known.
    """
    meant = _ALIASES.get(named(engine) or engine, named(engine) or engine)
    formats = [one for one in FORMATS if not engine or meant in one.engines]
    if not formats:
        raise UsageError(f"logs of {engine!r} are not known", remedy=f"one of {', '.join(ENGINES)}")
    lines = split_lines(text)
    found = [one.parse(lines) for one in formats]
    best = max(found, key=lambda log: (len(log.terms), len(log.settings)))
    if not best.terms:
        raise NothingRecognised(len(lines), ENGINES)
    return best


def read_log(path: str | Path, engine: str = "") -> EngineLog:
    """Parse the log in a file: UTF-8, or UTF-16 as Windows shells write it; bytes that are neither are skipped over.

    Raises ``UsageError`` for a file that cannot be read or is larger than 256 MiB, else as ``parse_log``.
    """
    place = Path(path)
    try:
        size = place.stat().st_size
        if size > MAX_BYTES:
            raise UsageError(
                f"{place} has {format_bytes(size)}; a log of up to {format_bytes(MAX_BYTES)} is read",
                remedy="cut out the part from the start of the process: head -n 20000",
            )
        data = place.read_bytes()
    except OSError as error:
        raise UsageError(f"{place} cannot be read: {error.strerror}", remedy="name a log file") from error
    encoding = next((e for mark, e in _MARKS.items() if data.startswith(mark)), "utf-8")
    return parse_log(data.decode(encoding, errors="replace"), engine)

"""Logs: one line per request at its end, and what happens to the server. Never a prompt, an answer or a key."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from kvist.errors import BadValue, KvistError
from kvist.server.job import Delta
from kvist.server.live import Live
from kvist.server.observe.tally import finish_of
from kvist.server.records import Record

LEVELS: Final = ("debug", "info", "warning", "error")
FORMATS: Final = ("text", "json")
LONGEST_CHARS: Final = 500
"""What is shown of a message in a field."""

_requests = logging.getLogger("kvist.requests")


def setup_logging(level: str = "info", format: str = "text") -> None:
    """Send the log to stderr. Raises ``BadValue``. Calling it again replaces what was set up before."""
    if level not in LEVELS:
        raise BadValue("log_level", level, f"one of {', '.join(LEVELS)}")
    if format not in FORMATS:
        raise BadValue("log_format", format, f"one of {', '.join(FORMATS)}")
    root = logging.getLogger("kvist")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if format == "json" else TextLines())
    web = logging.getLogger("uvicorn.error")
    for logger in (root, web):
        logger.handlers[:] = [handler]
        logger.propagate = False
    root.setLevel(level.upper())
    # the web server warns of every malformed request: anybody could fill the disk with that
    web.setLevel(logging.ERROR)


def fields_of(entry: logging.LogRecord) -> Mapping[str, Any]:
    """What was given as ``extra={"fields": {...}}``."""
    fields: Mapping[str, Any] = entry.__dict__.get("fields", {})
    return fields


class JsonLines(logging.Formatter):
    """One JSON object a line, ASCII only: nothing a client sends can break or forge a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **fields_of(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextLines(logging.Formatter):
    """A line that a person reads: time, level, message, ``name=value``."""

    def format(self, record: logging.LogRecord) -> str:
        """The line; control characters are escaped."""
        time = datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        fields = " ".join(f"{k}={_shown(v)}" for k, v in fields_of(record).items() if v is not None)
        head = f"{time} {record.levelname.lower():7} {_line(record.getMessage())}"
        text = f"{head} {fields}" if fields else head
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def _line(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _shown(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return json.dumps(text) if any(c.isspace() or not c.isprintable() for c in text) else text


class RequestLog:
    """An observer that writes one line per request when it ends."""

    def opened(self, record: Record) -> None:
        """Nothing yet."""

    def gained(self, record: Record, parcel: Delta | KvistError, now_s: float) -> None:
        """Nothing yet."""

    def ended(self, record: Record, live: Live) -> None:
        """The line: a warning when the engine failed."""
        finish = finish_of(record)
        level = logging.WARNING if finish == "error" else logging.INFO
        if _requests.isEnabledFor(level):
            _requests.log(level, "request", extra={"fields": request_fields(record)})


def request_fields(record: Record) -> dict[str, Any]:
    """What a request's line says. Times in milliseconds; None: there is no such number."""
    first = record.finishes.get(0)
    line = first.timeline if first else None
    bill = record.bill
    return {
        "request": record.id,
        "name": record.name,
        "tenant": record.tenant,
        "endpoint": record.kind,
        "finish": finish_of(record),
        "n": record.n,
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": bill.cached_tokens if bill else None,
        "completion_tokens": bill.completion_tokens if bill else record.output_tokens,
        "queue_ms": _ms(line.queue_s if line else None),
        "ttft_ms": _ms(None if record.first_token_s is None else record.first_token_s - record.arrived_s),
        "tpot_ms": _ms(line.tpot_s if line else None),
        "e2e_ms": _ms(None if record.done_s is None else record.done_s - record.arrived_s),
        "miss": line.matched.reason if line and line.matched else None,
        "preemptions": bill.preemptions if bill else None,
        "error": record.error[:LONGEST_CHARS] or None,
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)

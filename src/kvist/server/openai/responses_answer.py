"""A response on its way: its object, whole or as the events of a stream."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from kvist.errors import KvistError
from kvist.server.chat import Called, Ended
from kvist.server.openai.responses_output import Events, Output
from kvist.server.reading import Piece, Reader, check
from kvist.server.refuse import refusal_of

Keep = Callable[[dict[str, Any], list[Called], str], None]
"""Told a response that is complete: its object, its calls and its text."""


class Answer:
    """One answer: read it ``whole``, or ``told`` event by event. ``keep`` is called before the end is told."""

    def __init__(self, reader: Reader, model: str, echo: dict[str, Any], keep: Keep) -> None:
        self._reader = reader
        self._live = reader.conversation.live
        self._keep = keep
        self._output = Output()
        self._base = {
            "id": f"resp_{secrets.token_hex(24)}",
            "object": "response",
            "created_at": int(time.time()),
            "background": False,
            "model": model,
            **echo,
        }

    async def whole(self) -> dict[str, Any]:
        """The response, when it is complete. Raises what went wrong."""
        events = Events()
        while (pieces := await self._reader.pieces()) is not None:
            for piece in pieces:
                if isinstance(piece, Ended):
                    check(piece.finish)
                    return self._ended(piece, events)
                self._output.take(piece, events)
        raise AssertionError("an answer without an end")

    async def told(self, first: list[Piece]) -> AsyncIterator[bytes]:
        """The events, one chunk for all that came at once. ``first`` has been read already."""
        events = Events()
        for name in ("response.created", "response.in_progress"):
            events.say(name, {"response": self._response("in_progress")})
        try:
            yield self._chunk(first, events)
            while (pieces := await self._reader.pieces()) is not None:
                if pieces:
                    yield self._chunk(pieces, events)
        except KvistError as error:
            yield self._failed(error, events)

    def _chunk(self, pieces: list[Piece], events: Events) -> bytes:
        for piece in pieces:
            if not isinstance(piece, Ended):
                self._output.take(piece, events)
                continue
            try:
                check(piece.finish)
            except KvistError as error:
                return self._failed(error, events)
            response = self._ended(piece, events)
            events.say(f"response.{response['status']}", {"response": response})
        return events.taken()

    def _ended(self, end: Ended, events: Events) -> dict[str, Any]:
        cut = end.finish.reason == "length"
        status = "incomplete" if cut else "completed"
        self._output.close(events, status)
        response = self._response(status)
        response["completed_at"] = None if cut else int(time.time())
        response["incomplete_details"] = {"reason": "max_output_tokens"} if cut else None
        response["usage"] = self._usage()
        self._keep(response, self._output.calls, self._output.text)
        return response

    def _failed(self, error: KvistError, events: Events) -> bytes:
        response = self._response("failed")
        response["error"] = {"code": "server_error", "message": str(refusal_of(error))}
        events.say("response.failed", {"response": response})
        return events.taken()

    def _response(self, status: str) -> dict[str, Any]:
        return {
            **self._base,
            "status": status,
            "completed_at": None,
            "error": None,
            "incomplete_details": None,
            "output": list(self._output.items),
            "usage": None,
        }

    def _usage(self) -> dict[str, Any]:
        bill = self._live.bill()
        return {
            "input_tokens": bill.prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": bill.cached_tokens,
                "cache_write_tokens": bill.cache_write_tokens,
            },
            "output_tokens": bill.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": bill.total_tokens,
        }

"""An answer as a message, or as the events of a stream."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator
from typing import Any, Final

from kvist.errors import KvistError
from kvist.server.anthropic.blocks import call_id
from kvist.server.anthropic.caching import Marks, input_usage, usage_of
from kvist.server.chat import Called, Ended
from kvist.server.reading import Piece, Reader, check
from kvist.server.refuse import Refusal, refusal_of
from kvist.server.shapes import ANTHROPIC, error_body
from kvist.server.stream import event

_PING: Final = event({"type": "ping"}, "ping")


class Answer:
    """One answer on its way: read it ``whole``, or ``told`` event by event."""

    def __init__(self, reader: Reader, model: str, marks: Marks) -> None:
        self._reader = reader
        self._live = reader.conversation.live
        self._model = model
        self._marks = marks
        self._index = -1
        self._in_text = False

    async def whole(self) -> dict[str, Any]:
        """The message, when it is complete. Raises what went wrong."""
        content: list[dict[str, Any]] = []
        end: Ended | None = None
        while (pieces := await self._reader.pieces()) is not None:
            for piece in pieces:
                if isinstance(piece, Called):
                    content.append({**_tool_use(piece), "input": json.loads(piece.arguments)})
                elif isinstance(piece, Ended):
                    end = piece
                elif content and content[-1]["type"] == "text":
                    content[-1]["text"] += piece
                else:
                    content.append({"type": "text", "text": piece})
        assert end is not None
        check(end.finish)
        return self._message(content, usage_of(self._marks, self._live.bill()), *self._stop(end))

    async def told(self, first: list[Piece]) -> AsyncIterator[bytes]:
        """The events, one chunk for all that came at once. ``first`` has been read already.

        ``message_start`` is told with the first of them, because only then is it known what the cache had.
        """
        yield self._start() + self._chunk(first)
        try:
            while (pieces := await self._reader.pieces()) is not None:
                if pieces:
                    yield self._chunk(pieces)
        except KvistError as error:
            yield _error(error)

    def _message(
        self, content: list[dict[str, Any]], usage: dict[str, Any], reason: str | None, sequence: str | None
    ) -> dict[str, Any]:
        return {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": sequence,
            "usage": usage,
        }

    def _start(self) -> bytes:
        job, cached = self._live.job, self._live.cached_tokens or 0
        prompt = len(job.prompt)
        usage = input_usage(self._marks, prompt, cached, prompt - cached if job.reuse else 0)
        message = self._message([], {**usage, "output_tokens": 0, "service_tier": "standard"}, None, None)
        return event({"type": "message_start", "message": message}, "message_start")

    def _chunk(self, pieces: list[Piece]) -> bytes:
        out: list[bytes] = []
        for piece in pieces:
            if isinstance(piece, Ended):
                out += self._end(piece)
            elif isinstance(piece, Called):
                out += self._close()
                out += self._open({**_tool_use(piece), "input": {}})
                out.append(self._delta({"type": "input_json_delta", "partial_json": piece.arguments}))
                out += self._close(opened=True)
            else:
                if not self._in_text:
                    out += self._open({"type": "text", "text": ""})
                    self._in_text = True
                out.append(self._delta({"type": "text_delta", "text": piece}))
        return b"".join(out)

    def _open(self, block: dict[str, Any]) -> list[bytes]:
        self._index += 1
        start = {"type": "content_block_start", "index": self._index, "content_block": block}
        return [event(start, "content_block_start"), *([_PING] if self._index == 0 else ())]

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return event({"type": "content_block_delta", "index": self._index, "delta": delta}, "content_block_delta")

    def _close(self, *, opened: bool = False) -> list[bytes]:
        """End the block that is open: a text, or the one just ``opened``."""
        if not self._in_text and not opened:
            return []
        self._in_text = False
        return [event({"type": "content_block_stop", "index": self._index}, "content_block_stop")]

    def _end(self, end: Ended) -> list[bytes]:
        try:
            check(end.finish)
        except Refusal as error:
            return [_error(error)]
        reason, sequence = self._stop(end)
        usage = usage_of(self._marks, self._live.bill())
        del usage["cache_creation"], usage["service_tier"]
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        last = {"type": "message_delta", "delta": delta, "usage": usage}
        return [*self._close(), event(last, "message_delta"), event({"type": "message_stop"}, "message_stop")]

    def _stop(self, end: Ended) -> tuple[str, str | None]:
        """Why it ended, and the stop sequence if that was why."""
        finish = end.finish
        if finish.reason == "length":
            asked = self._live.job.max_tokens
            full = asked is not None and finish.usage.output_tokens >= asked
            return ("max_tokens" if full else "model_context_window_exceeded"), None
        if isinstance(finish.stop, str):
            return "stop_sequence", finish.stop
        return ("tool_use" if end.calls else "end_turn"), None


def _tool_use(call: Called) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id(call.id), "name": call.name}


def _error(error: KvistError) -> bytes:
    return event(error_body(refusal_of(error), ANTHROPIC), "error")

"""The output items of a response, and the events that tell of them."""

from __future__ import annotations

import secrets
from typing import Any

from kvist.server.chat import Called
from kvist.server.stream import event


class Events:
    """Numbers events and holds them until they are sent."""

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._next = 0

    def say(self, name: str, fields: dict[str, Any]) -> None:
        """One event."""
        self._held.append(event({"type": name, "sequence_number": self._next, **fields}, name))
        self._next += 1

    def taken(self) -> bytes:
        """All that is held, which then is gone."""
        held, self._held = b"".join(self._held), []
        return held


class Output:
    """Items so far. A text goes on with the message that is open; a call closes it."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self.calls: list[Called] = []
        self._texts: list[str] = []
        self._open: list[str] | None = None

    @property
    def text(self) -> str:
        """All text, whatever calls stand between."""
        return "".join(self._texts)

    def take(self, piece: str | Called, events: Events) -> None:
        """Text or a call came."""
        if isinstance(piece, Called):
            self.close(events, "completed")
            self._call(piece, events)
            return
        if self._open is None:
            self._begin(events)
        assert self._open is not None
        self._open.append(piece)
        self._texts.append(piece)
        events.say("response.output_text.delta", {**self._place, "delta": piece, "logprobs": []})

    @property
    def _place(self) -> dict[str, Any]:
        """Where the open text stands."""
        return {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1, "content_index": 0}

    def _begin(self, events: Events) -> None:
        item = {
            "id": f"msg_{secrets.token_hex(24)}",
            "type": "message",
            "role": "assistant",
            "status": "in_progress",
            "content": [],
        }
        self.items.append(item)
        self._open = []
        events.say("response.output_item.added", {"output_index": len(self.items) - 1, "item": item})
        events.say("response.content_part.added", {**self._place, "part": _part("")})

    def close(self, events: Events, status: str) -> None:
        """The open message is complete, if there is one."""
        if self._open is None:
            return
        text, self._open = "".join(self._open), None
        place, part = self._place, _part(text)
        item = {**self.items[-1], "status": status, "content": [part]}
        self.items[-1] = item
        events.say("response.output_text.done", {**place, "text": text, "logprobs": []})
        events.say("response.content_part.done", {**place, "part": part})
        events.say("response.output_item.done", {"output_index": place["output_index"], "item": item})

    def _call(self, call: Called, events: Events) -> None:
        item = {
            "id": f"fc_{secrets.token_hex(24)}",
            "type": "function_call",
            "call_id": call.id,
            "name": call.name,
            "arguments": call.arguments,
            "status": "completed",
        }
        self.items.append(item)
        self.calls.append(call)
        at = len(self.items) - 1
        place = {"item_id": item["id"], "output_index": at}
        started = {**item, "status": "in_progress", "arguments": ""}
        events.say("response.output_item.added", {"output_index": at, "item": started})
        events.say("response.function_call_arguments.delta", {**place, "delta": call.arguments})
        done = {**place, "name": call.name, "arguments": call.arguments}
        events.say("response.function_call_arguments.done", done)
        events.say("response.output_item.done", {"output_index": at, "item": item})


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

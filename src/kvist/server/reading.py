"""Reads a conversation's answer: text and calls in their order, then how it ended."""

from __future__ import annotations

from starlette.types import Receive

from kvist.server.chat import Called, Conversation, Ended, Wrote
from kvist.server.job import Finish
from kvist.server.refuse import Refusal, failure
from kvist.server.stream import unless_gone

Piece = str | Called | Ended


class Reader:
    """The one sample of an answer. With ``one_call`` nothing after the first tool call is shown."""

    def __init__(self, conversation: Conversation, *, one_call: bool) -> None:
        self.conversation = conversation
        self._one_call = one_call
        self._called = False

    async def pieces(self) -> list[Piece] | None:
        """What came: neighbouring texts are one, and what only grew inside is nothing yet. None when all is over.

        Raises the engine's refusal.
        """
        events = await self.conversation.batch()
        if not events:
            return None
        out: list[Piece] = []
        texts: list[str] = []
        for event in events:
            if isinstance(event, Wrote):
                texts.append(event.text)
                continue
            self._say(out, texts)
            texts = []
            if isinstance(event, Ended) or not (self._one_call and self._called):
                self._called = self._called or isinstance(event, Called)
                out.append(event)
        self._say(out, texts)
        return out

    def _say(self, out: list[Piece], texts: list[str]) -> None:
        text = "".join(texts)
        if text and not (self._one_call and self._called):
            out.append(text)

    async def first(self, receive: Receive) -> list[Piece]:
        """The first pieces of a stream: before them an error can still be told by a status.

        Raises that error, or ``Gone`` when the client went away; the work is ended then.
        """
        try:
            pieces = await unless_gone(receive, self.pieces(), lambda: None)
            for piece in pieces or ():
                if isinstance(piece, Ended):
                    check(piece.finish)
        except BaseException:
            self.conversation.close()
            raise
        return pieces or []


def check(finish: Finish) -> None:
    """Raises ``Refusal`` for an answer that did not come to its own end."""
    if finish.reason == "error":
        raise failure(finish.error, of_request=finish.of_request)
    if finish.reason == "abort":
        raise Refusal(503, "aborted", "the server ended the answer before it was complete", remedy="ask again")

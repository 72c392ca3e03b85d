"""The client on a transport made of lists: how a stream ends, what is an answer; and who was alone when."""

import asyncio

import httpx
import pytest

from kvist.bench.client import Client
from kvist.bench.drive import Gate
from kvist.bench.notes import notes
from kvist.bench.probe import Target
from kvist.bench.record import Timeline
from kvist.bench.report import ClientLoad, Tokens
from kvist.bench.sender import Sender
from kvist.bench.wire import Failure, Piece
from kvist.bench.workload.base import Ask, Part

SOME = b'data: {"choices": [{"text": "a"}]}\n\n'
LAST = b'data: {"choices": [{"text": "b", "finish_reason": "length"}]}\n\n'
DONE = b"data: [DONE]\n\n"
BREAK = httpx.ReadError("connection lost")


class Chunks(httpx.AsyncByteStream):
    def __init__(self, chunks):
        self.chunks = chunks

    async def __aiter__(self):
        for chunk in self.chunks:
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk


def streamed(*chunks):
    """The timeline of an answer of these chunks, and the kind of failure ("" for none)."""
    line = Timeline(0.0)

    async def once():
        kind = {"content-type": "text/event-stream"}
        transport = httpx.MockTransport(lambda request: httpx.Response(200, headers=kind, stream=Chunks(chunks)))
        async with Client("http://nobody", api_key=None, timeout_s=9.0) as client:
            client._http = httpx.AsyncClient(transport=transport)
            await client.stream("/v1/completions", {}, line)

    try:
        asyncio.run(once())
    except Failure as failure:
        return line, failure.kind
    return line, ""


@pytest.mark.parametrize(
    "chunks,kind,events",
    [
        ((SOME, LAST, DONE), "", 2),
        ((SOME, LAST), "", 2),
        ((SOME, DONE), "", 1),
        ((SOME, DONE, BREAK), "", 1),
        ((SOME,), "cut", 1),
        ((SOME, SOME), "cut", 2),
        ((SOME, LAST[:-1]), "cut", 1),
        ((SOME, BREAK), "cut", 1),
        ((SOME, LAST, BREAK), "cut", 2),
        ((), "cut", 0),
        ((DONE,), "empty", 0),
    ],
)
def test_how_a_stream_ends(chunks, kind, events):
    line, found = streamed(*chunks)
    assert (found, line.events) == (kind, events)
    assert kind or line.end_s is not None


class Staged:
    """A server whose first tokens and ends come when the test says so."""

    def __init__(self):
        self.lines = []

    async def stream(self, path, body, line):
        ended = asyncio.Event()
        self.lines.append((line, ended))
        await ended.wait()
        line.end_s = 9.0

    def first_token(self, number):
        self.lines[number][0].take(Piece(True, " a", (1,)), 1.0)

    def end(self, number, cached):
        line, ended = self.lines[number]
        line.take(Piece(False, prompt_tokens=30, output_tokens=1, cached_tokens=cached), 2.0)
        ended.set()


TARGET = Target("http://nobody", "m", "completions", tuple(range(100_000)), (), 1.0, True, ())


def played(*steps):
    """Records by name after the steps: (send, name) or (a method of the server, request...)."""
    server = Staged()

    async def play():
        sender = Sender(server, TARGET, "0", Gate(), temperature=0.0, keep_answers=False)
        tasks = []
        for what, *about in steps:
            if what == "send":
                parts = (Part("system", "shared", 20), Part("user", about[0], 10))
                tasks.append(asyncio.create_task(sender(Ask(about[0], parts, 1), None)))
            else:
                getattr(server, what)(*about)
            for _ in range(5):
                await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        return {r.name: r for r in sender.records}

    return asyncio.run(play())


def test_who_was_alone():
    found = played(
        ("send", "a"), ("first_token", 0), ("send", "b"), ("end", 0, 0), ("first_token", 1), ("end", 1, 0),
        ("send", "c"), ("send", "d"), ("first_token", 2), ("first_token", 3), ("end", 3, 0), ("end", 2, 0),
        ("send", "e"), ("first_token", 4), ("end", 4, 0),
    )  # fmt: skip
    assert {name: r.alone for name, r in found.items()} == {"a": True, "b": False, "c": False, "d": False, "e": True}


@pytest.mark.parametrize("cached,warm", [(20, False), (21, False), (29, True)])
def test_the_second_of_two_siblings_may_be_computed_first(cached, warm):
    found = played(
        ("send", "a"), ("send", "b"), ("first_token", 1), ("end", 1, 0), ("first_token", 0), ("end", 0, cached)
    )
    assert (found["a"].optimum_tokens, found["a"].knowable_tokens) == (0, 20)
    assert (found["b"].optimum_tokens, found["b"].knowable_tokens) == (20, 20)
    told = notes(TARGET, list(found.values()), Tokens(60, 2, cached, "usage", 1.0), ClientLoad(), {})
    assert told == ((f"1 requests report {cached - 20} cached tokens more than this run had sent: the cache was warm"
                     " from before (another --seed, or --flush)",) if warm else ())  # fmt: skip


def test_what_is_sent_later_was_not_known():
    found = played(("send", "a"), ("first_token", 0), ("end", 0, 0), ("send", "b"), ("first_token", 1), ("end", 1, 20))
    assert (found["a"].knowable_tokens, found["b"].knowable_tokens) == (0, 20)

"""Answers that go wrong on the way: the error is told in the protocol's shape, and then the stream ends."""

import asyncio
import json

import pytest

from kvist.engine.event import Timeline, Usage
from kvist.errors import KvistError
from kvist.server.anthropic import answer as anthropic_answer
from kvist.server.anthropic.caching import Marks
from kvist.server.chat import ChatAsk, Conversation
from kvist.server.job import Delta, Finish, Job
from kvist.server.live import Live
from kvist.server.openai import responses_answer
from kvist.server.reading import Reader
from kvist.server.refuse import Refusal


class Forgetful:
    def keep(self, *_):
        pass


def finish(reason, error=""):
    return Finish(reason, Usage(3, 2, 1, 4, 0, 0, 1), Timeline("r", 0, 0.0), None, error)


def answers(parcels, kept):
    """The reader, and both protocols' answers, of a request that these parcels came for."""
    out = []

    def keep(*what):
        kept.append(what)

    for kind in ("messages", "responses"):
        job = Job((1, 2, 3), max_tokens=10)
        live = Live(0, job, writes=True, close=lambda ticket: None, release=lambda live: None)
        for parcel in parcels:
            live.push(parcel)
        reader = Reader(Conversation(live, ChatAsk((), job), Forgetful(), None), one_call=False)
        if kind == "messages":
            out.append((reader, anthropic_answer.Answer(reader, "tiny", Marks())))
        else:
            out.append((reader, responses_answer.Answer(reader, "tiny", {}, keep)))
    return out


def told(answer):
    async def all_of_it():
        return b"".join([chunk async for chunk in answer.told(["Once"])])

    blocks = asyncio.run(all_of_it()).decode().strip().split("\n\n")
    return [json.loads(b.split("\n")[1].removeprefix("data: ")) for b in blocks]


BROKEN = {
    "numbers": ([Delta(0, " upon", (4,), cached_tokens=0, finish=finish("error", "NaN in the logits"))], "NaN"),
    "stopped": ([Delta(0, " upon", (4,), cached_tokens=0, finish=finish("abort"))], "ended the answer"),
    "engine dead": ([Delta(0, " upon", (4,)), Refusal(500, "engine_dead", "the engine has stopped")], "engine"),
}


@pytest.mark.parametrize("parcels,named", BROKEN.values(), ids=BROKEN)
def test_a_stream_ends_with_the_error(parcels, named):
    kept = []
    (_, messages), (_, responses) = answers(parcels, kept)
    events = told(messages)
    assert events[-1]["type"] == "error" and named in events[-1]["error"]["message"]
    assert [e["delta"]["text"] for e in events if e["type"] == "content_block_delta"] == ["Once", " upon"]
    assert "message_stop" not in [e["type"] for e in events]
    events = told(responses)
    last = events[-1]
    assert last["type"] == "response.failed" and last["response"]["status"] == "failed"
    assert last["response"]["error"]["code"] == "server_error" and named in last["response"]["error"]["message"]
    assert [e["delta"] for e in events if e["type"] == "response.output_text.delta"] == ["Once", " upon"]
    assert kept == []


@pytest.mark.parametrize("parcels,named", BROKEN.values(), ids=BROKEN)
def test_a_whole_answer_is_an_error(parcels, named):
    for _, answer in answers(parcels, []):
        with pytest.raises(KvistError, match=named):
            asyncio.run(answer.whole())


@pytest.mark.parametrize("name", ["numbers", "stopped"])
def test_before_the_first_event_the_error_is_a_status(name):
    async def never():
        await asyncio.Event().wait()

    for reader, _ in answers(BROKEN[name][0], []):
        with pytest.raises(Refusal) as caught:
            asyncio.run(reader.first(never))
        assert caught.value.status == {"numbers": 500, "stopped": 503}[name]


def test_a_good_end_is_told_and_kept():
    kept = []
    (_, messages), (_, responses) = answers([Delta(0, " upon", (4,), finish=finish("stop"))], kept)
    assert told(messages)[-1] == {"type": "message_stop"}
    events = told(responses)
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "Once upon"
    assert [(text, response["id"]) for response, _, text in kept] == [("Once upon", events[-1]["response"]["id"])]

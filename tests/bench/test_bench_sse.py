"""Events come out the same however their bytes are cut."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvist.bench.sse import EventParser
from kvist.bench.wire import Failure, read_piece


def fed(chunks):
    parser = EventParser()
    return [event for chunk in chunks for event in parser.feed(chunk)]


def cut(data, places):
    edges = [0, *sorted(p % (len(data) + 1) for p in places), len(data)]
    return [data[a:b] for a, b in zip(edges, edges[1:], strict=False)]


@pytest.mark.parametrize(
    "stream,events",
    [
        (b"data: a\n\n", [b"a"]),
        (b"data:a\n\ndata:  b\n\n", [b"a", b" b"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
        (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
        (b": ping\n\nevent: x\nid: 7\ndata: a\n\n", [b"a"]),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"data\n\ndatabase: x\n\n", [b""]),
        (b"data: unfinished\n", []),
        (b"\n\n\n", []),
    ],
)
def test_events_of_a_stream_and_of_each_of_its_cuts(stream, events):
    assert fed([stream]) == events
    assert fed([stream[i : i + 1] for i in range(len(stream))]) == events
    for at in range(len(stream) + 1):
        assert fed([stream[:at], b"", stream[at:]]) == events


lines = st.sampled_from([b"data: x", b"data:y", b"data", b": c", b"", b"", b"event: e", b"data: \xc3\xa9{}"])
ends = st.sampled_from([b"\n", b"\r\n", b"\r"])


@given(st.lists(st.tuples(lines, ends), max_size=30), st.lists(st.integers(0, 10_000), max_size=12))
def test_any_cut_gives_the_same_events(pairs, places):
    stream = b"".join(line + end for line, end in pairs)
    plain = b"\n".join(stream.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n"))
    groups = [[]]
    for line in plain.split(b"\n")[:-1]:
        if line == b"":
            groups.append([])
        elif line == b"data" or line.startswith(b"data:"):
            groups[-1].append(line[5:].removeprefix(b" "))
    expected = [b"\n".join(g) for g in groups[:-1] if g]
    assert fed(cut(stream, places)) == expected


def test_a_long_stream_cut_at_random():
    payloads = [json.dumps({"choices": [{"text": f"é{i}\r\n"}]}, ensure_ascii=False).encode() for i in range(300)]
    stream = b"".join(b"data: " + p + b"\r\n\r\n" for p in payloads)
    for seed in range(20):
        rng = random.Random(seed)
        assert fed(cut(stream, [rng.randrange(len(stream)) for _ in range(rng.randrange(400))])) == payloads


def test_pieces_of_both_endpoints():
    chat = read_piece({"choices": [{"delta": {"content": "a", "reasoning_content": None}, "finish_reason": "stop"}]})
    assert (chat.text, chat.finish_reason, chat.carries) == ("a", "stop", True)
    assert not read_piece({"choices": [{"delta": {"role": "assistant", "content": ""}}]}).carries
    assert read_piece({"choices": [{"delta": {"reasoning_content": "hm"}}]}).text == "hm"
    assert read_piece({"choices": [{"text": "", "token_ids": [5]}]}).carries
    assert read_piece({"choices": [{"delta": {"tool_calls": [{}]}}]}).carries
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
    last = read_piece({"choices": [], "usage": usage})
    assert (last.prompt_tokens, last.output_tokens, last.cached_tokens) == (7, 3, 4)
    nothing = read_piece({"choices": [], "usage": {"prompt_tokens": 7, "prompt_tokens_details": None}})
    assert nothing.cached_tokens is None
    assert read_piece({"choices": [{"text": "x"}], "timings": {"cache_n": 9}}).cached_tokens == 9


@pytest.mark.parametrize(
    "event",
    [
        5, [], None, "x", {"choices": 3}, {"choices": [3]}, {"choices": [{"text": 5}]}, {"usage": 3},
        {"choices": [{"token_ids": 3}]}, {"usage": {"prompt_tokens": "7"}}, {"usage": {"prompt_tokens": -1}},
        {"usage": {"completion_tokens": True}},
    ],
)  # fmt: skip
def test_events_of_no_known_shape_are_garbage(event):
    with pytest.raises(Failure) as raised:
        read_piece(event)
    assert raised.value.kind == "garbage"


@pytest.mark.parametrize("event", [{"error": {"message": "full"}}, {"object": "error", "message": "full"}])
def test_an_error_inside_a_stream(event):
    with pytest.raises(Failure, match="full") as raised:
        read_piece(event)
    assert raised.value.kind == "server_error"

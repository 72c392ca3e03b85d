"""A stream gives back what it holds however it ends: read, left, stuck, broken before it began."""

import asyncio

import pytest

from kvist.server.stream import EventStream, Gone, unless_gone


class Client:
    """The other side of one answer: takes ``takes`` messages, then does what ``then`` says."""

    def __init__(self, takes=10**9, then="wait", leaves_s=None):
        self.got = []
        self._takes, self._then, self._leaves_s = takes, then, leaves_s

    async def send(self, message):
        if len(self.got) >= self._takes:
            if self._then == "raise":
                raise OSError("broken pipe")
            await asyncio.Event().wait()
        self.got.append(message)

    async def receive(self):
        await asyncio.sleep(1000 if self._leaves_s is None else self._leaves_s)
        return {"type": "http.disconnect"}


async def chunks(count, pause_s=0.0, breaks=False):
    for i in range(count):
        await asyncio.sleep(pause_s)
        yield b"data: %d\n\n" % i
    if breaks:
        raise RuntimeError("a bug")


def play(client, source, write_timeout_s=0.05):
    """Run it; how often it was closed."""
    closed = []

    async def run():
        stream = EventStream(source, lambda: closed.append(1), write_timeout_s=write_timeout_s, headers={"X-A": "b"})
        await asyncio.wait_for(stream({"type": "http"}, client.receive, client.send), 5)
        assert len(asyncio.all_tasks()) == 1

    try:
        asyncio.run(run())
    finally:
        assert closed == [1]


def test_read_to_the_end():
    client = Client()
    play(client, chunks(3))
    assert [m.get("body") for m in client.got] == [None, b"data: 0\n\n", b"data: 1\n\n", b"data: 2\n\n", b""]
    assert client.got[-1]["more_body"] is False and (b"x-a", b"b") in client.got[0]["headers"]


def test_left():
    client = Client(leaves_s=0.03)
    play(client, chunks(1000, 0.01))
    assert 1 < len(client.got) < 10


@pytest.mark.parametrize("takes", [1, 2, 5])
def test_stuck(takes):
    client = Client(takes)
    play(client, chunks(100))
    assert len(client.got) == takes


@pytest.mark.parametrize("takes", [0, 1, 3])
def test_broken(takes):
    with pytest.raises(OSError, match="broken"):
        play(Client(takes, "raise"), chunks(100))


def test_a_bug_in_the_answer():
    with pytest.raises(RuntimeError, match="a bug"):
        play(Client(), chunks(2, breaks=True))


def test_waiting_for_the_engine_is_not_being_stuck():
    """Only the client's slowness is limited."""
    client = Client()
    play(client, chunks(2, 0.15), write_timeout_s=0.05)
    assert client.got[-1]["more_body"] is False


@pytest.mark.parametrize("leaves_s,ends", [(None, "done"), (0.02, Gone)])
def test_a_whole_answer_unless_gone(leaves_s, ends):
    client, closed = Client(leaves_s=leaves_s), []

    async def work():
        await asyncio.sleep(0.05)
        return "done"

    async def run():
        return await unless_gone(client.receive, work(), lambda: closed.append(1))

    if ends is Gone:
        with pytest.raises(Gone):
            asyncio.run(run())
    else:
        assert asyncio.run(run()) == ends
    assert closed == [1]

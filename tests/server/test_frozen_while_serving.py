"""What a server loaded is out of the garbage collector's sight while it serves, and in it again afterwards."""

import gc

import pytest
from attack_kit import BODY, ask
from served_kit import running, served

from kvist.server import run


@pytest.fixture
def real_gc(monkeypatch):
    """Nothing frozen, and the server gets the real ``gc``."""
    monkeypatch.setattr(run, "gc", gc)
    gc.unfreeze()
    yield
    gc.unfreeze()
    gc.collect()
    gc.freeze()


class Loaded:
    """Something that can only go by being collected."""

    def __init__(self):
        self.me = self


def test_what_is_loaded_is_frozen_and_thawed_at_the_end(real_gc):
    gone, kept = [], Loaded()

    def load(progress):
        knot = Loaded()
        knot.end = Ending(gone)
        return served("hello")

    with running(load) as server:
        assert gone == [1], "garbage of loading is collected before the rest is frozen"
        assert gc.get_freeze_count() > 10_000
        assert not any(x is kept for x in gc.get_objects())
        assert ask(server.url, "POST", "/v1/completions", BODY)[0] == 200
    assert gc.get_freeze_count() == 0
    assert any(x is kept for x in gc.get_objects())


class Ending:
    def __init__(self, gone):
        self.gone = gone

    def __del__(self):
        self.gone.append(1)

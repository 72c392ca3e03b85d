"""Servers that share a process with the tests."""

import gc

import pytest


class Collecting:
    """What a server sees of ``gc``: it collects, but neither freezes nor thaws what belongs to the whole test run.

    A thaw would make each of some 400 later starts look through every case and library again, half a second each.
    ``test_frozen_while_serving.py`` is about the real one.
    """

    collect = staticmethod(gc.collect)

    @staticmethod
    def freeze() -> None:
        pass

    @staticmethod
    def unfreeze() -> None:
        pass


@pytest.fixture(scope="session", autouse=True)
def collecting():
    run = pytest.importorskip("kvist.server.run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "gc", Collecting)
        yield

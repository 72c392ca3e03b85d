"""Puts the benches that tests of several rooms share on the path: ``paperwork``, ``real_model``, ``tiny_engine``,
``tier_stubs``.

OpenMP threads sleep while they wait, here and in every process a test starts. They spin by default, and beside another
process on the same cores each of a tiny model's thousands of regions then costs a time slice: a reference run of a
second took 26. torch keeps as many threads as it finds good: what users run is what is tested.
"""

import gc
import os
import sys
from pathlib import Path

import pytest

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch is first imported

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "agree"), str(HERE / "runtime")]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Runs of neighbours instead of every other test: a file's models and servers are made by one worker."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getvalue("dist") == "load" else None


def pytest_collection_finish():
    """Twelve thousand cases and the libraries they import stay: no later collection looks through them again."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure():
    """What is left can go as it always does."""
    gc.unfreeze()

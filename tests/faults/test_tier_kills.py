"""F047: a real engine is killed while it saves on top of an older snapshot; the next one finds old, new or nothing."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("tokenizers")
pytest.importorskip("xxhash")

HERE = Path(__file__).parent
MODES = [["after", 1, 1], ["torn", 1, 1], ["moment", 3, 1]]
"""After every operation of the script in turn, and in the midst of every write, until it comes to its end."""


def test_f047_killed_at_every_point_old_and_new_prompts_are_answered_as_ever():
    """In memory where that can be: nothing waits for a disk. ``moment``: at random times, the model's loading too."""
    parts = [HERE, *(HERE.parent / name for name in ("tier", "agree", "runtime", "")), *sys.path]
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as place:
        done = subprocess.run(
            [sys.executable, HERE / "tier_kill_runner.py", place, json.dumps(MODES)],
            capture_output=True, text=True, timeout=300,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, parts)), "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    after, torn = told["after"], told["torn"]
    assert after["kills"] >= 7, f"what is announced, written, synced and committed: {told}"
    assert set(after["new"]) == {0, 64}, f"kills before and after the new one was there: {told}"
    assert torn["kills"] >= 1 and torn["new"] == [0], told
    assert told["moment"]["kills"] == 3

"""The guide to the planner: its commands run, from anywhere, without a network."""

import os
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvist.cli.main import app

GUIDE = Path(__file__).parents[2] / "docs" / "planner.md"
COMMANDS = [
    line.split("#")[0].strip()
    for block in re.findall(r"```sh\n(.*?)```", GUIDE.read_text(), re.S)
    for line in block.splitlines()
]


def test_there_are_commands():
    assert len(COMMANDS) > 12 and all(line.startswith("kvist plan ") for line in COMMANDS)


@pytest.mark.parametrize("line", COMMANDS)
def test_the_guides_commands_run(line, tmp_path, monkeypatch):
    if "--plot" in line:
        pytest.importorskip("matplotlib")
    for name in [name for name in os.environ if name.startswith("KVIST_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("KVIST_ONLINE", "no")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, shlex.split(line)[1:], standalone_mode=False)
    assert done.exception is None and not done.return_value, (done.exception, done.output[:300])
    assert done.stdout.strip()

"""The guide to tiers: its commands run in their order, and it knows every place and command there is."""

import os
import re
import shlex
from pathlib import Path

import pytest
from cache_kit import chain, filled, kvist

from kvist.tier.registry import schemes

GUIDE = Path(__file__).parents[2] / "docs" / "tiers.md"
COMMANDS = [
    line.split("#")[0].strip()
    for block in re.findall(r"```sh\n(.*?)```", GUIDE.read_text(), re.S)
    for line in block.splitlines()
]


def test_the_guides_commands_run(tmp_path, monkeypatch):
    pytest.importorskip("cryptography")
    assert len(COMMANDS) > 15 and all(line.startswith("kvist cache ") for line in COMMANDS)
    records = chain("hello", 5, tenant="default")
    filled(tmp_path / ".cache" / "kvist", records, chain("other", 3, tenant="default"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ID", records[-1].label.id.hex()[:12])
    monkeypatch.chdir(tmp_path)
    for line in COMMANDS:
        done = kvist(*shlex.split(os.path.expandvars(line))[1:])
        assert done.returncode == 0 and done.stdout, (line, done.stdout, done.stderr)


def test_every_place_and_command_is_named():
    from kvist.cli.cache.command import app

    page = GUIDE.read_text()
    for scheme in schemes():
        assert f"`{scheme}:" in page, scheme
    for command in app.registered_commands:
        assert re.search(rf"`{command.name}[ `]", page), command.name

"""The examples of the serving guide run against a server, with the clients' own packages."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from served_kit import running, served

GUIDE = Path(__file__).parents[2] / "docs" / "serving.md"


def examples():
    return re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.S)


def test_there_are_examples():
    assert {"openai", "anthropic"} <= {m for e in examples() for m in re.findall(r"^from (\w+)", e, re.M)}


@pytest.mark.parametrize("code", examples(), ids=range(len(examples())))
def test_examples_run(code):
    pytest.importorskip(re.search(r"^from (\w+)", code, re.M)[1])
    with running(served("The Rhine, the Rhone and the Danube."), names=("SmolLM2-135M-Instruct",)) as server:
        code = code.replace("http://127.0.0.1:8000", server.url)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert "Rhine" in done.stdout
        server.books()

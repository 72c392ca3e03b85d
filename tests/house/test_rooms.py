"""Small rooms, plain names, and an import that stays light."""

import ast
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "kvist"
SOURCES = sorted(SRC.rglob("*.py"))
WALL_LINES = 500
FUNCTION_LINES = 60


def code_lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def test_no_file_is_a_wall():
    sources = [*SOURCES, *(SRC / "kernels" / "csrc").glob("*")]
    assert {str(p.relative_to(SRC)): n for p in sources if (n := code_lines(p)) > WALL_LINES} == {}


def test_files_have_names_of_their_own():
    assert [p for p in SOURCES if p.stem in {"utils", "helpers", "common", "misc", "mixins"}] == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(SRC)))
def test_functions_are_short(path):
    long = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if isinstance(node.body[0], ast.Expr) else node.body
            lines = (node.end_lineno or 0) - (body[0].lineno if body else node.lineno) + 1
            if lines > FUNCTION_LINES:
                long[node.name] = lines
    assert long == {}


THINKING = (
    "kvist.spec.model, kvist.spec.layout, kvist.cache.cache, kvist.sched.scheduler, kvist.engine.engine, kvist.sim.run"
)


def test_the_thinking_half_imports_quickly_and_without_torch():
    code = textwrap.dedent(f"""
        import sys, time
        class Absent:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in ("torch", "transformers", "tokenizers"):
                    raise ImportError(name + " is absent in this test")
        sys.meta_path.insert(0, Absent())
        import numpy
        start = time.perf_counter()
        import {THINKING}
        import kvist.spec, kvist.cache, kvist.sched, kvist.engine
        print(time.perf_counter() - start)
        assert "torch" not in sys.modules
    """)
    best = min(
        float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)
        for _ in range(3)
    )
    assert best < 0.3, f"importing the thinking half took {best * 1e3:.0f} ms"


def test_time_and_chance_come_in_by_the_door():
    banned = {("time", "monotonic"), ("time", "time"), ("time", "perf_counter"), ("random", "random")}
    for path in SOURCES:
        if path.relative_to(SRC).parts[0] not in {"cache", "sched", "engine", "sim", "cost", "spec"}:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert (node.value.id, node.attr) not in banned, f"{path}:{node.lineno}"

"""Docs cannot lie: links lead somewhere, commands run, generated tables are fresh."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)]*)?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target, _ in LINK.findall(page.read_text()):
        if not target.startswith(("http://", "https://", "mailto:")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_tour_names_every_step_of_a_request():
    tour = (ROOT / "docs" / "tour.md").read_text()
    for file in ("scheduler.py", "cache/cache.py", "step.py", "executor.py", "decoder.py", "llm.py"):
        assert file in tour


def test_every_dependency_has_its_reason():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [*project["dependencies"], *(d for x in project["optional-dependencies"].values() for d in x)]
    reasons = (ROOT / "docs" / "dependencies.md").read_text()
    for requirement in named:
        name = re.split(r"[<>=\[ ]", requirement)[0]
        assert name == "kvist" or name in reasons, f"{name} has no line in docs/dependencies.md"


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.S)


def test_python_examples_of_the_readme_run():
    pytest.importorskip("torch")
    found = blocks(ROOT / "README.md", "python")
    assert found
    for code in found:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 0, done.stderr


def test_shell_examples_of_the_readme_run(tmp_path):
    pytest.importorskip("torch")
    lines = [x for b in blocks(ROOT / "README.md", "sh") for x in b.splitlines()]
    runnable = [x.split("#")[0].strip() for x in lines if x.startswith("kvist ")]
    assert len(runnable) >= 3
    (tmp_path / "a.txt").write_text("The sea is")
    (tmp_path / "b.txt").write_text("The sky is")
    for line in runnable:
        stdin = "Hello\n/undo\n/quit\n" if line.startswith("kvist chat") else ""
        command = f'kvist() {{ "{sys.executable}" -c "from kvist.cli.entry import run; run()" "$@"; }}; {line}'
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=tmp_path, input=stdin)
        assert done.returncode == 0, (line, done.stderr)


def test_make_targets_named_in_the_docs_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    for page in PAGES:
        for name in re.findall(r"^make ([a-z]+)", page.read_text(), re.M):
            assert name in targets, f"{page.name}: make {name}"


def test_generated_parts_are_fresh():
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "regenerate.py"), "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr

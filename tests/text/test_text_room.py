"""The room imports fast, with nothing but the standard library."""

import subprocess
import sys
from pathlib import Path

import kvist.text

ROOM = Path(kvist.text.__file__).parent
BLOCK = """
import sys, time
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            raise ImportError(f"{name} is blocked")
BLOCKED = {"torch", "transformers", "tokenizers", "gguf", "jinja2", "numpy"}
sys.meta_path.insert(0, Block())
start = time.perf_counter()
import kvist.text.chat, kvist.text.find_template, kvist.text.from_folder, kvist.text.from_gguf
import kvist.text.stream, kvist.text.tokenizer, kvist.text.turns, kvist.text.parts, kvist.text.template_args
import kvist.text.tools.history, kvist.text.tools.registry
[kvist.text.tools.registry.load(name) for name in kvist.text.tools.registry.names()]
print(time.perf_counter() - start)
"""


def test_imports_without_torch_tokenizers_and_jinja2():
    done = subprocess.run([sys.executable, "-c", BLOCK], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 1.0


def test_files_and_functions_stay_small():
    import ast

    for file in ROOM.rglob("*.py"):
        source = file.read_text(encoding="utf-8")
        assert len(source.splitlines()) <= 200, file.name
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < 50, f"{file.name}:{node.name}"

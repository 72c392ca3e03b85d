"""Who may import whom: read from the syntax trees, type-only and in-function imports included."""

import ast
import sys
from functools import cache
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src" / "kvist"

FLOORS: dict[str, float] = {
    "ids": 1, "errors": 1, "units": 1.1, "gguf_header": 1.1, "text": 1.2,
    "spec": 2, "transfer": 2.05, "step": 2.1,
    "cost": 3, "cache": 3, "kernels": 3, "keep": 3, "view": 3, "tier": 3,
    "planner": 4, "sched": 4, "model": 4,
    "config": 5,
    "engine": 6,
    "sim": 7, "server": 7, "runtime": 7,
    "lab": 8, "bench": 8,
    "cli": 9,
}  # fmt: skip

THINKING = {
    "ids", "errors", "units", "gguf_header",
    "text", "spec", "transfer", "step", "cost", "cache", "planner", "sched", "config", "engine", "sim",
}  # fmt: skip

DOORS = {
    "cache": {"bulk", "cache", "keys", "evict.base", "evict.registry"},
    "sched": {"scheduler", "request", "order.base", "order.registry", "pace", "carry", "choice"},
    "engine": {"engine", "ports", "metrics", "assemble", "event", "writing"},
    "cost": {"table", "device", "catalogue", "work", "roofline", "measured", "interval", "collective"},
    "planner": {
        "api", "ask", "check.replay", "check.report", "decide.advice", "decide.compare", "decide.curves",
        "decide.fleet", "decide.hit_rate", "decide.inverse", "decide.no_cache", "decide.offload", "decide.slo",
        "decide.split", "decide.suggest", "decide.tiers", "decide.turns", "doctor.base", "doctor.compare",
        "doctor.diagnose", "doctor.diagnosis", "doctor.named", "doctor.read", "engines.base", "engines.registry",
        "explain.derivation", "explain.derive", "models.catalogue", "models.find", "plan", "report", "setup",
        "weights.facts",
    },
    "sim": {"run", "executor", "clock", "draws", "tiers"},
    "tier": {
        "base", "bundle", "bundle_read", "disk.folder", "disk.store", "keyring", "master_key", "registry", "seal",
        "turn_seal",
    },
    "model": {"decoder", "batch", "weights", "single", "support"},
    "kernels": {
        "attention.base", "attention.basis", "attention.registry", "attention.tiles", "attention.worklist", "books",
        "codec.base", "codec.calibrate", "codec.calibration", "codec.calibration_file", "codec.distortion",
        "codec.registry", "matrix",
        "native_module", "ops.base", "ops.registry", "packing", "program",
    },
    "runtime": {"ask", "build", "llm", "answer", "packaged", "places", "store", "swap", "grammar"},
    "server": {
        "capacity", "config", "observe.base", "observe.logs", "observe.series", "observe.spans", "run", "served",
        "service", "tenants",
    },
    "bench": {"compare", "options", "plot", "report", "run", "schema", "table", "workload.registry"},
}  # fmt: skip
"""What other rooms may import. A room without an entry (floor 1, spec, cli) is open."""

ALLOWED_IN_THINKING = {"numpy", "kvist"} | set(sys.stdlib_module_names)
LAZY_MODULES = {"kvist.text.sandbox", "kvist.text.bounds"}
"""Built on a heavy library; others import them only inside functions."""

LAZY_IN_THINKING = {"text": {"tokenizers", "jinja2", "gguf"}, "spec": {"gguf"}, "planner": {"huggingface_hub"}}


def room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


@cache
def files() -> tuple[tuple[str, Path], ...]:
    out = []
    for path in sorted(SRC.rglob("*.py")):
        name = "kvist." + ".".join(path.relative_to(SRC).with_suffix("").parts)
        out.append((name.removesuffix(".__init__"), path))
    return tuple(out)


@cache
def imports(path: Path) -> tuple[tuple[str, bool], ...]:
    """(module, at top level) for every import statement."""
    tree = ast.parse(path.read_text())
    top = {id(n) for n in tree.body}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(a.name, id(node) in top) for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            for alias in node.names:
                whole = f"{module}.{alias.name}"
                is_module = (SRC.parent / Path(*whole.split("."))).with_suffix(".py").exists()
                found.append((whole if is_module else module, id(node) in top))
    return tuple(found)


def violations(name: str, path: Path) -> list[str]:
    here = room(name)
    out = []
    for module, _ in imports(path):
        if not module.startswith("kvist") or not here:
            continue
        there = room(module)
        if there == here or not there:
            continue
        if FLOORS[there] >= FLOORS[here]:
            out.append(f"{name} (floor {FLOORS[here]}) imports {module} (floor {FLOORS[there]})")
        inner = ".".join(module.split(".")[2:])
        if there in DOORS and inner not in DOORS[there]:
            out.append(f"{name} goes through {module}, which is not a door of {there}")
    return out


@pytest.mark.parametrize("name,path", files(), ids=lambda x: x if isinstance(x, str) else "")
def test_imports_go_down_and_through_doors(name, path):
    assert violations(name, path) == []


def test_every_room_has_a_floor():
    rooms = {room(n) for n, _ in files()} - {""}
    assert rooms <= set(FLOORS), f"give a floor to {rooms - set(FLOORS)}"


def test_no_circles():
    graph = {n: {m for m, _ in imports(p) if m.startswith("kvist.")} for n, p in files()}
    done: set[str] = set()

    def visit(node: str, trail: tuple[str, ...]) -> None:
        assert node not in trail, "circle: " + " -> ".join([*trail, node])
        if node not in done:
            for nxt in graph.get(node, ()):
                visit(nxt, (*trail, node))
            done.add(node)

    for start in graph:
        visit(start, ())


@pytest.mark.parametrize("name,path", files(), ids=lambda x: x if isinstance(x, str) else "")
def test_the_thinking_half_needs_no_torch(name, path):
    here = room(name)
    if here not in THINKING:
        return
    for module, top in imports(path):
        root = module.split(".")[0]
        lazy = LAZY_IN_THINKING.get(here, set())
        late = not top or name in LAZY_MODULES
        assert root in ALLOWED_IN_THINKING or (root in lazy and late), f"{name} imports {module}"
        assert module not in LAZY_MODULES or late, f"{name} imports {module} at once"


def test_the_wall_can_fall(tmp_path):
    """The check sees an upward import, one hidden in a function, and a back door."""
    bad = tmp_path / "bad.py"
    bad.write_text("import kvist.cli.main\ndef f():\n    from kvist.cache.tree import Tree\n")
    found = violations("kvist.sched.bad", bad)
    assert any("floor 9" in v for v in found)
    assert any("not a door of cache" in v for v in found)
    assert violations("kvist.spec.bad", bad)[1].startswith("kvist.spec.bad (floor 2) imports kvist.cache.tree")


def test_init_files_are_empty_except_the_top():
    for name, path in files():
        if path.name == "__init__.py" and name != "kvist":
            assert path.read_text().strip() == "", f"{path} should be empty"

"""Which engines take part: kvist's rows, and each peer that is installed, with every KV format worth a row."""

import importlib.util
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers.work import Batch
from benchmarks.peers.worker import Worker

HOME = Path(os.environ.get("KVIST_PEERS", Path(__file__).parents[2] / "build" / "peers"))
"""Where ``python -m benchmarks.peers.install`` puts peers unless told otherwise."""

WORKERS = "benchmarks.peers.workers"


@dataclass(frozen=True, eq=False)
class Side:
    """One row: a worker to start. One with ``only_shared`` takes part in bursts that share a prefix, nothing else."""

    name: str
    python: str
    worker: str
    options: dict = field(default_factory=dict)
    ours: bool = False
    only_shared: bool = False

    def takes(self, work):
        """Whether this row does such work."""
        return not self.only_shared or (isinstance(work, Batch) and work.shared > 0)

    def start(self, model, threads, env=None):
        """The running worker. Raises ``WorkerError``."""
        options = {"model": str(model), "threads": threads, **self.options}
        return Worker(self.python, f"{WORKERS}.{self.worker}", options, env=env)


def ours(rows):
    """kvist's rows: ``weights/kv`` or ``weights/kv/numerics``; an empty text stands for the best there is."""
    return [_ours(*text.split("/")) for text in (rows.split(",") if rows else _best_here())]


def _ours(weights, kv, numerics="fast"):
    options = {"weights": weights, "kv": kv, "numerics": numerics}
    return Side(f"kvist {weights}, {kv} KV, {numerics}", sys.executable, "kvist_engine", options, ours=True)


def _best_here():
    from kvist.model.weights import DTYPES
    from kvist.spec.format import ELEMENTS

    weights = "packed" if "packed" in DTYPES else "f32"
    return [f"{weights}/{kv}" for kv in ("f16", "int8t") if kv in ELEMENTS]


def peers(given, names=None):
    """Rows of the peers that are here, and a sentence for each that is not. ``given``: pythons by peer's name.

    ``names``: those that may take part (None: all).
    """
    found, absent = [], []
    for name, make in MAKERS.items():
        if names is not None and name not in names:
            continue
        python = given.get(name) or _python(name)
        if python is None:
            absent.append(f"{name}: not installed (python -m benchmarks.peers.install, or KVIST_PEER_{name.upper()})")
        elif not Path(python).exists():
            absent.append(f"{name}: {python} does not exist")
        else:
            found += make(str(python))
    return found, absent


def _python(name):
    """By environment variable, else where ``install`` puts it; transformers may be kvist's own neighbour."""
    if named := os.environ.get(f"KVIST_PEER_{name.upper()}"):
        return named
    here = HOME / name / "bin" / "python"
    if here.exists():
        return here
    return sys.executable if name == "transformers" and importlib.util.find_spec("transformers") else None


def _llamacpp(python):
    def row(name, **options):
        return Side(f"llama.cpp, {name}", python, "llamacpp", options, only_shared=bool(options.get("unified")))

    return [
        row("f16 KV, flash attention", kv="f16", flash=1),
        row("f16 KV", kv="f16", flash=0),
        row("q8_0 KV, flash attention", kv="q8_0", flash=1),
        row("f16 KV, flash attention, unified", kv="f16", flash=1, unified=True),
    ]


def _openvino(python):
    return [Side(f"OpenVINO, {kv} KV", python, "openvino_cb", {"kv": kv}) for kv in ("f16", "u8")]


def _transformers(python):
    return [Side("transformers f32, f32 KV", python, "hf_transformers")]


def _vllm(python):
    folder = os.environ.get("KVIST_PEER_VLLM_MODEL", str(HOME / "f32-folder"))
    return [Side("vLLM CPU f32, f32 KV", python, "vllm_cpu", {"kv": "auto", "folder": folder})]


MAKERS = {"llamacpp": _llamacpp, "openvino": _openvino, "transformers": _transformers, "vllm": _vllm}

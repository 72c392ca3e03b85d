"""What the numbers were measured on, and where they are kept."""

import json
import os
import platform
import re
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]


def cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def commit() -> str:
    try:
        out = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        dirty = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True)
        return out.stdout.strip() + ("+changes" if dirty.stdout.strip() else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


class Others:
    """How much of the machine's processor time other processes take from here on.

    ``workers`` are this process's own helpers: what their ``processor_s()`` counts is not other people's.
    """

    def __init__(self, workers=()) -> None:
        self._workers = tuple(workers)
        self._busy, self._own, self._start = self._now()

    def _now(self) -> tuple[float, float, float]:
        ticks = [int(x) for x in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        own = os.times()
        own_s = own.user + own.system + sum(w.processor_s() for w in self._workers)
        return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK"), own_s, time.perf_counter()

    def share(self) -> float:
        """Their share of all cores' time since the start, 0 to 1."""
        busy, own, now = self._now()
        cores_s = (now - self._start) * (os.cpu_count() or 1)
        return max(0.0, (busy - self._busy - (own - self._own)) / cores_s)


def describe(command: str) -> dict:
    import torch

    from kvist.kernels.native_module import absent_reason, load

    native = absent_reason() is None
    return {
        "command": command,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "isa": load().isa() if native else "none",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "load_average": os.getloadavg()[0],
    }


def save(what: str, model: str, record: dict) -> Path:
    """results/<machine>-<model>-<what>-<version>.json"""
    from importlib.metadata import version

    machine = re.sub(r"[^a-z0-9]+", "-", f"{record['machine']['cpu']}-{record['machine']['cores']}c".lower()).strip("-")
    path = ROOT / "results" / f"{machine}-{model}-{what}-{version('kvist')}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
    return path

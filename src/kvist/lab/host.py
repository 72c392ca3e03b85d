"""The machine a measurement ran on, and what else was running on it."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def cpu_name() -> str:
    """The processor's name as the system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def memory_bytes() -> int:
    """Main memory of the machine; 0 where the system does not tell."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemTotal"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return 0


def cores() -> int:
    """Logical processors."""
    return os.cpu_count() or 1


def versions() -> dict[str, str]:
    """kvist, torch and Python."""
    out = {"python": platform.python_version()}
    for name in ("kvist", "torch"):
        try:
            out[name] = version(name)
        except PackageNotFoundError:
            out[name] = "unknown"
    return out


def now() -> str:
    """The date and time, UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def commit() -> str:
    """Commit of the repository that this kvist runs from, ``+changes`` when it was edited; empty when there is none."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(here), *words], capture_output=True, text=True, check=True, timeout=10)
        return done.stdout.strip()

    try:
        if git("ls-files", Path(__file__).name) == "":
            return ""  # installed inside somebody else's repository
        return git("rev-parse", "--short", "HEAD") + ("+changes" if git("status", "--porcelain") else "")
    except (OSError, subprocess.SubprocessError):
        return ""


@dataclass(frozen=True, slots=True)
class Load:
    """Processor time that others (processes, or guests of the same host) take from here on."""

    busy_s: float
    own_s: float
    at_s: float

    @staticmethod
    def start() -> Load:
        """From now on."""
        try:
            ticks = [int(x) for x in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        except (OSError, ValueError):
            ticks = [0] * 8
        busy = (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
        return Load(busy, time.process_time(), time.perf_counter())

    def share(self) -> float:
        """Their share of all cores' time since then, 0 to 1; 0 where the system does not tell."""
        end = Load.start()
        cores_s = (end.at_s - self.at_s) * cores()
        taken = end.busy_s - self.busy_s - (end.own_s - self.own_s)
        return min(1.0, max(0.0, taken / cores_s)) if cores_s > 0 else 0.0

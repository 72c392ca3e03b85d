"""The machine that ``--device here`` means: measured once, kept, read back."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvist.cost.measured import MeasuredMachine, read, store_path, write
from kvist.planner.ask import HERE, Question
from kvist.units import format_bytes


def record_path() -> Path:
    """Where the measurement lies: in the folder that ``KVIST_HOME`` names, or in ``~/.local/share/kvist``."""
    return store_path(os.environ.get("KVIST_HOME"))


def machine_for(asked: Question, *, measure: bool) -> MeasuredMachine | None:
    """The measured machine for a question about ``here``, or about nothing; None for other devices.

    Raises ``UsageError`` when ``here`` was asked for and no measurement is stored, or it cannot be read.
    """
    if asked.device not in ("", HERE):
        return None
    if measure:
        return measured()
    path = record_path()
    if not path.exists() and not asked.device:
        return None
    machine = read(path)
    _warn_if_moved(machine)
    return machine


def _warn_if_moved(machine: MeasuredMachine) -> None:
    from kvist.lab.host import cpu_name

    if machine.origin.cpu != cpu_name():
        print(
            f"note: measured on {machine.origin.cpu}, this is {cpu_name()}: measure again (--measure)", file=sys.stderr
        )


def measured() -> MeasuredMachine:
    """Measure this machine and keep the record."""
    from kvist.cli.plan.progress import progress
    from kvist.lab.measure import measure

    with progress("measuring") as step:
        machine = measure(on_point=step.tell)
    write(machine, record_path())
    return machine


def measured_only(merged: Mapping[str, Any], *, as_json: bool) -> bool:
    """Without a model there is nothing to plan: measure, say what came out. True when that was all."""
    if "model" in merged:
        return False
    machine = measured()
    if as_json:
        print(json.dumps(machine.to_dict(), ensure_ascii=False, allow_nan=False))
        return True
    origin, bandwidth = machine.origin, machine.bandwidth
    print(f"{origin.cpu}, {origin.threads} threads, {format_bytes(origin.memory_bytes)}")
    rates = "..".join(f"{x / 1e9:.3g}" for x in (bandwidth.low, bandwidth.best, bandwidth.high))
    print(f"reads {rates} GB/s, multiplies {machine.multiply_flops_per_s / 1e9:.4g} GFLOP/s in f32")
    print(f"kept in {record_path()}; kvist plan MODEL --device here uses it")
    return True

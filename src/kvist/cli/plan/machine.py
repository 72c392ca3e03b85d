"""The machine that ``--device here`` means: measured once, kept, read back."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from kvist.cost.measured import MeasuredMachine, read, store_path, write
from kvist.errors import KvistError, UsageError
from kvist.planner.ask import HERE, Question
from kvist.units import format_bytes


def record_path() -> Path:
    """Where the measurement lies: in the folder that ``KVIST_HOME`` names, or in ``~/.local/share/kvist``."""
    return store_path(os.environ.get("KVIST_HOME"))


def machine_for(asked: Question, *, measure: bool) -> MeasuredMachine | None:
    """The measured machine for a question about ``here``, or about nothing; None for other devices.

    Raises ``UsageError`` when a measurement is needed and none is stored or it cannot be read, or when another
    device than this machine is to be measured.
    """
    if asked.device not in ("", HERE):
        if measure:
            raise _elsewhere(asked.device)
        return None
    if measure:
        return measured()
    path = record_path()
    if not path.exists() and not asked.device:
        raise UsageError(
            "no device was named",
            remedy="add --device NAME (--devices lists them), or measure this machine first (--measure)",
        )
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
    """Measure this machine and keep the record. Raises ``KvistError`` before measuring when it cannot be kept."""
    from kvist.cli.plan.progress import progress
    from kvist.lab.measure import measure

    _require_writable(record_path().parent)
    with progress("measuring", lines=True) as step:
        machine = measure(on_point=step.tell)
    write(machine, record_path())
    return machine


def _elsewhere(device: str) -> UsageError:
    return UsageError(
        f"--measure times this machine, --device {device} is another one",
        remedy="leave one of them out, or write --device here",
    )


def _require_writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise KvistError(
            f"{folder} cannot be written ({error.strerror}): a measurement could not be kept",
            remedy="point KVIST_HOME at a folder of yours",
        ) from error


def measured_only(merged: Mapping[str, Any], *, as_json: bool) -> bool:
    """Without a model there is nothing to plan: measure, say what came out. True when that was all."""
    if "model" in merged:
        return False
    device, *_ = merged.get("device", (HERE,))
    if device != HERE:
        raise _elsewhere(device)
    machine = measured()
    if as_json:
        print(json.dumps(machine.to_dict(), ensure_ascii=False, allow_nan=False))
        return True
    origin, bandwidth = machine.origin, machine.bandwidth
    print(f"{origin.cpu}, {origin.threads} threads, {format_bytes(origin.memory_bytes)}")
    rates = "..".join(f"{x / 1e9:.3g}" for x in (bandwidth.low, bandwidth.best, bandwidth.high))
    print(f"reads {rates} GB/s, multiplies {machine.multiply_flops_per_s / 1e9:.4g} GFLOP/s in f32")
    print(f"timed with {origin.model}, weights {origin.weights} ({machine.widths.dense:.3g} bytes each)")
    print(f"kept in {record_path()}; kvist plan MODEL --device here uses it")
    return True

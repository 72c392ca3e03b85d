"""``kvist plan [MODEL] --log FILE``: what an engine printed at its start, beside what it should have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kvist.config import Given
from kvist.errors import KvistError
from kvist.planner.doctor.base import EngineLog
from kvist.planner.doctor.diagnose import Diagnosis, diagnose, run_of_log
from kvist.planner.doctor.named import names_in
from kvist.planner.doctor.read import read_log
from kvist.planner.models.find import find

if TYPE_CHECKING:
    from kvist.planner.models.find import Found


def show_log(path: Path, gathered: Mapping[str, Given], *, as_json: bool) -> int:
    """Print the diagnosis. The model is the one named, else the one that the log names, if it is known."""
    values = {name: value for name, (value, *_) in gathered.items()}
    log = read_log(path, values.get("engine", ""))
    online = values.get("online", True)
    if "model" in values:
        said = _diagnosed(log, find(values["model"], online=online, shape_only=values.get("shape_only", False)))
    else:
        said = _diagnosed(log, _named_by(log, online=online), weighed="llama" not in log.engine)
    if as_json:
        print(json.dumps(said.as_dict(), ensure_ascii=False, allow_nan=False))
        return 0
    from rich.console import Console

    from kvist.cli.plan.doctor_table import render

    render(said, Console())
    return 0


def _named_by(log: EngineLog, *, online: bool) -> Found | None:
    """The model that the log names; None when it names none that can be found. The diagnosis then says so.

    llama.cpp prints names, not ids: the hub is not asked, and a model of other layers than the log's is not it.
    """
    local = "llama" in log.engine
    for name in names_in(log):
        try:
            found = find(name, online=online and not local)
        except KvistError:
            continue
        layers = log.count("n_layer")
        known = len(found.spec.layers)
        if layers is None or layers in (known, known + found.spec.draft_layers):
            return found
    return None


def _diagnosed(log: EngineLog, found: Found | None, *, weighed: bool = True) -> Diagnosis:
    """``weighed`` False: the file's number format is not that of the model as published, so its weights are not."""
    if found is None:
        return diagnose(log)
    if not weighed:
        return diagnose(log, spec=found.spec)
    try:
        weights = found.weights.on_rank(found.spec, run_of_log(log, found.spec).place)
    except KvistError:  # a placement or a shape that cannot be weighed: the diagnosis says what is wrong with it
        weights = None
    return diagnose(log, spec=found.spec, weights=weights)

"""The model's name in a log: what can be looked up, and whether it is the one that the log is compared with."""

from __future__ import annotations

import re

from kvist.planner.check.models import clearly_differ
from kvist.planner.doctor.base import EngineLog
from kvist.planner.doctor.diagnosis import Finding


def names_in(log: EngineLog) -> tuple[str, ...]:
    """What the log calls its model, the likeliest first: as stated, the header's names, the file's without its format.

    llama.cpp prints names in words (``Meta Llama 3 8B Instruct``): they are tried as catalogues spell them too.
    """
    said = log.word("model")
    if "llama" not in log.engine:
        return (said,) if said else ()
    header = str(log.metadata.get("general.name", ""))
    stem = re.split(r"[/\\]", said)[-1].removesuffix(".gguf")
    plain = re.sub(r"[-_.](?:ud[-_])?(?:i?q\d\w*|[bf]+\d+|mxfp4)$", "", stem, flags=re.IGNORECASE)
    found = [text for text in (header, plain, stem) if text]
    spelled = [text.strip().replace(" ", "-") for text in found]
    return tuple(dict.fromkeys([*spelled, *found]))


def other_model(log: EngineLog, compared: str) -> Finding | None:
    """The log names one model, and is compared with another."""
    said = str(log.metadata.get("general.name", "")) or log.word("model")
    if not said or not compared or not clearly_differ(said, compared):
        return None
    return Finding("another name", f"the log says it loaded {said}, compared with {compared}")

"""What is out between the scheduler and the tiers: questions of those who wait, loads of those who were admitted."""

from __future__ import annotations

from dataclasses import dataclass

from kvist.cache.cache import Probe, Wanted
from kvist.sched.sequence import Sequence
from kvist.transfer import Found


@dataclass(slots=True)
class Question:
    """What a waiting sequence asked the tiers; ``answer`` None: it waits for it."""

    asked: Probe
    id: int
    answer: Found | None = None


@dataclass(slots=True)
class Loading:
    """A load that was not answered. ``void``: what it brings is not to be used."""

    seq: Sequence
    wanted: Wanted
    base: int
    tiers: tuple[int, ...]
    void: bool = False

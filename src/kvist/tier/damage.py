"""Telling people of damaged records: once when it begins and as it grows, not for each record."""

from __future__ import annotations

import logging
import threading
from typing import Final

log = logging.getLogger("kvist.tier")

GROWTH: Final = 10
"""After the first line there is another one each time that so many times as many were found."""


class Damage:
    """What one open tier found damaged. ``where`` names it in the log, ``remedy`` says what a person can do."""

    def __init__(self, where: str, remedy: str) -> None:
        self.records = 0
        self._where, self._remedy = where, remedy
        self._told_at = 1
        self._lock = threading.Lock()

    def found(self, records: int) -> None:
        """So many more are damaged, and dropped."""
        with self._lock:
            self.records += records
            total, tells = self.records, records > 0 and self.records >= self._told_at
            while tells and self._told_at <= total:
                self._told_at *= GROWTH
        if tells:
            what = "1 record was damaged" if total == 1 else f"{total:,} records were damaged"
            log.warning("%s: %s and dropped since it was opened: %s", self._where, what, self._remedy)


def disk_damage(folder: str) -> Damage:
    """For a folder."""
    return Damage(f"disk tier {folder}", f"kvist cache verify {folder} reads all others")

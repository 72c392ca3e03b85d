"""What a mover counts, by tier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

MISSES: Final = ("missing", "damaged", "foreign", "timeout", "error", "cancelled", "skipped")
"""Why a record that was to be loaded was not. ``skipped``: one before it in its chain was not."""

LOSSES: Final = ("full", "off", "timeout", "error", "queue_full", "dropped", "closed")
"""Why a block that was to be saved was not."""

_NAMES: Final = (
    *("lookups", "lookup_records", "lookup_found", "lookup_timeouts", "lookup_errors", "lookup_busy_us"),
    "strange_lookups",
    *("read_records", "read_bytes", "read_busy_us", "bounced_records", "second_reads"),
    *(f"miss_{reason}" for reason in MISSES),
    *("stored_records", "known_records", "written_bytes", "write_busy_us", "promoted_records", "promotions_lost"),
    *("deleted_records", "checked_records", "mismatched_records"),
    *(f"lost_{reason}" for reason in LOSSES),
)


class Numbers:
    """Totals of one tier. Changed with the desk's lock held."""

    def __init__(self) -> None:
        self._totals = dict.fromkeys(_NAMES, 0)

    def add(self, name: str, amount: int = 1) -> None:
        """Count. Unknown names are a bug."""
        self._totals[name] += amount

    def busy(self, name: str, seconds: float) -> None:
        """Count microseconds."""
        self._totals[name] += int(seconds * 1e6)

    def put(self, answer: str, block_bytes: int, *, promoted: bool) -> None:
        """Count what became of one block that was to be saved."""
        if answer == "stored":
            self.add("written_bytes", block_bytes)
            self.add("promoted_records" if promoted else "stored_records")
        elif answer == "known":
            self.add("known_records")
        elif promoted:
            self.add("promotions_lost")
        else:
            self.add("lost_" + answer.replace(" ", "_"))

    @property
    def has_records(self) -> bool:
        """Whether the tier is known to have something of ours."""
        return any(
            self._totals[name] for name in ("lookup_found", "stored_records", "known_records", "promoted_records")
        )

    @property
    def totals(self) -> Mapping[str, int]:
        """By name."""
        return self._totals

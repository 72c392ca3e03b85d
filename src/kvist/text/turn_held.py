"""The rows of a file while they are open, and the spot at which the file lies."""

from __future__ import annotations

from pathlib import Path as File

from kvist.text.turn_aside import Spot
from kvist.text.turn_rows import Seal, TurnRows


class Held:
    """``rows`` is None while they are not open. For one thread."""

    def __init__(self, path: File, side: bytes, max_bytes: int, seal: Seal | None) -> None:
        self.path = path
        self.spot = Spot(path)
        self.rows: TurnRows | None = None
        self._how = (path, side, max_bytes, seal)

    @property
    def gone(self) -> bool:
        """Whether the file that is open lies there no more."""
        return self.rows is not None and self.rows.gone

    def open(self) -> TurnRows:
        """The rows, opened if need be. Raises what opening raises."""
        if self.rows is None:
            with self.spot.opening():
                self.rows = TurnRows(*self._how)
        return self.rows

    def close(self) -> None:
        """Close the rows; the spot is held on to."""
        if self.rows is not None:
            with self.spot.closing():
                self.rows.close()
            self.rows = None

    def let_go(self) -> None:
        """Close everything."""
        self.close()
        self.spot.release()

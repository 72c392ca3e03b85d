"""What ``TurnStore`` holds survives a restart: a file beside it, written by a thread of its own.

Serving never waits for it and never fails for it: where the file cannot be used, ``condition`` and ``reason`` say so,
answers are remembered in memory as before, and writing is tried again until the fault ends.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path as File
from typing import Final, Literal

from kvist.text.turn_aside import forget_aside
from kvist.text.turn_held import Held
from kvist.text.turn_place import Refused, is_damage
from kvist.text.turn_rows import Seal
from kvist.text.turn_store import Path, TurnStore
from kvist.text.turn_waiting import bytes_of, remember, restored, without

Condition = Literal["ok", "read-only", "off"]

WAITING_BYTES: Final = 16 << 20
"""Paths that wait to be written take at most this; more are dropped, and counted."""

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0

_log = logging.getLogger("kvist.text")


class TurnFile:
    """A ``TurnStore``'s file. Make one with ``attach``; ``close`` it before the process ends.

    What was written is there after ``kill -9``; a power cut may cost the last puts. Counters: ``loaded`` paths came
    back, ``written``, ``dropped`` (too many waited), ``unreadable`` (damaged or sealed otherwise: passed over).
    """

    def __init__(self, store: TurnStore, path: File, side: bytes, max_bytes: int, seal: Seal | None) -> None:
        self.condition: Condition = "ok"
        self.reason = ""
        self.loaded = self.written = self.dropped = self.unreadable = 0
        self._store = store
        self._held = Held(path, side, max_bytes, seal)
        self._row_of: dict[int, int] = {}  # serial of a path in the store -> its row
        self._waiting: dict[int, Path] = {}
        self._waiting_bytes = 0  # of what waits, and of what is being written
        self._forget: list[str | None] = []
        self._at_work = False
        self._mended = False
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="kvist-turn-file", daemon=True)

    @staticmethod
    def attach(
        store: TurnStore, path: File, *, side: bytes, max_bytes: int | None = None, seal: Seal | None = None
    ) -> TurnFile:
        """Fill ``store`` with what the file has of this ``side``, and write what is put from now on. Raises nothing.

        ``side`` is a digest of tokenizer and template: ids of another one mean nothing here. ``max_bytes`` bounds the
        rows of all sides together (None: 4 for each of the store's tokens); the file takes up to twice that and 3 MiB.
        """
        file = TurnFile(store, path, side, 4 * store.max_tokens if max_bytes is None else max_bytes, seal)
        if store.max_tokens < 1:
            file._say("off", "the store keeps nothing")
            return file
        if file._load():
            store.on_put = file._take
            file._thread.start()
        return file

    def forget(self, owner: str | None) -> None:
        """Remove what the file has of an owner (None: of everybody), on every side. Done once ``flush`` says so."""
        with self._changed:
            self._waiting = without(self._waiting, [owner])
            if owner not in self._forget:
                self._forget.append(owner)
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything asked so far is on its way to the disk; False where it is not by then."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._waiting or self._forget or self._at_work), timeout_s)

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what waits and stop. What cannot be written in time is lost."""
        self._store.on_put = None
        self._stop.set()
        with self._changed:
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _take(self, path: Path) -> None:
        """A path of the store began or grew. Its earlier state, if it still waits, need not be written."""
        with self._changed:
            before = self._waiting.get(path.serial)
            more = bytes_of(path) - (bytes_of(before) if before else 0)
            if self._waiting_bytes + more > WAITING_BYTES:
                self.dropped += 1
                return
            self._waiting.pop(path.serial, None)
            self._waiting[path.serial] = path
            self._waiting_bytes += more
            self._changed.notify_all()

    def _load(self) -> bool:
        """Whether the file can be used, now or later."""
        for _ in range(2):
            try:
                rows = self._held.open()
                self._row_of |= restored(self._store, rows)
                self.loaded = len(self._row_of)
                self.unreadable = rows.unreadable
                if rows.read_only:
                    self._say("read-only", f"{self._held.path} cannot be written to")
                    self._held.let_go()
                return True
            except Refused as error:
                self._say("off", str(error))
                self._held.let_go()
                return False
            except Exception as error:  # whatever the file, its disk or the seal does: serving goes on
                if not self._failed(error):
                    return True
        return True

    def _work(self) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._forget or self._stop.is_set())
                paths, self._waiting = self._waiting, {}
                owners, self._forget = self._forget, []
                self._at_work = bool(paths or owners)
            good = self._write(paths, owners) if self._at_work else True
            with self._changed:
                self._at_work = False
                if not good:
                    self._waiting = {**without(paths, self._forget), **self._waiting}
                    self._forget = [*owners, *(owner for owner in self._forget if owner not in owners)]
                self._waiting_bytes = sum(map(bytes_of, self._waiting.values()))
                self._changed.notify_all()
            if self._stop.is_set() and not (good and (self._waiting or self._forget)):
                return self._held.let_go()
            if not good:
                self._stop.wait(pause_s)
            pause_s = FIRST_PAUSE_S if good else min(2 * pause_s, LONGEST_PAUSE_S)

    def _write(self, paths: dict[int, Path], owners: list[str | None], *, again: bool = True) -> bool:
        try:
            if self._held.gone:
                self._row_of.clear()
                self._held.let_go()
            rows = self._held.open()
            if rows.read_only:
                raise PermissionError(f"{self._held.path} cannot be written to")
            forget_aside(self._held.path, owners)
            now = rows.write(paths.values(), self._row_of, owners)
            kept = not rows.gone
        except Refused as error:
            self._say("off", str(error))
            self._held.let_go()
            return False
        except Exception as error:  # whatever the file, its disk or the seal does: serving goes on
            return self._failed(error) and again and self._write(paths, owners, again=False)
        if not kept:  # put aside or removed while it was written to
            return again and self._write(paths, owners, again=False)
        remember(self._row_of, now)
        self.written += len(paths)
        self._mended = False
        self._say("ok", "")
        return True

    def _failed(self, error: Exception) -> bool:
        """Say what happened; True when the file was damaged and there may be a good one now.

        It is put aside once without a write in between.
        """
        opened = self._held.rows is not None
        self._held.close()
        try:
            if self._mended or not is_damage(error):
                self._say("read-only" if opened else "off", f"{self._held.path}: {error}")
                return False
            self._row_of.clear()
            self._mended = self._held.spot.put_aside(error)
            return True
        except OSError as trouble:
            self._say("off", f"{self._held.path} is damaged ({error}) and cannot be put aside: {trouble}")
            return False
        finally:
            self._held.spot.release()

    def _say(self, condition: Condition, reason: str) -> None:
        if condition != self.condition:
            _log.warning("kept answers on disk: %s%s", condition, f" ({reason})" if reason else "")
        self.condition, self.reason = condition, reason

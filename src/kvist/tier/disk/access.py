"""Asking and changing the index, whatever happens to it: busy, moved, damaged, or the tier closed meanwhile."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from kvist.tier.disk.folder import Folder, move_index_aside
from kvist.tier.disk.get import BAD_VALUE
from kvist.tier.disk.health import LOG, Health, reason_of
from kvist.tier.disk.index import Busy, Index, Unusable, is_busy, is_corrupt
from kvist.tier.disk.io import Io
from kvist.tier.disk.owner import Gate
from kvist.tier.disk.room import Gone, free_up_unopened, wants_room
from kvist.tier.disk.scan import Ground, settle

FAULTS: Final = (OSError, sqlite3.Error, Busy, Unusable, *BAD_VALUE)
"""What a broken place can make the code below raise."""

T = TypeVar("T")


class Access:
    """The index of an open tier. Any thread may use it. ``ground`` is None where the folder is only read.

    ``gone``: what its bytes may be destroyed of, if that is what it takes to open the index on a full filesystem.
    """

    def __init__(
        self, folder: Folder, io: Io, ground: Ground | None, health: Health, *, wal_pages: int, gone: Gone | None = None
    ) -> None:
        """Raises ``FAULTS``."""
        self._folder, self._io, self._ground, self._health = folder, io, ground, health
        self._wal_pages = wal_pages
        self._lock, self._idle = threading.Lock(), threading.Condition()
        self._busy, self._closed = 0, False
        self._old: list[Index] = []
        self._gone = gone
        self._index = self._open(None)
        self._gone = None

    @contextmanager
    def using(self) -> Iterator[bool]:
        """Keeps the tier from closing under a call. False: it is closed."""
        with self._idle:
            is_open = not self._closed
            self._busy += 1
        try:
            yield is_open
        finally:
            with self._idle:
                self._busy -= 1
                self._idle.notify_all()

    def ask(self, question: Callable[[sqlite3.Connection], T], default: T) -> T:
        """Ask the index; mend it and ask again if it proves damaged. ``default`` where it cannot be asked."""

        def go() -> T:
            with self.current().read() as c:
                return question(c)

        return self._safely(go, default)

    def change(
        self, change: Callable[[sqlite3.Connection, Ground], T], timeout_s: float,
        failed: list[BaseException] | None = None,
    ) -> T | None:  # fmt: skip
        """One transaction; None when it could not be done (what it ``failed`` with goes to the end of that list)."""
        ground = self._ground
        if ground is None:
            return None

        def go() -> T | None:
            with self.current().write(timeout_s) as c:
                return change(c, ground)

        return self._safely(go, None, failed)

    def wants_room(self, error: BaseException) -> bool:
        """Whether something failed because the filesystem is full."""
        return wants_room(error, self._folder, self._io)

    def checkpoint(self) -> None:
        """Fold the index's log back, if that can be done now."""
        if self._ground is not None:
            self._safely(lambda: self.current().checkpoint(), None)

    def _safely(self, call: Callable[[], T], default: T, failed: list[BaseException] | None = None) -> T:
        with self.using() as is_open:
            for again in (True, False):
                index = self._index
                if not is_open:
                    break
                try:
                    return call()
                except FAULTS as error:
                    if not again or not self.mended(index, error):
                        if failed is not None:
                            failed.append(error)
                        break
        return default

    @property
    def ground(self) -> Ground | None:
        """What the folder is written with."""
        return self._ground

    @property
    def index(self) -> Index:
        """The index as it was last opened."""
        return self._index

    def current(self) -> Index:
        """The index; opened anew if another process has put a new one in its place. Raises ``FAULTS``."""
        if self._index.moved:
            with self._lock:
                if self._index.moved:
                    new = self._open(None)
                    self._old.append(self._index)
                    self._index = new
        return self._index

    def mended(self, index: Index, error: BaseException) -> bool:
        """Whether the index was to blame for an error and there is a sound one now."""
        corrupt = is_corrupt(error) if isinstance(error, sqlite3.Error) else isinstance(error, (Unusable, *BAD_VALUE))
        if not corrupt or self._ground is None:
            return False
        with self._lock:
            if self._index is not index:
                return True
            try:
                new = self._open(index)
            except FAULTS as again:
                self._health.failed(f"the index cannot be rebuilt: {reason_of(again)}")
                return False
            self._old.append(index)
            self._index = new
        return True

    def _open(self, broken: Index | None) -> Index:
        """Open the index, or make one from the slabs where it is lost, damaged or ``broken``. Raises ``FAULTS``."""
        if self._ground is None:
            return Index(self._folder, self._io, wal_pages=self._wal_pages)
        with Gate(self._folder, self._io):
            try:
                if broken is not None and not broken.moved:
                    raise Unusable("damaged")
                return self._settled(self._ground)
            except (Unusable, sqlite3.Error, *BAD_VALUE) as error:
                if isinstance(error, sqlite3.Error) and (is_busy(error) or not is_corrupt(error)):
                    raise
                aside = move_index_aside(self._folder, self._io)
                LOG.warning("disk tier %s: the index (%s) is now %s", self._folder.path, reason_of(error), aside)
            return self._settled(self._ground)

    def _settled(self, ground: Ground) -> Index:
        try:
            return self._settled_once(ground)
        except FAULTS as error:
            if self._gone is None or not self.wants_room(error):
                raise
        free_up_unopened(ground, self._gone, wal_pages=self._wal_pages)
        return self._settled_once(ground)

    def _settled_once(self, ground: Ground) -> Index:
        index = Index(self._folder, self._io, wal_pages=self._wal_pages)
        try:
            settle(index, ground)
        except BaseException:
            index.close()
            raise
        return index

    def end(self) -> bool:
        """No call begins from here on; waits for those that run. False: it had ended before."""
        with self._idle:
            if self._closed:
                return False
            self._closed = True
            return self._idle.wait_for(lambda: self._busy == 0)

    def close(self) -> None:
        """Close the index."""
        for index in (*self._old, self._index):
            index.close()

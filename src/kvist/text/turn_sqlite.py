"""The SQLite file of kept answers: how it is opened, for both and for reading only."""

from __future__ import annotations

import sqlite3
from pathlib import Path as File
from typing import Final

from kvist.text.turn_place import APPLICATION, VERSION, quoted

BUSY_S: Final = 1.0
"""How long a call waits for another process that writes."""

SPARE_BYTES: Final = 1 << 20

_TABLE: Final = """
begin immediate;
create table if not exists paths (
    n integer primary key autoincrement, side blob not null, owner text not null, bytes integer not null,
    body blob not null);
pragma application_id = {application};
pragma user_version = {version};
commit;
"""


def writable(path: File, max_bytes: int) -> sqlite3.Connection:
    """A connection to a file that has its table; it never takes more than twice ``max_bytes`` and a little."""
    db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        db.execute("pragma cell_size_check = on")
        db.execute("pragma secure_delete = on")
        if not path.stat().st_size:  # before WAL, so that the file itself says whose it is
            db.executescript(_TABLE.format(application=APPLICATION, version=VERSION))
        db.execute("pragma journal_mode = wal").fetchall()
        db.execute("pragma synchronous = normal")
        db.execute(f"pragma journal_size_limit = {SPARE_BYTES}").fetchall()
        page_bytes = db.execute("pragma page_size").fetchone()[0]
        pages = (2 * max_bytes + SPARE_BYTES) // page_bytes
        db.execute(f"pragma max_page_count = {pages}").fetchall()
    except BaseException:
        db.close()
        raise
    return db


def read_only(path: File) -> sqlite3.Connection:
    """Without a folder to write to, only what was moved from the log into the file can be seen."""
    db = sqlite3.connect(f"file:{quoted(path)}?immutable=1", uri=True, check_same_thread=False)
    db.execute("pragma cell_size_check = on")
    return db

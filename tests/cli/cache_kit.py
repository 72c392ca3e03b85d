"""Folders with chains of records, and ``kvist cache`` as a person calls it."""

import contextlib
import hashlib
import io
import logging
import os
import sys
from pathlib import Path

import numpy as np

from kvist.ids import RecordId
from kvist.tier.base import Label, Record
from kvist.tier.disk.store import DiskTier

ORIGIN = bytes(range(16))
OTHER_ORIGIN = b"z" * 16
BLOCK_TOKENS = 16
DATA_BYTES = 8192


def chain(name, n, *, tenant="ada", origin=ORIGIN, below=None, place=b"\0\0", data_bytes=DATA_BYTES):
    """``n`` records in a row, under ``below`` if given. The tokens of a block follow from its depth."""
    parent = below.label.id if below else RecordId(b"")
    depth = below.label.depth + 1 if below else 0
    records = []
    for at in range(depth, depth + n):
        id = RecordId(hashlib.blake2b(f"{name}/{at}".encode(), digest_size=16).digest() + place)
        tokens = np.arange(1000 * at, 1000 * at + BLOCK_TOKENS, dtype="<i4").tobytes()
        data = (hashlib.blake2b(id).digest() * (data_bytes // 64 + 1))[:data_bytes]
        records.append(Record(Label(id, parent, origin, at, tenant, tokens), memoryview(data)))
        parent = id
    return records


def disk(folder, **more):
    return DiskTier.open(folder, **{"capacity_bytes": 256 << 20, "reserve_bytes": 0, **more})


def filled(folder, *chains, wrap=lambda tier: tier):
    """A cache with these records."""
    tier = disk(folder)
    for records in chains:
        assert wrap(tier).put_many(records, timeout_s=30) == ["stored"] * len(records)
    tier.close()
    return folder


def ids_in(folder, wrap=lambda tier: tier):
    tier = disk(folder, read_only=True)
    found = {entry.label.id for entry in wrap(tier).list()}
    tier.close()
    return found


def ids_of(*chains):
    return {record.label.id for records in chains for record in records}


class Done:
    def __init__(self, returncode, stdout, stderr):
        self.returncode, self.stdout, self.stderr = returncode, stdout, stderr


class Terminal(io.StringIO):
    def isatty(self):
        return True


def kvist(*args, env=None, typed=None):
    """The command in this process: quick. ``typed``: a terminal where somebody types this."""
    from kvist.cli import entry

    out, err = io.StringIO(), io.StringIO()
    stdin, environ = sys.stdin, dict(os.environ)
    log = logging.getLogger("kvist.tier")
    before = log.handlers[:], log.level, log.propagate
    for name in [name for name in os.environ if name.startswith("KVIST_")]:
        del os.environ[name]
    os.environ.update(env or {})
    sys.stdin = io.StringIO() if typed is None else Terminal(typed)
    argv, sys.argv = sys.argv, ["kvist", *map(str, args)]
    code = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                entry.run()
            except SystemExit as left:
                code = left.code or 0
    finally:
        log.handlers[:], level, log.propagate = before  # a command says what tiers log; other tests read it
        log.setLevel(level)
        sys.stdin, sys.argv = stdin, argv
        os.environ.clear()
        os.environ.update(environ)
    return Done(code, out.getvalue(), err.getvalue())


def one_line_error(done, code, *parts):
    assert done.returncode == code, (done.stdout, done.stderr)
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
    for part in parts:
        assert str(part) in done.stderr, (part, done.stderr)


def fine(done):
    assert done.returncode == 0 and "error" not in done.stderr, (done.stdout, done.stderr)
    return done.stdout


def snapshot(folder: Path):
    """Names, sizes and bytes of what lies in a folder."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}

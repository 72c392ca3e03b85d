"""Tries a grammar in another process first: a crash, a hang or a flood of memory there harms nothing here."""

from __future__ import annotations

import json
import os
import pickle
import select
import signal
import struct
import subprocess
import sys
import time
import weakref
from queue import LifoQueue
from typing import Final

from kvist.errors import StateError
from kvist.runtime.grammar_words import TRIAL_MEMORY_BYTES, Vocabulary

MOST_TRIAL_S: Final = 4.0
_ALONE_S: Final = 1.0
"""How much longer a process goes on when nobody is left to stop it."""

_START_S: Final = 60.0
"""How long a new process may take to read its vocabulary (a tenth of a second when the machine is free)."""

_PROBE: Final = 'start: "a"'


HELPERS: Final = 2
"""Processes at most: beside one grammar that uses all of its time, others are still tried."""

Verdict = tuple[str, int | None]
"""What is wrong with a grammar, or "", and the bytes that it holds once compiled (None where not known)."""


class Trial:
    """``HELPERS`` helpers, each started when first needed. Safe to share between threads."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        raw = pickle.dumps(vocabulary)
        message = struct.pack("<I", len(raw)) + raw
        self._idle: LifoQueue[_Helper] = LifoQueue()  # the last used first: the second starts when both are needed
        for _ in range(HELPERS):
            self._idle.put(_Helper(message))

    def run(self, grammar: str) -> Verdict:
        """Waits for a helper. Raises ``StateError`` when no process can be started."""
        helper = self._idle.get()
        try:
            return helper.run(grammar)
        finally:
            self._idle.put(helper)


class _Helper:
    """One process, started when first needed and again after it died. For one thread at a time."""

    def __init__(self, vocabulary: bytes) -> None:
        self._vocabulary = vocabulary
        self._process: subprocess.Popen[bytes] | None = None
        self._finalizer: weakref.finalize[[subprocess.Popen[bytes]], _Helper] | None = None

    def run(self, grammar: str) -> Verdict:
        """The grammar's verdict, never later than ``MOST_TRIAL_S`` after the process runs."""
        try:
            return self._run(grammar)
        except BaseException:  # Ctrl-C: the answer to come would be taken for the next grammar's
            self._stop()
            raise

    def _run(self, grammar: str) -> Verdict:
        """When somebody else killed the process (the system, short of memory), the grammar gets a second trial."""
        for _ in range(2):
            process = self._ready()
            answer = _ask(process, grammar, MOST_TRIAL_S)
            if answer is not None:
                return answer
            end = process.poll()
            self._stop()
            if end in (None, -signal.SIGALRM):
                return f"it took more than {MOST_TRIAL_S:g} s to compile", None
            if end != -signal.SIGKILL:
                break
        return f"compiling it overran the stack or {TRIAL_MEMORY_BYTES >> 20} MiB of memory", None

    def _ready(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._stop()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "kvist.runtime.grammar_words", str(MOST_TRIAL_S + _ALONE_S)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                bufsize=0,
            )
        except OSError as error:
            raise StateError(f"no process for trying grammars can be started ({error})") from error
        self._process = process
        self._finalizer = weakref.finalize(self, _end, process)
        if not _write(process, self._vocabulary) or _ask(process, _PROBE, _START_S) is None:
            self._stop()
            raise StateError(
                f"the process for trying grammars does not start ({sys.executable} -m kvist.runtime.grammar_words 5)",
                remedy="run that command to see why",
            )
        return process

    def _stop(self) -> None:
        if self._finalizer is not None:
            self._finalizer()
        self._process = self._finalizer = None


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    process.wait()


def _write(process: subprocess.Popen[bytes], message: bytes) -> bool:
    assert process.stdin is not None
    view = memoryview(message)
    try:
        while view:
            view = view[process.stdin.write(view) or 0 :]
    except OSError:
        return False
    return True


def _ask(process: subprocess.Popen[bytes], grammar: str, limit_s: float) -> Verdict | None:
    """The process's answer; None when it died or was not done in time."""
    assert process.stdout is not None
    raw = grammar.encode()
    if not _write(process, struct.pack("<I", len(raw)) + raw):
        process.wait(1)
        return None
    end, line = time.monotonic() + limit_s, b""
    while not line.endswith(b"\n"):
        left = end - time.monotonic()
        if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
            return None
        part = process.stdout.read(4096)
        if not part:
            process.wait(1)
            return None
        line += part
    trouble, held_bytes = json.loads(line)
    return trouble, held_bytes

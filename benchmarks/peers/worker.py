"""A worker as whoever asks sees it: started, asked, stopped while others compute, ended."""

import json
import os
import select
import signal
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
START_S = 600.0
ANSWER_S = 900.0


class WorkerError(Exception):
    """A worker that did not start, ended, said that it cannot, or did not answer in time."""


class Worker:
    """One engine in a process of its own. ``about`` is what it says of itself. It runs only while it is asked.

    Between questions the whole process group is stopped (SIGSTOP): OpenMP and TBB threads spin for a while after their
    work, and would take the processor from whoever is measured next.
    """

    def __init__(self, python, module, options, *, env=None):
        self._log = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [str(python), "-m", module, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": str(options["threads"]), "PYTHONPATH": str(ROOT), **(env or {})},
            start_new_session=True,
        )
        self._buffer = b""
        self.name = module.rpartition(".")[2]
        try:
            self.about = self._read(START_S)["ready"]
        except BaseException:
            self.end()
            raise
        self._signal(signal.SIGSTOP)

    def ask(self, **question):
        """The answer, as a dict. Raises ``WorkerError``."""
        self._signal(signal.SIGCONT)
        try:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
            return self._read(ANSWER_S)
        except BrokenPipeError:
            raise WorkerError(f"{self.name} ended: {self._last_words()}") from None
        finally:
            self._signal(signal.SIGSTOP)

    def processor_s(self):
        """Seconds of processor time so far, of its process and the threads in it."""
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self):
        """Whatever it is doing."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        for file in (self._process.stdin, self._process.stdout, self._log):
            try:
                file.close()
            except BrokenPipeError:
                pass

    def _read(self, limit_s):
        line = self._line(time.monotonic() + limit_s)
        if line is None:
            raise WorkerError(f"{self.name} gave no answer in {limit_s:.0f} s: {self._last_words()}")
        if not line:
            raise WorkerError(f"{self.name} ended: {self._last_words()}")
        try:
            answer = json.loads(line)
        except ValueError:
            raise WorkerError(f"{self.name} answered {line[:200]!r}, which is no JSON") from None
        if "error" in answer:
            raise WorkerError(f"{self.name}: {answer['error']}")
        return answer

    def _line(self, until):
        """One line; b'' when it ended, None when the time is over."""
        while b"\n" not in self._buffer:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                return None
            got = os.read(self._process.stdout.fileno(), 1 << 16)
            if not got:
                return b""
            self._buffer += got
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _last_words(self):
        self._log.seek(0)
        return " | ".join(self._log.read().strip().splitlines()[-4:])[-600:] or "it said nothing"

    def _signal(self, number):
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            pass

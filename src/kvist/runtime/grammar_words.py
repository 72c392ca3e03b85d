"""A vocabulary as llguidance wants it, and the compiling of a grammar over it.

Run as a program it tries grammars for ``grammar_trial``: some crash the library (deep recursion overflows its stack)
or keep it busy without end, and only a process can be given up. It knows the standard library and llguidance alone.
"""

from __future__ import annotations

import ctypes
import json
import pickle
import resource
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

TRIAL_MEMORY_BYTES: Final = 1 << 30
TRIAL_STACK_BYTES: Final = 1 << 20
"""Well below a thread's usual 8 MiB: what fits here cannot overflow there."""

MOST_FIRST_MASK_S: Final = 0.1
"""Processor time of the mask before the first token, which every sequence with the grammar pays."""

LIMITS: Final[dict[str, Any]] = {
    "max_items_in_row": 2_000,
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 500_000,
    "verbose_errors": False,
}
"""llguidance's own bounds, except fewer lexer states (up to 2 KB each) and errors that do not quote the text."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Bytes of every token (control tokens by their spelling), which of them are control tokens, and what ends."""

    tokens: tuple[bytes, ...]
    special: tuple[int, ...]
    eos: tuple[int, ...]


class Words:
    """llguidance's view of a tokenizer. ``encode`` spells text that a grammar forces as the model would."""

    def __init__(self, vocabulary: Vocabulary, encode: Callable[[str], list[int]] | None = None) -> None:
        self.tokens: Sequence[bytes] = vocabulary.tokens
        self.special_token_ids = list(vocabulary.special)
        self.eos_token_id = vocabulary.eos[0]
        self.bos_token_id = None
        self.is_tokenizer_wrapper = True
        self._encode = encode
        special = set(vocabulary.special)
        text = {raw: n for n, raw in reversed(list(enumerate(vocabulary.tokens))) if raw and n not in special}
        self._ids: dict[bytes, int] = text
        self._longest = max(map(len, text), default=0)

    def __call__(self, text: str) -> list[int]:
        """Ids that spell exactly ``text``, as far as the vocabulary can."""
        raw = text.encode("utf-8", "replace")
        ids = self._encode(text) if self._encode is not None else []
        if all(n < len(self.tokens) for n in ids):
            spelled = b"".join([self.tokens[n] for n in ids])
            if spelled == raw:
                return ids
            if ids and spelled == b" " + raw:  # SentencePiece puts a space before the first word
                first = self.tokens[ids[0]][1:]
                if not first or first in self._ids:
                    return [self._ids[first], *ids[1:]] if first else ids[1:]
        return self._longest_first(raw)

    def _longest_first(self, raw: bytes) -> list[int]:
        ids, at = [], 0
        while at < len(raw):
            ends = range(min(len(raw), at + self._longest), at, -1)
            end = next((e for e in ends if raw[at:e] in self._ids), None)
            if end is None:
                break
            ids.append(self._ids[raw[at:end]])
            at = end
        return ids


class Compiler:
    """Compiles grammars over one vocabulary. Safe to share between threads."""

    def __init__(self, vocabulary: Vocabulary, encode: Callable[[str], list[int]] | None = None) -> None:
        import llguidance

        self._lib: Any = llguidance
        self._limits = llguidance.LLParserLimits(**LIMITS)
        words: Any = Words(vocabulary, encode)
        self._tokenizer = llguidance.LLTokenizer(words, eos_token=list(vocabulary.eos))

    def compile(self, grammar: str) -> tuple[Any, str]:
        """(an LLMatcher at its start, what is wrong with it or ""). The first mask is computed, and must not be empty.

        The library reports its own panics as messages; what else it may raise becomes one too.
        """
        try:
            core = self._lib.LLMatcher(self._tokenizer, grammar, log_level=0, limits=self._limits)
            if not core.is_error():
                trial, start = core.deep_copy(), time.thread_time()
                if not any(trial.compute_bitmask()) or trial.is_error():
                    return core, trial.get_error() or "no text satisfies it"
                mask_s = time.thread_time() - start
                if mask_s > MOST_FIRST_MASK_S:
                    return core, f"its first token takes {mask_s:.2f} s, {MOST_FIRST_MASK_S:g} s are allowed"
            return core, core.get_error() if core.is_error() else ""
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a Rust panic is no Exception
            return None, f"{type(error).__name__}: {error}"


def short_message(message: str) -> str:
    """What the library says, in one line, without the state it dumps."""
    for mark in ("<state>", "<non-verbose/>", "<backtrace>"):
        message = message.split(mark)[0]
    return " ".join(message.split())[:500]


class _MallInfo2(ctypes.Structure):
    """glibc's ``struct mallinfo2``: bytes in use are ``uordblks`` and, in mappings of their own, ``hblkhd``."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    )


def _allocated_bytes() -> int | None:
    """Bytes that this process holds from ``malloc``; None where the C library does not tell (glibc 2.33 does)."""
    try:
        count = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        return None
    count.restype = _MallInfo2
    info = count()
    return int(info.uordblks + info.hblkhd)


def _read(stream: BinaryIO) -> bytes:
    head = stream.read(4)
    return stream.read(struct.unpack("<I", head)[0]) if len(head) == 4 else b""


def _serve(limit_s: float) -> None:
    """One pickled vocabulary comes in, then grammars; a line of JSON goes out for each.

    It says what is wrong, or "", and how many bytes the compiled grammar holds (None: not known). The library cannot
    be interrupted: past ``limit_s`` the system ends this process, whether or not somebody still waits for it.
    """
    compiler = Compiler(pickle.loads(_read(sys.stdin.buffer)))
    while grammar := _read(sys.stdin.buffer).decode():
        before = _allocated_bytes()
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        core, trouble = compiler.compile(grammar)
        signal.setitimer(signal.ITIMER_REAL, 0)
        after = _allocated_bytes()
        held_bytes = None if before is None or after is None else max(0, after - before)
        del core  # held until it was weighed
        sys.stdout.write(json.dumps([trouble[:2000], held_bytes]) + "\n")
        sys.stdout.flush()


def main() -> None:
    """Serve in a thread of little stack, in bounded memory; end when the parent closes the pipe, however it ended.

    The argument is how many seconds one grammar may take. Ctrl-C is for the parent to act on.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (TRIAL_MEMORY_BYTES, TRIAL_MEMORY_BYTES))
    threading.stack_size(TRIAL_STACK_BYTES)
    server = threading.Thread(target=_serve, args=(float(sys.argv[1]),), daemon=True)
    server.start()
    server.join()


if __name__ == "__main__":
    main()

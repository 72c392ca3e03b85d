"""How a command fails: one line on standard error, and an exit code."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from kvist.errors import KvistError


def leave_quietly() -> NoReturn:
    """The reader went away (``kvist ... | head``): nothing left to say, and nothing to flush at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(1)


def exit_with(error: Exception) -> NoReturn:
    """Print what went wrong and leave with the error's code. ``KVIST_TRACE=1`` shows where it came from."""
    if os.environ.get("KVIST_TRACE"):
        raise error
    wrong_call = getattr(error, "format_message", None)  # what the command-line library says of flags and arguments
    if wrong_call is not None:
        if not wrong_call():  # called without a command: the help was printed
            sys.exit(2)
        print(f"error: {' '.join(wrong_call().split())}; kvist COMMAND --help lists what there is", file=sys.stderr)
        sys.exit(2)
    if isinstance(error, KvistError):
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(error.exit_code)
    if isinstance(error, ModuleNotFoundError):
        print(f"error: {error}; install what runs models: pip install 'kvist[demo]'", file=sys.stderr)
        sys.exit(1)
    if isinstance(error, OSError):
        print(f"error: {error}; check the path, its permissions and the space left", file=sys.stderr)
        sys.exit(1)
    print(
        f"error: {type(error).__name__}: {error}; this is a bug in kvist: run again with KVIST_TRACE=1 and report it",
        file=sys.stderr,
    )
    sys.exit(1)

"""Where the ``kvist`` command begins and ends: 0 (done), 1 (failed), 2 (the call was wrong), 130 (interrupted).

Nothing heavy is imported before the first ``try``, so that an interrupt at any time ends quietly.
"""

import sys


def run() -> None:
    """Run the command line; every failure is one line on standard error."""
    try:
        _run()
    except KeyboardInterrupt:
        sys.exit(130)


def _run() -> None:
    from kvist.cli.failure import exit_with, leave_quietly

    try:
        from kvist.cli.main import app

        sys.exit(app(standalone_mode=False) or 0)
    except BrokenPipeError:
        leave_quietly()
    except Exception as error:  # a command's last resort: one line, never a trace (KVIST_TRACE=1 shows it)
        if type(error).__name__ == "Abort":  # how the command-line library passes on an interrupt
            raise KeyboardInterrupt from error
        exit_with(error)

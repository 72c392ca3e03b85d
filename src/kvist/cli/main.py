"""``kvist``: one thin file per command; each imports its room when it is called, so that ``--help`` stays quick."""

from __future__ import annotations

import os
import sys

import typer

from kvist.cli import chat, generate, inspect
from kvist.cli.failure import exit_with

app = typer.Typer(
    name="kvist",
    help="Run language models on a KV cache you can see.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("generate", help="Continue a prompt, or several as one batch.")(generate.command)
app.command("chat", help="Talk to the model; the conversation stays in the cache.")(chat.command)
app.command("model", help="Show what a model's cache is made of.")(inspect.command)


@app.callback(invoke_without_command=True)
def main(version: bool = typer.Option(False, "--version", help="Print the version and stop.", is_eager=True)) -> None:
    """Run language models on a KV cache you can see."""
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"kvist {installed('kvist')}")
        raise typer.Exit


def run() -> None:
    """Entry point: exit codes 0 (done), 1 (failed), 2 (the call was wrong), 130 (interrupted)."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader went away (``kvist ... | head``): nothing left to say, and nothing to flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:  # every command's last resort: one line, never a trace (KVIST_TRACE=1 shows it)
        exit_with(error)

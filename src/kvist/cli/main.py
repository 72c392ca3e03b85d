"""``kvist``: one thin file per command; each imports its room when it is called, so that ``--help`` stays quick."""

from __future__ import annotations

import typer

from kvist.cli import bench, chat, generate, inspect, lab
from kvist.cli.cache import command as cache
from kvist.cli.plan import command as plan
from kvist.cli.serve import command as serve

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
app.command("serve", help="Serve a model to OpenAI and Anthropic clients.")(serve.command)
app.command("model", help="Show what a model's cache is made of.")(inspect.command)
app.command("plan", help="Plan memory, users and latency on any device.", epilog=plan.EPILOG)(plan.command)
app.add_typer(bench.app, name="bench")
app.add_typer(cache.app, name="cache")
app.add_typer(lab.app, name="lab")


@app.callback(invoke_without_command=True)
def main(version: bool = typer.Option(False, "--version", help="Print the version and stop.", is_eager=True)) -> None:
    """Run language models on a KV cache you can see."""
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"kvist {installed('kvist')}")
        raise typer.Exit

"""``kvist cache``: what lies in a tier, and tidying, moving and wiping it. Nothing here needs a model or torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from kvist.cli import options as opt

app = typer.Typer(help="Look into, check, tidy, move and wipe a cache that survives restarts.", no_args_is_help=True)

_PLACE: Final = (
    "A cache folder, or any tier: disk:/path?size=10GiB, redis://host, s3://bucket"
    " (default: the first disk tier of KVIST_TIER or --config)."
)
_ORIGIN: Final = "Of this model only: its origin as kvist cache stat has it, or how that begins."
_SORTS: Final = "used (the default: last used first), hits, tokens, bytes, tenant, origin or id."
_IDS: Final = "A record (how its id begins will do), what comes after it, and what before it nothing else has."
_TENANT: Final = "All of a tenant's; in a sealed place (with --tier-key) his key is destroyed first."
_TOKENS: Final = "Show the ids of the first tokens. They are what people wrote."
PlaceArgument = Annotated[str | None, typer.Argument(metavar="PLACE", help=_PLACE, show_default=False)]
NamedPlace = Annotated[str, typer.Argument(metavar="PLACE", help="A cache folder, or any tier.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on standard output, nothing else.")]


def _flag(*names: str, help: str, metavar: str | None = None) -> Any:
    return typer.Option(*names, help=help, metavar=metavar, show_default=False)


@app.callback()
def main() -> None:
    """Look into, check, tidy, move and wipe a cache that survives restarts."""


@app.command("stat", help="Condition, sizes, models and tenants of a place.")
def stat(
    ctx: typer.Context,
    place: PlaceArgument = None,
    quick: Annotated[bool, _flag("--quick", help="No walk over records: without models and tenants.")] = False,
    as_json: AsJson = False,
    config: opt.Config = None,
) -> None:
    """Changes nothing, whatever runs on the place."""
    from kvist.cli.cache import look

    look.stat(ctx.params)


@app.command("ls", help="Chains of records: what each conversation or prompt has in a place.")
def ls(
    ctx: typer.Context,
    place: PlaceArgument = None,
    tenant: Annotated[str | None, _flag("--tenant", help="This tenant's only.", metavar="NAME")] = None,
    origin: Annotated[str | None, _flag("--origin", help=_ORIGIN, metavar="HEX")] = None,
    sort: Annotated[str, _flag("--sort", help=_SORTS, metavar="NAME")] = "used",
    limit: Annotated[int | None, _flag("--limit", help="Most lines (50; 0: all).", metavar="INT")] = None,
    tokens: Annotated[bool, _flag("--tokens", help=_TOKENS)] = False,
    as_json: AsJson = False,
    tier_key: opt.TierKey = None,
    config: opt.Config = None,
) -> None:
    """Changes nothing, whatever runs on the place."""
    from kvist.cli.cache import look

    look.ls(ctx.params)


@app.command("verify", help="Read every record and drop what is damaged. Exit code 1 when something was.")
def verify(ctx: typer.Context, place: PlaceArgument = None, as_json: AsJson = False, config: opt.Config = None) -> None:
    """May run beside a server."""
    from kvist.cli.cache import look

    code = look.verify(ctx.params)
    if code:
        raise typer.Exit(code)


@app.command("gc", help="Take back what dead processes left, and give free slots' room back.")
def gc(ctx: typer.Context, place: PlaceArgument = None, as_json: AsJson = False, config: opt.Config = None) -> None:
    """May run beside a server."""
    from kvist.cli.cache import tidy

    tidy.gc(ctx.params)


@app.command("rm", help="Remove chains, a tenant, a model, or everything: their bytes are destroyed.")
def rm(
    ctx: typer.Context,
    place: PlaceArgument = None,
    ids: Annotated[list[str] | None, _flag("--id", help=_IDS, metavar="ID")] = None,
    tenant: Annotated[str | None, _flag("--tenant", help=_TENANT, metavar="NAME")] = None,
    origin: Annotated[str | None, _flag("--origin", help=_ORIGIN, metavar="HEX")] = None,
    everything: Annotated[bool, _flag("--all", help="All records.")] = False,
    yes: Annotated[bool, _flag("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
    tier_key: opt.TierKey = None,
    config: opt.Config = None,
) -> None:
    """Asks first, on a terminal."""
    from kvist.cli.cache import tidy

    tidy.rm(ctx.params)


@app.command("export", help="One chain into a file: wholly or not at all.")
def export(
    ctx: typer.Context,
    place: NamedPlace,
    id: Annotated[str, typer.Argument(metavar="ID", help="As kvist cache ls has it, or how it begins.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to. It is not sealed.")],
    force: Annotated[bool, _flag("--force", help="Overwrite FILE.")] = False,
    as_json: AsJson = False,
    tier_key: opt.TierKey = None,
    config: opt.Config = None,
) -> None:
    """Changes nothing in the place."""
    from kvist.cli.cache import move

    move.export(ctx.params)


@app.command("import", help="A file's chain into a place, after all of the file was checked.")
def import_(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What kvist cache export wrote.")],
    place: NamedPlace,
    origin: Annotated[str | None, _flag("--origin", help="Refuse a file of another model.", metavar="HEX")] = None,
    create: Annotated[bool, _flag("--create", help="Make a cache in a new or an empty folder.")] = False,
    as_json: AsJson = False,
    tier_key: opt.TierKey = None,
    config: opt.Config = None,
) -> None:
    """Exit code 1 when the place did not take all of it."""
    from kvist.cli.cache import move

    move.import_(ctx.params)


@app.command("keygen", help="A new key, for --tier-key, in a new file that only you can read.")
def keygen(
    ctx: typer.Context, file: Annotated[Path, typer.Argument(metavar="FILE", help="Outside the cache.")]
) -> None:
    """Never overwrites a key."""
    from kvist.cli.cache import keys

    keys.keygen(ctx.params)


@app.command("rekey", help="Another key for a sealed place; its records stay as they are.")
def rekey(
    ctx: typer.Context,
    place: NamedPlace,
    old: Annotated[Path, _flag("--old", help="The key that opens it now.", metavar="FILE")],
    new: Annotated[Path, _flag("--new", help="The key that opens it from now on.", metavar="FILE")],
    config: opt.Config = None,
) -> None:
    """Its servers must be started again with the new key."""
    from kvist.cli.cache import keys

    keys.rekey(ctx.params)

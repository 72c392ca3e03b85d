"""The options of ``kvist serve``: a flag, an environment variable and a TOML key each, said once in a table."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from kvist.cli.plan.options import read_seconds
from kvist.config import Option, read_bool, read_bytes, read_int, read_text


def read_list(value: object) -> tuple[str, ...]:
    """``"a,b"``, or a list of such strings. Raises ``ValueError``."""
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list | tuple) or not all(isinstance(v, str) for v in listed):
        raise ValueError
    return tuple(v.strip() for text in listed for v in text.split(",") if v.strip())


def read_keys(value: object) -> tuple[str, ...]:
    """As ``read_list``, but an empty key (a variable that was not set) is no key. Raises ``ValueError``."""
    keys = read_list(value)
    if not keys or (isinstance(value, list | tuple) and not all(value)):
        raise ValueError
    return keys


def read_order(value: object) -> str:
    """A name; ``priority``, which others have, is what every order does. Raises ``ValueError``."""
    name = read_text(value)
    return "fcfs" if name == "priority" else name


_ROWS: Final = (
    ("host", read_text, "an address", "address to listen on (default 127.0.0.1: this machine only)"),
    ("port", read_int, "a port", "port to listen on (default 8000; 0: any free one)"),
    ("served_model_name", read_list, "names", "names clients may ask for, separated by commas"),
    ("api_key", read_keys, "KEY, NAME:KEY or NAME:KEY:WEIGHT", "a key clients must send (repeatable, one per tenant)"),
    ("admin_api_key", read_text, "a key", "the key that may reset the cache and load weights"),
    ("isolate", read_bool, "true or false", "each API key sees its own part of the cache only (default on)"),
    (
        "max_queue",
        read_int,
        "a whole number",
        "most answers of a tenant inside, waiting, running or not read (default 256)",
    ),
    ("max_wait", read_seconds, "seconds", "refuse when more work than this is waiting (default 600s)"),
    ("max_body", read_bytes, "a size such as 16MiB", "largest request body (default 4MiB)"),
    ("max_connections", read_int, "a whole number", "most connections at a time (default 4096)"),
    ("max_output_tokens", read_int, "a whole number", "longest answer to a request that names no limit"),
    ("read_timeout", read_seconds, "seconds", "longest time a request may take to come (default 30s)"),
    ("write_timeout", read_seconds, "seconds", "longest time a client may not read its stream (default 60s)"),
    ("drain_timeout", read_seconds, "seconds", "how long answers may go on after SIGTERM (default 30s)"),
    (
        "keep_answers",
        read_bool,
        "true or false",
        "conversations go on with the ids that were generated (default on)",
    ),
    ("append_only", read_bool, "true or false", "also where the template would render earlier turns differently"),
    ("chat_template", read_text, "a path", "a jinja file to use instead of the model's own chat template"),
    ("history", read_int, "a whole number", "ended requests that can still be asked about (default 4096)"),
    ("log_level", read_text, "a level", "debug, info, warning or error (default info)"),
    ("log_format", read_text, "text or json", "text or json (default text)"),
    ("otlp_endpoint", read_text, "a URL", "send OpenTelemetry spans there"),
    ("tenant_metrics", read_bool, "true or false", "label metrics by tenant"),
    (
        "paper",
        read_bool,
        "true or false",
        "serve on paper: real scheduler and cache, made-up tokens, no compute",
    ),
)
SERVE: Final = {name: Option("serve", name, read, expected, text) for name, read, expected, text in _ROWS}

ALIASES: Final = {
    "max_model_len": "context_tokens",
    "max_num_seqs": "max_sequences",
    "max_num_batched_tokens": "token_budget",
    "kv_cache_memory": "kv_memory",
    "kv_cache_dtype": "kv_format",
    "block_size": "block_tokens",
    "scheduling_policy": "order",
    "enable_prefix_caching": "prefix_cache",
    "max_body_bytes": "max_body",
    "shutdown_timeout": "drain_timeout",
}
"""Names that people know from other servers, and ours. They work as flags, variables and keys alike."""

PANEL: Final = "Server"
_NAMES_OF: Final = {ours: [a for a, o in ALIASES.items() if o == ours] for ours in ALIASES.values()}
_METAVAR: Final[dict[Any, str]] = {
    read_int: "INT",
    read_bytes: "SIZE",
    read_seconds: "TIME",
    read_list: "TEXT",
    read_keys: "TEXT",
}


def flags_of(name: str) -> list[str]:
    """Every flag of an option: its own and the ones known from other servers."""
    return ["--" + n.replace("_", "-") for n in (name, *_NAMES_OF.get(name, ()))]


def serve_option(name: str) -> Any:
    """The command-line option of one row."""
    option = SERVE[name]
    flags = flags_of(name)
    if option.read is read_bool:
        flags = ["/".join((f, f.replace("--", "--no-"))) for f in flags]
    text = f"{option.help} (env KVIST_{name.upper()})"
    metavar = None if option.read is read_bool else _METAVAR.get(option.read, "TEXT")
    return typer.Option(*flags, help=text, metavar=metavar, rich_help_panel=PANEL, show_default=False)


Host = Annotated[str | None, serve_option("host")]
Port = Annotated[str | None, serve_option("port")]
ServedModelName = Annotated[list[str] | None, serve_option("served_model_name")]
ApiKey = Annotated[list[str] | None, serve_option("api_key")]
AdminApiKey = Annotated[str | None, serve_option("admin_api_key")]
Isolate = Annotated[bool | None, serve_option("isolate")]
MaxQueue = Annotated[str | None, serve_option("max_queue")]
MaxWait = Annotated[str | None, serve_option("max_wait")]
MaxBody = Annotated[str | None, serve_option("max_body")]
MaxConnections = Annotated[str | None, serve_option("max_connections")]
MaxOutputTokens = Annotated[str | None, serve_option("max_output_tokens")]
ReadTimeout = Annotated[str | None, serve_option("read_timeout")]
WriteTimeout = Annotated[str | None, serve_option("write_timeout")]
DrainTimeout = Annotated[str | None, serve_option("drain_timeout")]
KeepAnswers = Annotated[bool | None, serve_option("keep_answers")]
AppendOnly = Annotated[bool | None, serve_option("append_only")]
ChatTemplate = Annotated[str | None, serve_option("chat_template")]
History = Annotated[str | None, serve_option("history")]
LogLevel = Annotated[str | None, serve_option("log_level")]
LogFormat = Annotated[str | None, serve_option("log_format")]
OtlpEndpoint = Annotated[str | None, serve_option("otlp_endpoint")]
TenantMetrics = Annotated[bool | None, serve_option("tenant_metrics")]
Paper = Annotated[bool | None, serve_option("paper")]

"""From options to a running server."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvist.cli.options import EVERY, Settings, merge, settings_of
from kvist.cli.serve.options import SERVE, read_order
from kvist.config import Given
from kvist.errors import BadValue, UsageError

if TYPE_CHECKING:
    from kvist.server.config import ServeConfig
    from kvist.server.observe.base import Observer
    from kvist.server.served import Served

DEFAULTS: Final = {"order": "prefix", "itl_slo": "1.75x"}
"""What a server does unless told otherwise: hits first, and nobody waits much longer for a token."""

_FIELDS: Final = {
    "host": "host",
    "port": "port",
    "max_queue": "max_queue",
    "max_wait": "max_wait_s",
    "max_body": "max_body_bytes",
    "max_connections": "max_connections",
    "max_output_tokens": "max_output_tokens",
    "read_timeout": "read_timeout_s",
    "write_timeout": "write_timeout_s",
    "drain_timeout": "drain_s",
    "keep_answers": "keep_answers",
    "append_only": "append_only",
    "history": "history",
    "tenant_metrics": "tenant_metrics",
}


def serve(params: Mapping[str, Any]) -> int:
    """Serve until a signal; the exit code. Raises ``KvistError`` for what makes serving impossible."""
    merged = _merged(params)
    settings, config = settings_of(merged), serve_config(merged)
    values = {name: value for name, (value, _, _) in merged.items() if name in SERVE}
    settings = replace(
        settings,
        engine=replace(settings.engine, sched=replace(settings.engine.sched, weights=config.tenants.weights)),
    )
    _check(settings)
    try:
        return _run(settings, config, values)
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] in ("fastapi", "uvicorn", "starlette", "prometheus_client"):
            raise UsageError(f"{error.name} is not installed", remedy="pip install 'kvist[server]'") from error
        raise


def _check(settings: Settings) -> None:
    """What would be refused after a minute of loading is refused now. Raises ``KvistError``."""
    from kvist.cache.evict.registry import load as load_evict
    from kvist.cli.serve.places import check_places
    from kvist.sched.order.registry import load
    from kvist.sched.pace import read_slo
    from kvist.spec.format import KVFormat
    from kvist.spec.read import locate

    load(settings.engine.sched.order)
    load_evict(settings.engine.cache.evict)
    read_slo(settings.engine.sched.itl_slo)
    KVFormat.parse(settings.engine.cache.format)
    check_places(settings.engine.tiers)
    if settings.model is not None:
        locate(Path(settings.model))


def _merged(params: Mapping[str, Any]) -> dict[str, Given]:
    given = dict(params)
    if given.get("served") is not None:
        if given.get("model") is not None:
            raise UsageError("two models were named", remedy="name one: kvist serve MODEL")
        given["model"] = given["served"]
    merged = merge(given, EVERY)
    if "order" in merged:
        value, source, rank = merged["order"]
        merged["order"] = (read_order(value), source, rank)
    for name, value in DEFAULTS.items():
        merged.setdefault(name, (value, "kvist serve", -1))
    return merged


def serve_config(merged: Mapping[str, Given]) -> ServeConfig:
    """The server's part of merged options. Raises ``BadValue``."""
    from kvist.server.config import ServeConfig
    from kvist.server.tenants import Tenants

    values = {name: value for name, (value, _, _) in merged.items()}
    keys = values.get("api_key", ())
    tenants = Tenants.parse(keys, admin_key=values.get("admin_api_key", ""), isolate=values.get("isolate", True))
    fields = {_FIELDS[n]: v for n, v in values.items() if n in _FIELDS}
    names = values.get("served_model_name") or (_name_of(values.get("model")),)
    return ServeConfig(**fields, names=names, tenants=tenants)


def _name_of(model: str | None) -> str:
    if model is None:
        return "SmolLM2-135M-Instruct"
    path = Path(model)
    return path.stem if path.suffix == ".gguf" else path.name or model


def _run(settings: Settings, config: ServeConfig, values: Mapping[str, Any]) -> int:
    from kvist.cli.loading import progress_bar
    from kvist.cli.serve import screen
    from kvist.server.observe.logs import setup_logging
    from kvist.server.run import Host, Progress

    setup_logging(values.get("log_level", "info"), values.get("log_format", "text"))
    observers = _observers(values, config.names[0])
    sys.setswitchinterval(0.001)
    load: Callable[[Progress], Served]
    if values.get("paper"):
        from kvist.cli.serve.paper import paper_served

        load, loader = lambda progress: paper_served(settings, _template(values)), None
    else:
        from kvist.cli.serve.real import Models

        models = Models(settings, _template(values))
        load, loader = models.first, models.again

    def with_bar(progress: Progress) -> Served:
        with progress_bar() as bar:

            def move(part: float) -> None:
                bar(part)
                progress(part)

            return load(move)

    host = Host(
        with_bar,
        config,
        now=time.perf_counter,
        loader=loader,
        observers=observers,
        on_ready=screen.ready,
    )
    screen.starting(host.address, config)
    host.run()
    screen.stopped(host)
    return 130 if host.interrupted else 0


def _template(values: Mapping[str, Any]) -> str | None:
    """The chat template's source, when a file was named. Raises ``BadValue``."""
    path = values.get("chat_template")
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadValue("chat_template", path, f"a readable UTF-8 file ({error})") from error


def _observers(values: Mapping[str, Any], model: str) -> list[Observer]:
    from kvist.server.observe.logs import RequestLog

    observers: list[Observer] = [RequestLog()]
    endpoint = values.get("otlp_endpoint")
    if endpoint is not None:
        from kvist.server.observe.spans import Spans

        observers.append(Spans.to(endpoint, model=model))
    return observers

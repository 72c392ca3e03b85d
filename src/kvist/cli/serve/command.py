"""``kvist serve``: a server that OpenAI and Anthropic clients can be pointed at."""

from __future__ import annotations

from typing import Annotated

import typer

from kvist.cli import options as opt
from kvist.cli.serve import options as srv


def command(
    ctx: typer.Context,
    served: Annotated[str | None, typer.Argument(metavar="MODEL", help="Same as --model.", show_default=False)] = None,
    host: srv.Host = None,
    port: srv.Port = None,
    served_model_name: srv.ServedModelName = None,
    api_key: srv.ApiKey = None,
    admin_api_key: srv.AdminApiKey = None,
    isolate: srv.Isolate = None,
    max_queue: srv.MaxQueue = None,
    max_wait: srv.MaxWait = None,
    max_body: srv.MaxBody = None,
    max_connections: srv.MaxConnections = None,
    max_output_tokens: srv.MaxOutputTokens = None,
    read_timeout: srv.ReadTimeout = None,
    write_timeout: srv.WriteTimeout = None,
    drain_timeout: srv.DrainTimeout = None,
    keep_answers: srv.KeepAnswers = None,
    append_only: srv.AppendOnly = None,
    chat_template: srv.ChatTemplate = None,
    history: srv.History = None,
    log_level: srv.LogLevel = None,
    log_format: srv.LogFormat = None,
    otlp_endpoint: srv.OtlpEndpoint = None,
    tenant_metrics: srv.TenantMetrics = None,
    paper: srv.Paper = None,
    model: opt.Model = None,
    dtype: opt.Dtype = None,
    attention: opt.Attention = None,
    numerics: opt.Numerics = None,
    threads: opt.Threads = None,
    poison: opt.Poison = None,
    kv_format: opt.KvFormat = None,
    kv_memory: opt.KvMemory = None,
    kv_blocks: opt.KvBlocks = None,
    block_tokens: opt.BlockTokens = None,
    prefix_cache: opt.PrefixCache = None,
    token_budget: opt.TokenBudget = None,
    max_sequences: opt.MaxSequences = None,
    chunk_tokens: opt.ChunkTokens = None,
    context_tokens: opt.ContextTokens = None,
    order: opt.Order = None,
    itl_slo: opt.ItlSlo = None,
    evict: opt.Evict = None,
    tier: opt.Tier = None,
    tier_key: opt.TierKey = None,
    tier_write: opt.TierWrite = None,
    tier_load: opt.TierLoad = None,
    tier_min_tokens: opt.TierMinTokens = None,
    tier_check: opt.TierCheck = None,
    tier_second_use: opt.TierSecondUse = None,
    config: opt.Config = None,
) -> None:
    """Serve a model to OpenAI and Anthropic clients. Ctrl-C or SIGTERM lets running answers end first."""
    from kvist.cli.serve.run import serve

    raise typer.Exit(serve(ctx.params))

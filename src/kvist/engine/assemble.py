"""Cache + scheduler + engine from a layout, an executor, a clock and a config: the one way both halves are joined."""

from __future__ import annotations

from kvist.cache.bulk import PLAIN, Bulk
from kvist.cache.cache import Cache, WriteRule
from kvist.cache.evict.registry import load as load_evict
from kvist.config import EngineConfig
from kvist.engine.engine import Engine
from kvist.engine.ports import Clock, Executor
from kvist.errors import BadValue
from kvist.sched.carry import Tiers
from kvist.sched.order.registry import load
from kvist.sched.scheduler import Scheduler
from kvist.spec.layout import CacheLayout


def assemble(
    layout: CacheLayout,
    executor: Executor,
    clock: Clock,
    config: EngineConfig,
    *,
    context_tokens: int,
    fingerprint: bytes = b"",
    bulk: Bulk | None = None,
    tiers: tuple[str, ...] = (),
) -> Engine:
    """An engine over ``config.cache.pool_blocks(layout.block_bytes)`` blocks; the executor's store has as many.

    ``context_tokens`` is the model's; the config may ask for less, not for more (``BadValue``). ``fingerprint`` roots
    the cache's keys in everything that decides what a block's bytes mean. ``bulk`` is how the cache works on many
    blocks at once (None: plainly). ``tiers`` names those that the executor's mover has, fastest first.
    """
    sched = config.sched
    context = context_tokens if sched.context_tokens is None else sched.context_tokens
    if context > context_tokens:
        raise BadValue("context_tokens", context, f"at most the model's own {context_tokens}")
    cache = Cache(
        layout,
        blocks=config.cache.pool_blocks(layout.block_bytes),
        fingerprint=fingerprint,
        policy=load_evict(config.cache.evict),
        reuse=config.cache.reuse,
        weights=dict(sched.weights),
        bulk=bulk or PLAIN,
        write=WriteRule(config.tiers.when, config.tiers.min_tokens, config.tiers.second_use) if tiers else None,
    )
    scheduler = Scheduler(
        cache,
        layout,
        token_budget=sched.token_budget,
        max_sequences=sched.max_sequences,
        context_tokens=context,
        policy=load(sched.order),
        chunk_tokens=sched.chunk_tokens,
        itl_slo=sched.itl_slo,
        weights=dict(sched.weights),
        tiers=Tiers(tiers, config.tiers.load, config.tiers.min_tokens, config.tiers.check) if tiers else None,
    )
    return Engine(scheduler, executor, clock)

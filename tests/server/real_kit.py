"""The packaged model behind a server, in any configuration, over one set of weights per test process."""

import time
from functools import cache

from kvist.config import CacheConfig, EngineConfig, SchedConfig
from kvist.server.served import Served
from real_model import packaged


@cache
def parts():
    from kvist.model.weights import load_weights
    from kvist.runtime.build import read_text_side
    from kvist.spec.read import read_spec

    path = packaged()
    spec = read_spec(path)
    tokenizer, template = read_text_side(path)
    return path, spec, load_weights(path, spec), tokenizer, template


def real_served(
    *, blocks=1000, block_tokens=16, kv="f32", reuse=True, numerics="invariant", poison=True, grammars=None, **sched
) -> Served:
    from kvist.runtime.build import BuildOptions, build_engine
    from kvist.runtime.store import Store
    from kvist.spec.format import KVFormat
    from kvist.spec.layout import plan_layout

    path, spec, weights, tokenizer, template = parts()
    layout = plan_layout(spec, KVFormat.parse(kv), block_tokens=block_tokens)
    config = EngineConfig(
        CacheConfig(blocks=blocks, block_tokens=block_tokens, format=kv, reuse=reuse), SchedConfig(**sched)
    )
    options = BuildOptions(numerics=numerics, poison=poison, engine=config)
    engine, _ = build_engine(spec, weights, Store(layout, blocks=blocks, poison=poison), options, grammars=grammars)
    return Served(engine, tokenizer, template, spec, layout, str(path), int(time.time()), grammars, config=config)

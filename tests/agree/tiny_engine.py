"""The whole engine over tiny random models, and the reference run: one request at a time, everything off."""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from tiny_models import tiny

from kvist.config import CacheConfig, EngineConfig, SchedConfig, TierConfig
from kvist.model.weights import load_weights
from kvist.runtime.build import BuildOptions, Carrier, WallClock, build_engine
from kvist.runtime.mover.checking import Checking
from kvist.runtime.mover.mover import Mover
from kvist.runtime.store import Store
from kvist.sched.request import Request
from kvist.spec.format import KVFormat
from kvist.spec.layout import plan_layout
from kvist.spec.read import read_spec
from kvist.spec.sampling import Sampling

B = 16
VOCAB = 131
GREEDY = Sampling(temperature=0.0)
ROOT = Path(mkdtemp(prefix="kvist-tiny-"))
ORIGIN = b"tiny models here"


@dataclass(frozen=True)
class Options:
    blocks: int = 200
    budget: int = 64
    chunk: int | None = None
    sequences: int = 16
    reuse: bool = True
    format: str = "f32"
    attention: str = "best"
    block_tokens: int = B
    numerics: str = "invariant"
    order: str = "fcfs"
    itl_slo: str = "off"
    weights: tuple = ()
    tiers: tuple = ()
    tier_write: str = "through"
    tier_load: str = "always"
    tier_check: float = 0.0


@cache
def parts(family: str):
    folder = tiny(family, ROOT).folder
    spec = read_spec(folder)
    return spec, load_weights(folder, spec)


def engine(family: str, options: Options = Options(), **changes):  # noqa: B008
    o = replace(options, **changes)
    spec, weights = parts(family)
    layout = plan_layout(spec, KVFormat.parse(o.format), block_tokens=o.block_tokens)
    config = EngineConfig(
        CacheConfig(blocks=o.blocks, block_tokens=o.block_tokens, format=o.format, reuse=o.reuse),
        SchedConfig(
            token_budget=o.budget,
            chunk_tokens=o.chunk,
            max_sequences=o.sequences,
            order=o.order,
            itl_slo=o.itl_slo,
            weights=o.weights,
        ),
        TierConfig(load=o.tier_load, when=o.tier_write, min_tokens=1, check=o.tier_check),
    )
    how = BuildOptions(attention=o.attention, ops="reference" if o.attention == "reference" else "best",
                       numerics=o.numerics, poison=True, engine=config)  # fmt: skip
    store = Store(layout, blocks=o.blocks, poison=True)
    carrier = None
    if o.tiers:
        checking = Checking(1.0 if o.tier_check else 0.0, layout.format, exact=o.numerics == "invariant")
        mover = Mover(o.tiers, store, origin=ORIGIN, clock=WallClock(), checking=checking)
        carrier = Carrier(o.tiers, mover, ORIGIN)
    return build_engine(spec, weights, store, how, fingerprint=ORIGIN if carrier else b"", carrier=carrier)[0]


def flush(eng):
    """Everything that was sent is in the tiers, and the mover is gone."""
    mover = eng.executor._mover
    assert mover.flush(30)
    mover.close()


def ask(name, prompt, n_out=12, **more) -> Request:
    more.setdefault("sampling", GREEDY)
    return Request(name, tuple(prompt), n_out, **more)


@dataclass(frozen=True)
class Out:
    tokens: tuple[int, ...]
    cached_tokens: int
    preemptions: int
    finish_reason: str
    logprobs: tuple = ()
    prompt_logprobs: tuple | None = None


def run(eng, requests, *, one_by_one=False):
    """Answers by (request, sample), with the books checked after every step."""
    tokens, ends, scores, prompts = {}, {}, {}, {}
    for batch in [[r] for r in requests] if one_by_one else [requests]:
        for r in batch:
            eng.add(r)
        while not eng.idle:
            for e in eng.step():
                key = (e.request, e.sample)
                if e.token is not None:
                    tokens.setdefault(key, []).append(e.token)
                    scores.setdefault(key, []).append(e.logprob)
                if e.prompt_logprobs is not None:
                    prompts[key] = e.prompt_logprobs
                if e.finish_reason:
                    ends[key] = e
            eng.scheduler.cache.check()
    assert eng.scheduler.cache.live_blocks == 0
    return {
        k: Out(tuple(tokens.get(k, ())), e.usage.cached_tokens, e.usage.preemptions, e.finish_reason,
               tuple(scores.get(k, ())), prompts.get(k))
        for k, e in ends.items()
    }  # fmt: skip


def alone(family, request, **changes):
    """REF: nothing else runs, nothing is reused, one chunk, the reference kernels."""
    o = Options(reuse=False, budget=512, attention="reference", **changes)
    return run(engine(family, o), [replace(request, reuse=False)])


def words(n, seed=0):
    import random

    r = random.Random(seed)
    return tuple(r.randrange(3, VOCAB) for _ in range(n))

"""Servers with something behind the pool: on paper, and the packaged model over a disk tier."""

import time
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx
from served_kit import Script, Steady, _answering, parts, running

from kvist.config import CacheConfig, EngineConfig, SchedConfig, TierConfig
from kvist.cost.table import CostTable
from kvist.engine.assemble import assemble
from kvist.server.served import Places, Served
from kvist.sim.draws import PaperModel
from kvist.sim.executor import PaperExecutor
from kvist.sim.tiers import PaperTier
from kvist.spec.format import KVFormat
from kvist.spec.layout import plan_layout
from kvist.tier.base import Usage
from real_model import packaged


@dataclass
class Ended:
    """What was asked of the tiers at the end."""

    closes: list[float] = field(default_factory=list)
    takes_s: float = 0.0
    written: bool = True

    def close(self, timeout_s):
        self.closes.append(timeout_s)
        time.sleep(min(self.takes_s, timeout_s))
        return self.written


def tiered(
    answer=None, *, tiers=None, ended=None, blocks=400, block_tokens=16, step_s=0.0, token_s=0.0, load="always",
    when="through", min_tokens=32, usages=None, **sched,
) -> Served:  # fmt: skip
    """A checked paper model with ``tiers`` behind it: a wrong block is a fault, never a wrong answer."""
    path, spec, tokenizer, template = parts()
    tiers = (PaperTier("disk"),) if tiers is None else tiers
    layout = plan_layout(spec, KVFormat.parse("f16"), block_tokens=block_tokens)
    config = EngineConfig(
        CacheConfig(blocks=blocks, block_tokens=block_tokens),
        SchedConfig(**sched),
        TierConfig(tuple(t.name for t in tiers), when=when, load=load, min_tokens=min_tokens),
    )
    clock, model = Steady(), PaperModel(vocab=tokenizer.vocab_size)
    if answer is not None:
        model = Script(_answering(answer, tokenizer), tokenizer.eos_ids[0])
    executor = PaperExecutor(
        layout, blocks=blocks, clock=clock, cost=CostTable.linear(step_s, token_s), model=model, check=True, tiers=tiers
    )
    names = tuple(t.name for t in tiers)
    engine = assemble(layout, executor, clock, config, context_tokens=spec.context_tokens, tiers=names)
    ended = ended or Ended()

    def close(timeout_s):
        executor.mover.wait(1.0)
        executor.mover.answers()
        return ended.close(timeout_s)

    places = Places(
        names=names,
        texts=tuple(f"{n}:paper" for n in names),
        usages=usages or (lambda: [Usage(len(t.records), len(t.records) * layout.block_bytes, None) for t in tiers]),
        flush=lambda timeout_s: True,
        close=close,
    )
    return Served(engine, tokenizer, template, spec, layout, str(path), 1_700_000_000, config=config, places=places)


def real_tiered(folder, **options) -> Served:
    """The packaged model over a disk tier in ``folder``, as ``kvist serve`` loads it."""
    return real_models(folder, **options).first(lambda done: None)


def real_models(folder, *, blocks=400, block_tokens=16, load="always", key=None):
    """What loads it, and loads another one in its place."""
    from kvist.cli.options import Settings
    from kvist.cli.serve.real import Models

    engine = EngineConfig(
        CacheConfig(blocks=blocks, block_tokens=block_tokens),
        SchedConfig(),
        TierConfig((f"disk:{folder}?size=1GiB&reserve=0",), key=key, load=load, min_tokens=block_tokens),
    )
    return Models(Settings(str(packaged()), engine=engine), None)


@contextmanager
def serving(what, **changes):
    with running(what, drain_s=3.0, **changes) as server:
        yield Client(server)


class Client:
    """A server, and short ways to ask it."""

    def __init__(self, server):
        self.server = server
        self.http = httpx.Client(base_url=server.url, timeout=60)

    @property
    def engine(self):
        return self.server.service.served.engine

    def post(self, path, body=None, key=None, **options):
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return self.http.post(path, json=body, headers=headers, **options)

    def get(self, path, key=None):
        return self.http.get(path, headers={"Authorization": f"Bearer {key}"} if key else {})

    def complete(self, prompt, n=4, key=None, **more):
        body = {"prompt": prompt, "max_tokens": n, "ignore_eos": True, "temperature": 0, **more}
        answer = self.post("/v1/completions", body, key)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def cached(self, prompt, **more):
        """Of a prompt, by where it lay."""
        return self.complete(prompt, **more)["usage"]["prompt_tokens_details"]["cached_tokens_by_tier"]

    def settled(self, seconds=5.0):
        """Wait until the engine has nothing to do."""
        until = time.time() + seconds
        while not (self.server.service.open == 0 and self.engine.idle):
            assert time.time() < until, "the engine does not come to rest"
            time.sleep(0.01)

    def forget_pool(self):
        """Empty the pool alone, once the tiers have what they are to keep."""
        self.settled()
        assert self.server.service.served.places.flush(10)
        time.sleep(0.05)
        self.server.service._engine_loop.call(lambda engine: engine.scheduler.cache.reset()).result(10)

"""kvist, as ``kvist generate`` builds it.

Options: ``weights`` (a dtype of ``BuildOptions``), ``kv`` (a KV format), ``numerics`` (fast, invariant), ``tier`` (a
place that keeps KV). Also measures
what the machine can do at best (``yardsticks``), with the kernels' own read and multiply loops.
"""

import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.peers.prompts import burst, ids
from benchmarks.peers.protocol import serve
from kvist.config import CacheConfig, EngineConfig, TierConfig
from kvist.ids import RequestId
from kvist.lab.yardsticks import isa, multiply_rate, read_bandwidth
from kvist.runtime.build import BuildOptions, build
from kvist.sched.request import Request
from kvist.spec.sampling import Sampling

POOL_TOKENS = 48_000
CHUNK = 512


class Kvist:
    def __init__(self, options):
        cache = CacheConfig(blocks=POOL_TOKENS // 32, format=options["kv"])
        how = BuildOptions(
            dtype=options["weights"],
            numerics=options["numerics"],
            threads=options["threads"],
            engine=EngineConfig(cache, tiers=TierConfig(places=tuple(filter(None, [options.get("tier")])))),
        )
        self.built = build(Path(options["model"]), how)
        self.engine = self.built.engine
        self._asked = 0
        self._filled = None
        spec = self.built.spec
        self.about = {
            "engine": "kvist",
            "version": _version(),
            "weights": options["weights"],
            "kv": options["kv"],
            "numerics": options["numerics"],
            "isa": isa(),
            "shape": {
                "weights_bytes": self.built.weights_bytes,
                "kv_bytes_per_token": spec.kv_bytes_per_token(self.built.layout.format),
                **_work(spec),
            },
        }

    def yardsticks(self):
        """What the machine can do, now: bytes and 32-bit FLOPs a second."""
        return {"read_bytes_per_s": read_bandwidth(0.3), "f32_flops_per_s": multiply_rate(0.15)}

    def decode(self, context, tokens, seed):
        if self._filled != (context, seed):
            self._run([self._request(ids(context, seed), 1)])
            self._filled = (context, seed)
        times = self._run([self._request(ids(context, seed), tokens + 1)])
        return times[-1] - times[0]

    def prefill(self, tokens, seed):
        request = self._request(ids(tokens, seed), 1, reuse=False)
        start = time.perf_counter()
        return self._run([request])[0] - start

    def keep(self, tokens, seed, path):
        """The tier (the option) keeps it; ``path`` is for engines that write a file of their own."""
        request = self._request(ids(tokens, seed), 1)
        start = time.perf_counter()
        seconds = self._run([request])[0] - start
        if not self.built.carrier.mover.flush(120.0):
            raise RuntimeError("the tier did not take everything in two minutes")
        return seconds

    def resume(self, tokens, seed, path):
        before = self.engine.scheduler.counters.loaded_tokens
        request = self._request(ids(tokens, seed), 1)
        start = time.perf_counter()
        seconds = self._run([request])[0] - start
        return {"seconds": seconds, "tokens": self.engine.scheduler.counters.loaded_tokens - before}

    def fresh(self, tokens, n, new, seed):
        requests = [self._request(ids(tokens, f"{seed} {i}"), new) for i in range(n)]
        start = time.perf_counter()
        for request in requests:
            self._run([request])
        return time.perf_counter() - start

    def beside(self, tokens, context, new, seed):
        self._run([self._request(ids(context, "beside"), 1)])
        if self.built.carrier is not None:
            self.built.carrier.mover.flush(120.0)
        self._run([self._request(ids(tokens, seed), 1)])
        going = self._on_their_way()
        times = self._run([self._request(ids(context, "beside"), new + 1)])
        return {"seconds": times[-1] - times[0], "going_bytes": going, "left_bytes": self._on_their_way()}

    def _on_their_way(self):
        counters = {} if self.built.carrier is None else self.built.carrier.mover.counters
        return sum(v for name, v in counters.items() if name.endswith("queued_write_bytes"))

    def batch(self, shared, own, n, new, warm, seed):
        prompts = burst(shared, own, n, seed)
        if warm and shared:
            self._run([self._request(prompts[0][:shared], 1)])
        requests = [self._request(p, new) for p in prompts]
        start = time.perf_counter()
        times = self._run(requests)
        assert len(times) == n * new, f"{len(times)} tokens came, not {n * new}"
        return times[-1] - start

    def logits(self, ids, last, path):
        """Teacher-forced, by chunks, beside the engine: the decoder over blocks of its own."""
        from kvist.model.single import SingleOptions, SingleSequence

        decoder = self.built.executor._decoder
        options = SingleOptions(self.about["kv"], capacity_tokens=len(ids) + 32, numerics=self.about["numerics"])
        sequence = SingleSequence(self.built.spec, decoder._weights, options)
        out = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(last, self.built.spec.vocab))
        first = len(ids) - last
        cuts = sorted({*range(0, first, CHUNK), *range(first, len(ids), CHUNK), len(ids)})
        with torch.inference_mode():
            for start, end in zip(cuts, cuts[1:], strict=False):
                asked = "all" if start >= first else "none"
                got = sequence.feed(ids[start:end], start, logits=asked)
                if asked == "all":
                    out[start - first : end - first] = got.numpy()
        out.flush()
        return {"rows": last}

    def _request(self, tokens, n, *, reuse=True):
        self._asked += 1
        name = RequestId(f"peers-{self._asked}")
        greedy = Sampling(temperature=0.0)
        return Request(name, tuple(tokens), n, sampling=greedy, ignore_eos=True, reuse=reuse)

    def _run(self, requests):
        """When each token came, in order."""
        for request in requests:
            self.engine.add(request)
        times = []
        while not self.engine.idle:
            for event in self.engine.step():
                if event.error:
                    raise RuntimeError(event.error)
                if event.token is not None:
                    times.append(time.perf_counter())
        return times


def _version():
    from importlib.metadata import version

    return version("kvist")


def _work(spec):
    """FLOPs of the model's parts, from the project's own arithmetic."""
    from kvist.cost.work import Chunk, ModelWork
    from kvist.spec.format import KVFormat

    work = ModelWork(spec, KVFormat.parse("f16"))
    one, two = work.step([Chunk(1, 1000)]), work.step([Chunk(1, 2000)])
    return {
        "linear_flops_per_token": one.linear_flops,
        "head_flops_per_row": one.head_flops,
        "attention_flops_per_pair": (two.attention_flops - one.attention_flops) / 1000,
    }


if __name__ == "__main__":
    serve(Kvist)

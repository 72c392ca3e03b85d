"""The two sides of the comparison, each with the same three verbs: fill a context, decode after it, prefill cold."""

import random
import time
import warnings
from dataclasses import replace

import torch

from kvist.config import CacheConfig, EngineConfig
from kvist.ids import RequestId
from kvist.runtime.build import BuildOptions
from kvist.runtime.llm import load
from kvist.runtime.packaged import packaged_model
from kvist.sched.request import Request
from kvist.spec.sampling import Sampling

VOCAB = 49152


def random_ids(n: int, seed: int) -> tuple[int, ...]:
    r = random.Random(seed)
    return tuple(r.randrange(100, VOCAB - 100) for _ in range(n))


class Kvist:
    """kvist as ``kvist generate --dtype f32`` builds it, with the given KV format: both sides have f32 weights."""

    def __init__(self, kv_format: str = "f16", threads: int = 2) -> None:
        engine = EngineConfig(CacheConfig(memory_bytes=1 << 30, format=kv_format))
        self.llm = load(None, BuildOptions(dtype="f32", engine=engine, threads=threads))
        self.name = f"kvist f32 weights, {kv_format} KV"
        self._asked = 0

    def _request(self, ids, n, *, reuse=True):
        self._asked += 1
        return Request(
            RequestId(f"bench-{self._asked}"),
            tuple(ids),
            n,
            sampling=Sampling(temperature=0.0),
            ignore_eos=True,
            reuse=reuse,
        )

    def fill(self, context: int) -> None:
        """Compute a context once: later decodes hit it."""
        list(self._run(self._request(random_ids(context, context), 1)))

    def decode(self, context: int, n: int) -> float:
        """Seconds per token after the first, for ``n`` tokens at ``context``."""
        times = list(self._run(self._request(random_ids(context, context), n + 1)))
        return (times[-1] - times[0]) / n

    def prefill(self, n: int) -> float:
        """Seconds to the first token of a cold prompt."""
        start = time.perf_counter()
        return next(iter(list(self._run(self._request(random_ids(n, n), 1, reuse=False))))) - start

    def _run(self, request):
        self.llm.engine.add(request)
        while not self.llm.engine.idle:
            for event in self.llm.engine.step():
                if event.token is not None:
                    yield time.perf_counter()

    def overhead(self, batch: int, n: int) -> dict:
        """Milliseconds per step outside the decoder's forward pass, text included, and inside it."""
        prompts = [random_ids(128, 1000 + i) for i in range(batch)]
        self.llm.generate_all(prompts, max_tokens=2, ignore_eos=True)
        before = replace(self.llm.built.executor.spent)
        steps = self.llm.engine.scheduler.counters.steps
        start = time.perf_counter()
        self.llm.generate_all(prompts, max_tokens=n, ignore_eos=True)
        wall = time.perf_counter() - start
        steps = self.llm.engine.scheduler.counters.steps - steps
        forward = self.llm.built.executor.spent.forward_s - before.forward_s
        return {"overhead_ms": (wall - forward) / steps * 1e3, "forward_ms": forward / steps * 1e3, "steps": steps}


class Transformers:
    """transformers in fp32 with sdpa attention on the same file, the prompt in chunks of 512."""

    name = "transformers f32 weights, f32 KV"

    def __init__(self) -> None:
        import transformers
        from transformers import AutoModelForCausalLM

        transformers.utils.logging.disable_progress_bar()
        transformers.logging.set_verbosity_error()
        warnings.simplefilter("ignore", FutureWarning)
        path = packaged_model()
        self.model = AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="sdpa"
        ).eval()
        self._caches: dict = {}

    @torch.inference_mode()
    def _prefill(self, ids):
        from transformers import DynamicCache

        cache = DynamicCache()
        tokens = torch.tensor([ids])
        for i in range(0, len(ids), 512):
            out = self.model(tokens[:, i : i + 512], past_key_values=cache, use_cache=True, logits_to_keep=1)
        return out.logits[:, -1:].argmax(-1), cache

    def fill(self, context: int) -> None:
        self._caches = {context: self._prefill(random_ids(context, context))}

    @torch.inference_mode()
    def decode(self, context: int, n: int) -> float:
        token, cache = self._caches[context]
        start = time.perf_counter()
        for _ in range(n):
            token = self.model(token, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)
        seconds = (time.perf_counter() - start) / n
        cache.crop(-n)
        return seconds

    def prefill(self, n: int) -> float:
        start = time.perf_counter()
        self._prefill(random_ids(n, n))
        return time.perf_counter() - start

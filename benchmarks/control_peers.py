"""The control planes of vLLM and SGLang on the work of ``control_plane.py``. Runs in their own pythons, without kvist.

    PYTHON -P benchmarks/control_peers.py vllm|sglang [BLOCK]

Reads ``miss`` or ``hit`` a line, does that round, and answers with a line of JSON: seconds a request by part, medians.
"""

import gc
import importlib.abc
import importlib.machinery
import json
import random
import statistics
import sys
import time
from array import array
from unittest.mock import MagicMock

N, SHARED, REQUESTS, OLD, STEPS = 4096, 4000, 50, 200, 64
now = time.perf_counter


def tokens(n, seed):
    """n token ids, the same for the same seed, in every process."""
    return random.Random(seed).choices(range(100, 49_000), k=n)


def prompts(kind):
    """``hit``: the first SHARED tokens are those of an old prompt."""
    shared = tokens(SHARED, 1)
    if kind == "hit":
        return [shared + tokens(N - SHARED, 1000 + i) for i in range(REQUESTS)]
    return [tokens(N, 5000 + i) for i in range(REQUESTS)]


def old_prompts():
    """What is cached before: the last one has what the hits share."""
    return [tokens(N, 10**6 + i) for i in range(OLD)] + [tokens(SHARED, 1) + tokens(N - SHARED, 2)]


class Parts:
    """Seconds by part, a list over requests."""

    def __init__(self):
        self.rows = {}

    def add(self, **seconds):
        for name, value in seconds.items():
            self.rows.setdefault(name, []).append(value)

    def medians(self, besides=("decode step",)):
        whole = [sum(r) for r in zip(*(v for k, v in self.rows.items() if k not in besides), strict=True)]
        return {k: statistics.median(v) for k, v in self.rows.items()} | {"all": statistics.median(whole)}


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands for a package that a peer imports but whose control plane never calls."""

    def __init__(self, *names):
        self.names = names

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.names:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return MagicMock(name=spec.name, __path__=[], __spec__=spec, __name__=spec.name, __version__="0.28.0")

    def exec_module(self, module):
        pass


class Vllm:
    """KVCacheManager with prefix caching, sha256, a pool that the old prompts fill."""

    def __init__(self, block):
        import torch
        import vllm
        from vllm.sampling_params import SamplingParams
        from vllm.utils.hashing import get_hash_fn_by_name
        from vllm.v1.core.kv_cache_manager import KVCacheManager
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.request import Request

        self.version = f"vllm {vllm.__version__}"
        fn = get_hash_fn_by_name("sha256")
        init_none_hash(fn)
        hasher, params = get_request_block_hasher(block, fn), SamplingParams(max_tokens=STEPS)
        spec = FullAttentionSpec(block_size=block, num_kv_heads=3, head_size=64, dtype=torch.float16)
        ids = iter(range(10**9))
        self.request = lambda t: Request(str(next(ids)), t, params, None, block_hasher=hasher)
        group = KVCacheGroupSpec(["l"], spec)
        self.manager = lambda: KVCacheManager(
            KVCacheConfig(num_blocks=OLD * N // block, kv_cache_tensors=[], kv_cache_groups=[group]),
            max_model_len=8192,
            scheduler_block_size=block,
            hash_block_size=block,
        )

    def round(self, kind):
        m = self.manager()
        for p in old_prompts():
            r = self.request(p)
            m.allocate_slots(r, N, 0, m.get_computed_blocks(r)[0])
            r.num_computed_tokens = N
            m.free(r)
        parts = Parts()
        for p in prompts(kind):
            t0 = now()
            r = self.request(p)
            t1 = now()
            blocks, n, _ = m.get_computed_blocks(r)
            t2 = now()
            assert m.allocate_slots(r, N - n, n, blocks) is not None
            t3 = now()
            r.num_computed_tokens = N
            for _ in range(STEPS):
                r.append_output_token_ids(7)
                m.allocate_slots(r, 1)
                r.num_computed_tokens += 1
            t4 = now()
            m.free(r)
            t5 = now()
            assert (n >= SHARED - 64) == (kind == "hit"), n
            parts.add(key=t1 - t0, match=t2 - t1, take=t3 - t2, give_back=t5 - t4, **{"decode step": (t4 - t3) / STEPS})
        return parts.medians()


class Sglang:
    """RadixCache with 200 old entries. It hands out no blocks: its allocator is a stand-in that does nothing."""

    def __init__(self, block):
        sys.meta_path.insert(0, Absent("torchvision"))
        import sglang
        import torch
        from sglang.srt.mem_cache import base_prefix_cache as base
        from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey

        class NoAllocator:
            device = "cpu"

            def free_segment(self, x, start_pos=0):
                pass

            def free(self, x):
                pass

        self.version = f"sglang {sglang.__version__}"
        self.base, self.values = base, torch.arange(N)
        self.cache = lambda: RadixCache.create_simulated(mock_allocator=NoAllocator(), page_size=block)
        self.key = lambda t: RadixKey(token_ids=array("q", t), extra_key=None)

    def round(self, kind):
        c, b = self.cache(), self.base
        for p in old_prompts():
            c.insert(b.InsertParams(key=self.key(p), value=self.values))
        parts = Parts()
        for p in prompts(kind):
            t0 = now()
            k = self.key(p)
            t1 = now()
            m = c.match_prefix(b.MatchPrefixParams(key=k))
            t2 = now()
            c.inc_lock_ref(m.last_device_node)
            t3 = now()
            c.insert(b.InsertParams(key=k, value=self.values))
            t4 = now()
            c.dec_lock_ref(m.last_device_node)
            t5 = now()
            c.evict(b.EvictParams(num_tokens=N - m.device_prefix_len))
            t6 = now()
            assert (m.device_prefix_len >= SHARED - 64) == (kind == "hit")
            parts.add(key=t1 - t0, match=t2 - t1, take=t6 - t5 + t3 - t2, publish=t4 - t3, give_back=t5 - t4)
        return parts.medians()


def main():
    side = {"vllm": Vllm, "sglang": Sglang}[sys.argv[1]](int(sys.argv[2]) if len(sys.argv) > 2 else 16)
    print(json.dumps({"version": side.version}), flush=True)
    for line in sys.stdin:
        gc.collect()
        print(json.dumps(side.round(line.strip())), flush=True)


if __name__ == "__main__":
    main()

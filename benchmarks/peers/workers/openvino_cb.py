"""OpenVINO GenAI's ContinuousBatchingPipeline, which reads the GGUF file itself.

Options: ``kv`` (f16, u8; what ``KV_CACHE_PRECISION`` takes). Prefix caching is on, as a user would have it; prompts
that must be new are.
"""

import time

import numpy as np
import openvino
import openvino_genai as genai

from benchmarks.peers.prompts import burst, ids
from benchmarks.peers.protocol import serve

CACHE_GIB = 2


class OpenVino:
    def __init__(self, options):
        how = genai.SchedulerConfig()
        how.cache_size = CACHE_GIB
        how.enable_prefix_caching = True
        how.max_num_batched_tokens = 512
        how.max_num_seqs = 16
        how.dynamic_split_fuse = True
        device = {"INFERENCE_NUM_THREADS": options["threads"], "KV_CACHE_PRECISION": options["kv"]}
        self.pipe = genai.ContinuousBatchingPipeline(options["model"], how, "CPU", device)
        self.asked = 0
        self.filled = None
        self.about = {
            "engine": "OpenVINO GenAI",
            "version": genai.__version__.partition("-")[0],
            "weights": "the file's, as it keeps them",
            "kv": options["kv"],
            "numerics": "its own",
        }

    def _run(self, prompts, new):
        """Seconds to the end, and to each prompt's first token."""
        how = genai.GenerationConfig()
        how.max_new_tokens = how.min_new_tokens = new
        how.ignore_eos, how.do_sample = True, False
        tensors = [openvino.Tensor(np.array([p], dtype=np.int64)) for p in prompts]
        start = time.perf_counter()
        handles = []
        for tensor in tensors:
            handles.append(self.pipe.add_request(self.asked, tensor, how))
            self.asked += 1
        first, counts = [None] * len(handles), [0] * len(handles)
        while self.pipe.has_non_finished_requests():
            self.pipe.step()
            now = time.perf_counter() - start
            for i, handle in enumerate(handles):
                while handle.can_read():
                    counts[i] += sum(len(out.generated_ids) for out in handle.read().values())
                    first[i] = now if first[i] is None else first[i]
        seconds = time.perf_counter() - start
        if any(c != new for c in counts):
            raise RuntimeError(f"{sorted(set(counts))} tokens came, not {new}")
        return seconds, first

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
    serve(OpenVino)

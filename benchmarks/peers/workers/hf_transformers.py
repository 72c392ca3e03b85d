"""transformers in f32 with sdpa attention on the same file, prompts in chunks of 512, batches as one tensor.

It has no requests: a burst is as many equal rows, and a prefix that all begin with is computed once and repeated.
"""

import time
import warnings
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM, DynamicCache

from benchmarks.peers.prompts import burst, ids
from benchmarks.peers.protocol import serve

CHUNK = 512


class Transformers:
    def __init__(self, options):
        transformers.utils.logging.disable_progress_bar()
        transformers.logging.set_verbosity_error()
        warnings.simplefilter("ignore", FutureWarning)
        torch.set_num_threads(options["threads"])
        path = Path(options["model"])
        self.model = AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="sdpa"
        ).eval()
        self.filled = None
        self.about = {
            "engine": "transformers",
            "version": transformers.__version__,
            "weights": "f32",
            "kv": "f32",
            "numerics": "its own (torch)",
        }

    @torch.inference_mode()
    def _feed(self, rows, cache):
        """[batch, 1] of the tokens chosen after the last one of each row."""
        tokens = torch.tensor(rows)
        for i in range(0, tokens.shape[1], CHUNK):
            out = self.model(tokens[:, i : i + CHUNK], past_key_values=cache, use_cache=True, logits_to_keep=1)
        return out.logits[:, -1:].argmax(-1)

    @torch.inference_mode()
    def _continue(self, token, cache, n):
        for _ in range(n):
            token = self.model(token, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)

    def decode(self, context, tokens, seed):
        if self.filled is None or self.filled[0] != (context, seed):
            cache = DynamicCache()
            self.filled = ((context, seed), self._feed([ids(context, seed)], cache), cache)
        _, token, cache = self.filled
        start = time.perf_counter()
        self._continue(token, cache, tokens)
        seconds = time.perf_counter() - start
        cache.crop(-tokens)
        return seconds

    def prefill(self, tokens, seed):
        prompt = ids(tokens, seed)
        start = time.perf_counter()
        self._feed([prompt], DynamicCache())
        return time.perf_counter() - start

    def batch(self, shared, own, n, new, warm, seed):
        self.filled = None
        prompts = burst(shared, own, n, seed)
        cache = DynamicCache()
        if warm and shared:
            self._feed([prompts[0][:shared]], cache)
        start = time.perf_counter()
        if shared:
            if not warm:
                self._feed([prompts[0][:shared]], cache)
            cache.batch_repeat_interleave(n)
        token = self._feed([p[shared:] for p in prompts], cache)
        self._continue(token, cache, new - 1)
        return time.perf_counter() - start

    @torch.inference_mode()
    def logits(self, ids, last, path):
        cache, rows = DynamicCache(), []
        tokens, first = torch.tensor([ids]), len(ids) - last
        for i in range(0, len(ids), CHUNK):
            out = self.model(tokens[:, i : i + CHUNK], past_key_values=cache, use_cache=True).logits[0]
            rows.append(out[max(first - i, 0) :])
        np.save(path, torch.cat(rows).numpy())
        return {"rows": last}


if __name__ == "__main__":
    serve(Transformers)

"""llama.cpp through llama-cpp-python's C calls.

Options: ``kv`` (f16, q8_0), ``flash`` (flash attention), ``unified`` (one buffer for the cells of all sequences: a
shared prefix is held once, and every sequence looks at every cell). Prompts go in by 512. Sequences of a burst
are told that they begin alike, as llama-batched-bench's ``-pps`` does; llama-server would compute the prefix of each.
"""

import ctypes
import time

import llama_cpp as lc
import numpy as np

from benchmarks.peers.prompts import burst, ids
from benchmarks.peers.protocol import serve

CHUNK = 512
CONTEXT = 8192
TYPES = {"f16": lc.GGML_TYPE_F16, "q8_0": lc.GGML_TYPE_Q8_0}


@lc.llama_log_callback
def _silent(level, text, data):
    pass


class LlamaCpp:
    def __init__(self, options):
        lc.llama_log_set(_silent, ctypes.c_void_p(0))
        lc.llama_backend_init()
        self.options = options
        self.model = lc.llama_model_load_from_file(options["model"].encode(), lc.llama_model_default_params())
        if not self.model:
            raise OSError(f"llama.cpp cannot read {options['model']}")
        self.vocab = lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(self.model))
        self.rows = lc.llama_batch_init(CHUNK, 0, 1)
        self.context = None
        self._open(CONTEXT, 1)
        self.kept = None
        flash = "on" if options["flash"] else "off"
        layout = "" if options.get("unified") is None else f", kv_unified={bool(options['unified'])}"
        self.about = {
            "engine": "llama.cpp",
            "version": f"llama-cpp-python {lc.__version__}",
            "weights": "the file's (Q4_1, head Q8_0)",
            "kv": options["kv"],
            "numerics": f"its own (flash attention {flash}{layout})",
        }

    def _open(self, cells, sequences):
        """A context of ``cells`` in all. The one before goes."""
        if self.context:
            lc.llama_free(self.context)
        p = lc.llama_context_default_params()
        p.n_ctx, p.n_seq_max = cells, sequences
        p.n_batch = p.n_ubatch = CHUNK
        p.n_threads = p.n_threads_batch = self.options["threads"]
        p.type_k = p.type_v = TYPES[self.options["kv"]]
        p.flash_attn_type = int(self.options["flash"])
        p.kv_unified = bool(self.options.get("unified"))
        p.no_perf = True
        self.context = lc.llama_init_from_model(self.model, p)
        if not self.context:
            raise MemoryError(f"llama.cpp made no context of {cells} cells")
        self.memory = lc.llama_get_memory(self.context)
        self.kept, self.shape = None, (cells, sequences)

    def _ensure(self, cells, sequences):
        if self.shape != (cells, sequences):
            self._open(cells, sequences)

    def _decode(self, rows):
        """One call: (token, position, sequence, wants logits) each."""
        b = self.rows
        b.n_tokens = len(rows)
        for i, (token, at, sequence, wants) in enumerate(rows):
            b.token[i], b.pos[i], b.n_seq_id[i], b.logits[i] = token, at, 1, wants
            b.seq_id[i][0] = sequence
        code = lc.llama_decode(self.context, b)
        if code:
            raise RuntimeError(f"llama_decode: {code}")

    def _row(self, i):
        return np.ctypeslib.as_array(lc.llama_get_logits_ith(self.context, i), (self.vocab,))

    def _best(self, i):
        return int(self._row(i).argmax())

    def _feed(self, rows):
        """Rows by ``CHUNK``; the tokens chosen at those that want logits, in order."""
        chosen = []
        for start in range(0, len(rows), CHUNK):
            part = rows[start : start + CHUNK]
            self._decode(part)
            chosen += [self._best(i) for i, row in enumerate(part) if row[3]]
        return chosen

    def _prompt(self, tokens, sequence=0, start=0):
        last = len(tokens) - 1
        return [(t, start + i, sequence, i == last) for i, t in enumerate(tokens)]

    def decode(self, context, tokens, seed):
        self._ensure(CONTEXT, 1)
        if self.kept is None or self.kept[0] != (context, seed):
            lc.llama_memory_clear(self.memory, False)
            self.kept = ((context, seed), self._feed(self._prompt(ids(context, seed)))[0])
        token = self.kept[1]
        start = time.perf_counter()
        for i in range(tokens):
            self._decode([(token, context + i, 0, True)])
            token = self._best(0)
        seconds = time.perf_counter() - start
        lc.llama_memory_seq_rm(self.memory, 0, context, -1)
        return seconds

    def prefill(self, tokens, seed):
        self._ensure(CONTEXT, 1)
        self.kept = None
        prompt = ids(tokens, seed)
        lc.llama_memory_clear(self.memory, False)
        start = time.perf_counter()
        self._feed(self._prompt(prompt))
        return time.perf_counter() - start

    def keep(self, tokens, seed, path):
        seconds = self.prefill(tokens, seed)
        prompt = (lc.llama_token * tokens)(*ids(tokens, seed))
        if not lc.llama_state_seq_save_file(self.context, path.encode(), 0, prompt, tokens):
            raise OSError(f"llama.cpp could not save to {path}")
        return seconds

    def resume(self, tokens, seed, path):
        """As a server restores a slot: the file, then the last token again, for its logits."""
        self._ensure(CONTEXT, 1)
        lc.llama_memory_clear(self.memory, False)
        prompt, count = (lc.llama_token * CONTEXT)(), ctypes.c_size_t(0)
        start = time.perf_counter()
        read = lc.llama_state_seq_load_file(self.context, path.encode(), 0, prompt, CONTEXT, ctypes.byref(count))
        if not read or list(prompt[: count.value]) != ids(tokens, seed):
            raise OSError(f"llama.cpp could not load {path}")
        lc.llama_memory_seq_rm(self.memory, 0, tokens - 1, -1)
        self._feed([(prompt[tokens - 1], tokens - 1, 0, True)])
        return {"seconds": time.perf_counter() - start, "tokens": tokens - 1}

    def batch(self, shared, own, n, new, warm, seed):
        each = shared + own + new
        one_buffer = self.options.get("unified")
        self._ensure(256 + (shared + n * (own + new) if one_buffer else n * (-(-each // 256) * 256)), n)
        prompts = burst(shared, own, n, seed)
        if warm:
            self._lead(prompts[0][:shared])
        start = time.perf_counter()
        if not warm:
            self._lead(prompts[0][:shared])
        self._answer(prompts, shared, new)
        return time.perf_counter() - start

    def _lead(self, prefix):
        """What all begin with, into sequence 0."""
        lc.llama_memory_clear(self.memory, False)
        self._feed(self._prompt(prefix))

    def _answer(self, prompts, shared, new):
        for sequence in range(1, len(prompts) if shared else 0):
            lc.llama_memory_seq_cp(self.memory, 0, sequence, -1, -1)
        chosen = self._feed([r for s, p in enumerate(prompts) for r in self._prompt(p[shared:], s, shared)])
        for i in range(len(prompts[0]), len(prompts[0]) + new - 1):
            self._decode([(token, i, s, True) for s, token in enumerate(chosen)])
            chosen = [self._best(s) for s in range(len(prompts))]

    def logits(self, ids, last, path):
        self._ensure(CONTEXT, 1)
        self.kept = None
        lc.llama_memory_clear(self.memory, False)
        out = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(last, self.vocab))
        first = len(ids) - last
        done = 0
        for start in range(0, len(ids), CHUNK):
            part = [(t, start + i, 0, start + i >= first) for i, t in enumerate(ids[start : start + CHUNK])]
            self._decode(part)
            for i, row in enumerate(part):
                if row[3]:
                    out[done] = self._row(i)
                    done += 1
        out.flush()
        return {"rows": done}


if __name__ == "__main__":
    serve(LlamaCpp)

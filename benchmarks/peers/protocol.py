"""What a worker speaks: one JSON object a line, questions on stdin, answers on stdout. Standard library only.

A worker is one engine with one choice of weights and KV format, in a process (and a python) of its own:

    python -m benchmarks.peers.workers.NAME '{"model": "/path/model.gguf", "kv": "f16", "threads": 2}'

Its first line says what it is, ``{"ready": {"engine": ..., "weights": ..., "kv": ..., "numerics": ...}}``. Then one
answer for each question: the fields asked for, or ``{"error": "..."}``.

    {"op": "decode", "context": N, "tokens": n, "seed": s}    -> seconds of n greedy tokens behind N tokens of context
    {"op": "prefill", "tokens": N, "seed": s}                 -> seconds to the first token of a prompt never seen
    {"op": "batch", "shared": S, "own": O, "n": n, "new": k, "warm": b, "seed": s}
                                    -> seconds until n prompts of S + O tokens that arrive together have k new ones each
    {"op": "logits", "ids": [...], "last": n, "path": p}      -> rows; float32 logits of the last n positions in p.npy
    {"op": "keep", "tokens": N, "seed": s, "path": p}
                                    -> seconds to the first token of a prompt never seen, whose KV then lies in p
    {"op": "resume", "tokens": N, "seed": s, "path": p}
                                    -> seconds to the same token from what lies in p; tokens that were not computed
    {"op": "fresh", "tokens": N, "n": n, "new": k, "seed": s}
                                    -> seconds for n prompts never seen, one after another, each with k new tokens
    {"op": "beside", "tokens": N, "context": C, "new": k, "seed": s}
                                    -> seconds of k tokens behind C right after a prompt of N tokens was computed, while
                                       its KV goes to the tiers, if there are any; how many bytes were on their way

A context is computed once and kept, so that ``decode`` may be asked again for nothing; computing it is not timed, nor
is the shared prefix of a ``warm`` burst. Engine numbers that other threads would disturb are not the worker's worry:
whoever asks keeps all other workers stopped.
"""

import json
import os
import sys

OPS = ("decode", "prefill", "batch", "logits", "keep", "resume", "fresh", "beside", "yardsticks")


def serve(make):
    """Make the engine of the command line's options and answer until stdin ends."""
    answers = _only_answers_on_stdout()
    _die_with_parent()
    options = json.loads(sys.argv[1])
    try:
        engine = make(options)
        ready = {"ready": engine.about}
    except BaseException as error:
        _say(answers, {"error": _words(error)})
        raise
    _say(answers, ready)
    for line in sys.stdin:
        _say(answers, answer(engine, json.loads(line)))
    _leave(answers)


def answer(engine, question):
    """The answer to one question. What goes wrong is told, never raised."""
    op = question.pop("op", None)
    if op not in OPS or not hasattr(engine, op):
        return {"error": f"{engine.about['engine']} does not do {op!r}"}
    try:
        got = getattr(engine, op)(**question)
    except Exception as error:
        return {"error": _words(error)}
    return got if isinstance(got, dict) else {"seconds": got}


def _words(error):
    return f"{type(error).__name__}: {error}"[:500]


def _say(file, thing):
    file.write(json.dumps(thing) + "\n")
    file.flush()


def _only_answers_on_stdout():
    """A file for answers alone: what libraries print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def _die_with_parent():
    """A stopped process cannot notice that nobody is left to ask (Linux)."""
    import ctypes
    import signal

    set_death_signal = 1
    try:
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)
    except (AttributeError, OSError):
        pass


def _leave(answers):
    """Without the libraries' own farewells: some hang, some crash."""
    answers.close()
    sys.stderr.flush()
    os._exit(0)

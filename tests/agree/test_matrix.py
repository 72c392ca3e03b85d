"""Features meet in pairs: every mixture of them answers like the reference run, token for token.

The reference run is one request at a time on the reference kernels, in one chunk, nothing reused, pool ample, in the
same KV format; for int8t, whose native form multiplies integers, on the kernels that run here. Each feature
also has to have acted: hits, chunks and preemptions are counted.
"""

import itertools
from dataclasses import replace

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny_engine import B, alone, ask, engine, flush, run, words  # noqa: E402

from kvist.spec.sampling import Sampling  # noqa: E402
from kvist.tier.ram import RamTier  # noqa: E402

FAMILIES = ["llama", "qwen3", "gemma3", "mistral-window", "deepseek-v3"]
"""Full with GQA and outliers, QK norm, interleaved windows with MQA, windows only, latent."""

FORMATS = ["f32", "f16", "int8t"]
PREFIX = {"cold": False, "hit": True}
CHUNKS = {"whole": None, "chunks of 7": 7}
POOL = {"ample": None, "tight": True}
TIER = {"no tier": None, "tier": True}
POLICY = {"plain": {}, "served": {"order": "prefix", "itl_slo": "1.5x", "weights": (("x", 3.0),)}}
"""As the library runs, and as the server does: hits first, bounded steps, two tenants of different weight."""

PROMPT = words(3 * B + 5, seed=1)
REQUESTS = [
    ("a", PROMPT),
    ("b", PROMPT[: 2 * B] + words(9, seed=2)),
    ("c", words(4, seed=3)),
    ("d", PROMPT[: B + 3] + words(2 * B, seed=4)),
    ("e", words(2 * B, seed=5)),
    ("f", words(B - 1, seed=6)),
]
NEW = 60
TIGHT_BUDGET = 12


def requests(reuse, policy):
    owners = itertools.cycle(["x", "y"] if policy == "served" else [""])
    return [ask(name, prompt, NEW, reuse=reuse, tenant=next(owners)) for name, prompt in REQUESTS]


def _alone(family, request, fmt):
    if fmt != "int8t":
        return alone(family, request, format=fmt)
    return run(engine(family, format=fmt, reuse=False, budget=512), [replace(request, reuse=False)])


def reference(family, fmt, _known={}):  # noqa: B006
    if (family, fmt) not in _known:
        _known[family, fmt] = {name: _alone(family, ask(name, p, NEW), fmt)[name, 0].tokens for name, p in REQUESTS}
    return _known[family, fmt]


def filled(family, fmt, _known={}):  # noqa: B006
    """A tier in which another engine left what it computed for the first prompt, after a restart so to speak."""
    if (family, fmt) not in _known:
        tier = RamTier(64 << 20)
        other = engine(family, format=fmt, tiers=(tier,))
        run(other, [ask("warm", PROMPT, 2)])
        flush(other)
        assert tier.usage().records
        _known[family, fmt] = tier
    return (_known[family, fmt],)


def tight_blocks(family):
    """Room for the longest of them, taken in small steps, and one block more."""
    layout = engine(family).scheduler.layout
    return max(layout.peak_blocks_for(len(p) + NEW, TIGHT_BUDGET) for _, p in REQUESTS) + 1


def mixtures():
    """All of them without a tier; with one where it acts, and once where it must not."""
    for family, mixture in itertools.product(FAMILIES, itertools.product(FORMATS, PREFIX, CHUNKS, POOL, POLICY, TIER)):
        fmt, prefix, _, _, policy, tier = mixture
        if tier == "no tier" or (fmt != "f16" and (prefix, policy) == ("hit", "served")):
            yield family, *mixture
    yield FAMILIES[0], "f32", "cold", "whole", "ample", "plain", "tier"


@pytest.mark.parametrize("family,fmt,prefix,chunk,pool,policy,tier", mixtures(), ids=lambda x: str(x))
def test_every_mixture_answers_like_the_reference(family, fmt, prefix, chunk, pool, policy, tier):
    reuse = PREFIX[prefix]
    blocks = tight_blocks(family) if POOL[pool] else 200
    budget = TIGHT_BUDGET if POOL[pool] else 64
    eng = engine(family, format=fmt, reuse=reuse, chunk=CHUNKS[chunk], blocks=blocks, budget=budget,
                 tiers=filled(family, fmt) if TIER[tier] else (), **POLICY[policy])  # fmt: skip
    if reuse and not TIER[tier]:
        run(eng, [ask("warm", PROMPT, 2)])
    got = run(eng, requests(reuse, policy))
    assert {name: got[name, 0].tokens for name, _ in REQUESTS} == reference(family, fmt)
    if reuse and not POOL[pool]:
        whole = len(PROMPT) - 1
        assert got["a", 0].cached_tokens == (whole - whole % B if TIER[tier] else whole)
        assert got["b", 0].cached_tokens >= 2 * B
        assert got["d", 0].cached_tokens >= B
    if not reuse:
        assert all(o.cached_tokens == 0 for o in got.values())
    if TIER[tier]:
        counters = eng.scheduler.counters
        assert (counters.loaded_tokens > 0) == (counters.loads > 0) == reuse
        assert not counters.failed_loads
        flush(eng)
    if POOL[pool]:
        assert eng.scheduler.counters.preemptions > 0
    if CHUNKS[chunk]:
        assert eng.scheduler.counters.chunks > len(REQUESTS) * NEW


def test_references_differ_between_requests_and_formats_are_not_inert():
    for family in FAMILIES:
        assert len(set(reference(family, "f32").values())) == len(REQUESTS)


@pytest.mark.parametrize(
    "family,bound", [("qwen3", 0.1), ("gemma3", 0.1), ("deepseek-v3", 0.3), ("llama", 1.0), ("mistral-window", 1.5)]
)
def test_int8t_stays_near_floats(family, bound):
    """Log-probabilities of the first token. The last two models have outlier dims in K, which one scale a row pays for;
    the native form adds next to nothing to what the packing itself costs.
    """

    def top(name, prompt, fmt, attention="best"):
        request = ask(name, prompt, 1, sampling=Sampling(temperature=0.0, logprobs=5))
        eng = engine(family, format=fmt, attention=attention, reuse=False)
        return dict(run(eng, [request])[name, 0].logprobs[0].top)

    for name, prompt in REQUESTS[:3]:
        packed, exact = top(name, prompt, "int8t"), top(name, prompt, "f32")
        judge = top(name, prompt, "int8t", "reference")
        gaps = [abs(packed[t] - exact[t]) for t in packed if t in exact]
        assert len(gaps) >= 3
        assert 0 < max(gaps) < bound
        assert max(abs(packed[t] - judge[t]) for t in packed if t in judge) < 0.03

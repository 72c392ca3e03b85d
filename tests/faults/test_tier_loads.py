"""F050, F051, F056 on the whole engine: loads that fail, hits here and there, repeats across restarts. Void is NaN."""

import time

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("xxhash")

from tier_stubs import StubTier  # noqa: E402
from tiny_engine import B, ask, engine, flush, run, words  # noqa: E402

from kvist.cache.keys import pack_tokens  # noqa: E402
from kvist.runtime.mover import mover  # noqa: E402
from kvist.tier.disk.store import DiskTier  # noqa: E402
from kvist.units import MIB  # noqa: E402

N = 6
MODES = {"exception": "error", "short": "damaged", "timeout": "timeout", "damaged": "damaged", "evicted": "missing"}


def reference(family, requests, **how):
    """Nothing reused, one at a time, the reference kernels."""
    said = run(engine(family, reuse=False, attention="reference", budget=512, **how), requests, one_by_one=True)
    return {key: out.tokens for key, out in said.items()}


@pytest.fixture
def hasty(monkeypatch):
    """Tiers are given little time."""
    real = mover.Mover.__init__
    monkeypatch.setattr(mover.Mover, "__init__", lambda self, *a, **k: real(self, *a, **{"timeout_s": 0.25} | k))


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_f050_what_came_before_the_failure_is_kept_and_the_rest_computed(family, remote, mode, hasty):
    request = ask("a", words(N * B + 5), 6)
    want = reference(family, [request])["a", 0]
    source = StubTier("disk")
    first = engine(family, tiers=(source,))
    run(first, [request])
    flush(first)
    depths = sorted({label.depth for label, _ in source.records.values()})
    assert depths == list(range(N))
    for j in (0, N // 2, N - 1):
        tier = StubTier("disk", remote=remote)
        tier.records = dict(source.records)
        bad = [id for id, (label, _) in tier.records.items() if label.depth == j]
        tier.modes = dict.fromkeys(bad, mode)
        eng = engine(family, tiers=(tier,))
        eng.executor._mover._reading._records = 1
        began = time.monotonic()
        out = run(eng, [request])["a", 0]
        took_s = time.monotonic() - began
        flush(eng)
        counters, told = eng.executor.counters, eng.scheduler.counters
        assert out.tokens == want, (mode, j)
        assert took_s < 5 and out.cached_tokens == told.loaded_tokens <= j * B
        if family == "llama":
            assert told.loaded_tokens == j * B
        assert told.failed_loads == 1 and counters[f"tier_disk_miss_{MODES[mode]}"] >= 1, (mode, j)
        assert told.computed_tokens == len(request.prompt) - told.loaded_tokens + 5


@pytest.mark.parametrize("n", [4 * B - 1, 4 * B, 4 * B + 1, 4 * B + 9])
def test_f051_hits_here_and_there_never_overlap(n):
    """Every number of blocks that the tier has beside lengths that the pool has: their sum is n, one is computed."""
    prompt = words(n, seed=2)
    want = reference("llama", [ask("b", prompt, 2)])["b", 0]
    source = StubTier("disk")
    eng = engine("llama", tiers=(source,))
    run(eng, [ask("s", (*prompt, 9), 1)])
    flush(eng)
    for stored in range(n // B + 1):
        tier = StubTier("disk", takes_saves=False)
        tier.records = {id: r for id, r in source.records.items() if r[0].depth < stored}
        eng = engine("llama", tiers=(tier,))
        for local in sorted({0, 1, B - 1, B, B + 1, 2 * B, 3 * B - 1, n - 1, n} & set(range(n + 1))):
            eng.scheduler.cache.reset()
            if local:
                run(eng, [ask(f"l{local}", (*prompt[:local], 5), 1, reuse=True)])
            before = eng.scheduler.counters.computed_tokens
            loaded = eng.scheduler.counters.loaded_tokens
            out = run(eng, [ask(f"b{local}", prompt, 2)])[f"b{local}", 0]
            computed = eng.scheduler.counters.computed_tokens - before - 1
            assert out.tokens == want and computed >= 1 and out.cached_tokens + computed == n, (stored, local)
            assert eng.scheduler.counters.loaded_tokens - loaded <= out.cached_tokens
        eng.scheduler.cache.reset()
        assert run(eng, [ask("last", prompt, 2)])["last", 0].cached_tokens == min(stored * B, n - 1)
        flush(eng)


@pytest.mark.parametrize("family,kv", [("llama", "f32"), ("llama", "int8t"), ("gemma3", "f16")])
def test_f056_repeats_are_the_same_across_restarts_at_every_length(family, kv, tmp_path):
    """kB-1 to kB+2: sent, repeated, after a restart, repeated, and with the cache deleted."""
    requests = [ask(f"n{n}", words(n, seed=n), 4) for k in (1, 2, 4) for n in range(k * B - 1, k * B + 3)]
    want = reference(family, requests, format=kv)

    def life(place, times):
        tier = DiskTier.open(place, capacity_bytes=64 * MIB, reserve_bytes=0)
        eng = engine(family, tiers=(tier,), format=kv)
        said = []
        for _ in range(times):
            out = run(eng, requests, one_by_one=True)
            said.append({key: one.tokens for key, one in out.items()})
        flush(eng)
        tier.close()
        return said, eng.scheduler.counters.loaded_tokens

    first, loaded = life(tmp_path / "a", 2)
    assert loaded == 0
    second, loaded = life(tmp_path / "a", 2)
    assert loaded >= 20 * B
    third, _ = life(tmp_path / "b", 1)
    assert all(said == want for said in (*first, *second, *third))


@pytest.mark.parametrize("kv", ["f32", "f16", "int8t", "f16/int8t"])
@pytest.mark.parametrize("numerics", ["invariant", "fast"])
def test_f056_a_record_that_is_wrong_although_its_checksum_is_right_is_found(kv, numerics):
    """The tier has another prompt's bytes under this key: computing the end again finds it, and puts the right one."""
    tier = StubTier("disk")
    prompt = words(6 * B + 2)
    request = ask("a", prompt, 3)
    serve(tier, request, format=kv, numerics=numerics)
    serve(tier, ask("b", words(6 * B + 2, seed=8), 1), format=kv, numerics=numerics)
    mine = [id for id, (label, _) in tier.records.items() if label.tokens in pack_tokens(prompt)]
    last = max(mine, key=lambda id: tier.records[id][0].depth)
    other = next(data for id, (label, data) in tier.records.items() if id not in mine)
    right = tier.records[last]
    _, eng = serve(tier, request, format=kv, numerics=numerics, tier_check=1.0)
    assert eng.executor.counters["tier_disk_checked_records"] == 1
    assert eng.executor.counters["tier_disk_mismatched_records"] == 0
    tier.records[last] = (right[0], other)
    _, eng = serve(tier, request, format=kv, numerics=numerics, tier_check=1.0)
    assert eng.executor.counters["tier_disk_mismatched_records"] == 1
    label, mended = tier.records[last]
    assert label == right[0] and far(mended, right[1], kv) < 0.02 < 0.9 < far(mended, other, kv)
    assert numerics == "fast" or mended == right[1]
    _, eng = serve(tier, request, format=kv, numerics=numerics, tier_check=1.0)
    assert eng.executor.counters["tier_disk_checked_records"] == 1
    assert eng.executor.counters["tier_disk_mismatched_records"] == 0
    longer = ask("c", (*prompt, 9), 3)
    said, eng = serve(tier, longer, format=kv, numerics=numerics)
    assert eng.scheduler.counters.loaded_tokens == 6 * B and said == reference("llama", [longer], format=kv)["c", 0]


def far(a, b, kv):
    """How far two records lie apart: root mean square, of one's numbers (where they are no floats: of its codes)."""
    element = {"f32": np.float32, "f16": np.float16}.get(kv, np.int8)
    x, y = (np.frombuffer(data, np.uint8).view(element).astype(np.float64) for data in (a, b))
    both = np.isfinite(x) & np.isfinite(y)
    assert both.any() and np.array_equal(np.isfinite(x), np.isfinite(y))
    return float(np.linalg.norm(x[both] - y[both]) / np.linalg.norm(y[both]))


def serve(tier, request, **how):
    """One engine from start to end over a tier: its answer, and itself."""
    eng = engine("llama", tiers=(tier,), **how)
    out = run(eng, [request])[request.id, 0]
    flush(eng)
    return out.tokens, eng

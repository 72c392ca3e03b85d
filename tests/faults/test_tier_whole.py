"""F045 as it was met: a long prompt is stored to its last whole block and all of it comes back; a tier that is of no
use to a real server is told by that server's own numbers."""

import logging
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("xxhash")

sys.path += [str(Path(__file__).parents[1] / room) for room in ("tier", "server")]

import tiny_engine  # noqa: E402
from crash_bench import in_memory  # noqa: E402
from tiny_engine import B, alone, ask, engine, flush, run, words  # noqa: E402

from kvist.config import CacheConfig, EngineConfig, SchedConfig, TierConfig  # noqa: E402
from kvist.tier.disk.store import DiskTier  # noqa: E402
from kvist.units import MIB  # noqa: E402

BLOCKS = 64


@pytest.fixture(scope="module")
def long_context():
    """Tiny models end at 256 tokens, a bound of their config alone."""
    spec, weights = tiny_engine.parts("llama")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny_engine, "parts", lambda family: (replace(spec, context_tokens=2048), weights))
        yield


@pytest.mark.parametrize("tail,when", [(-1, "through"), (0, "through"), (1, "back"), (5, "through")])
def test_f045_64_blocks_come_back_into_the_same_engine(long_context, tmp_path, tail, when):
    """Of 64 blocks all whole ones are found; at least the last token is computed, and nothing beside it is."""
    request = ask("first", words(BLOCKS * B + tail, seed=4), 3)
    n = len(request.prompt)
    with in_memory(tmp_path) as folder:
        tier = DiskTier.open(folder / "t", capacity_bytes=64 * MIB, reserve_bytes=0, sync=False)
        eng = engine("llama", tiers=(tier,), blocks=80, budget=512, tier_write=when)
        first = run(eng, [request])["first", 0]
        assert eng.executor._mover.flush(30)
        whole = (n + 2) // B  # the last token was drawn, never computed
        assert tier.usage().records == whole >= BLOCKS
        eng.scheduler.cache.reset()
        computed = eng.scheduler.counters.computed_tokens
        again = run(eng, [replace(request, id="again")])["again", 0]
        counters = eng.executor.counters
        tokens = eng.scheduler.counters.computed_tokens - computed - 2
        flush(eng)
        tier.close()
    hits = BLOCKS if tail >= 0 else BLOCKS - 1
    assert counters["tier_disk_read_records"] == hits == counters["tier_disk_lookup_found"]
    assert counters["tier_disk_read_bytes"] == hits * eng.scheduler.layout.block_bytes > 0
    assert counters["tier_disk_written_bytes"] == whole * eng.scheduler.layout.block_bytes
    assert again.cached_tokens == min(hits * B, n - 1) == n - tokens
    assert again.tokens == first.tokens == alone("llama", replace(request, id="r"), blocks=80)["r", 0].tokens


def numbers_of(client):
    """``/metrics`` by series, and what ``/server_info`` says of the tier."""
    lines = [line for line in client.get("/metrics").text.splitlines() if not line.startswith("#")]
    metrics = {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}
    (place,) = client.get("/server_info").json()["tiers"]["places"]
    return metrics, place["unread"]


def test_f045_a_real_server_whose_tier_is_never_read_says_so(tmp_path, monkeypatch, caplog):
    """Nothing is asked for twice: after 256 records it is a warning, once; with the first that is read it is over."""
    pytest.importorskip("fastapi")
    from tier_identity_kit import model_at
    from tier_served_kit import serving

    from kvist.cli.options import Settings
    from kvist.cli.serve.real import Models

    monkeypatch.setattr("kvist.server.observe.tiers.LOOK_S", 0.0)
    prompts = [words(15 * B + 7, seed=i) for i in range(18)]
    unread, records = 'kvist_tier_unread{tier="disk"}', 'kvist_tier_records{tier="disk"}'
    with in_memory(tmp_path) as folder, caplog.at_level(logging.WARNING, "kvist.server"):
        tiers = TierConfig((f"disk:{folder / 't'}?size=64MiB&reserve=0",), load="always", min_tokens=B)
        config = EngineConfig(CacheConfig(blocks=100, block_tokens=B), SchedConfig(), tiers)
        models = Models(Settings(str(model_at(folder / "model")), engine=config), None)
        with serving(models.first(lambda done: None)) as client:
            for at, prompt in enumerate(prompts):
                client.complete(prompt, n=1)
                assert client.server.service.served.places.flush(10)
                metrics, said = numbers_of(client)
                enough = metrics[records] >= 256
                assert metrics[records] == 15 * (at + 1) and metrics[unread] == enough == said
            assert enough and metrics['kvist_tier_hits_total{tier="disk"}'] == 0
            until_s = time.monotonic() + 10
            while not warned(caplog) and time.monotonic() < until_s:
                client.complete([7, 8, 9], n=1)
            client.complete([7, 8, 9], n=1)
            assert len(warned(caplog)) == 1
            client.forget_pool()
            assert client.cached(prompts[0], n=1) == {"pool": 0, "disk": 15 * B}
            metrics, said = numbers_of(client)
            assert metrics[unread] == 0 == said and metrics['kvist_tier_hits_total{tier="disk"}'] == 15


def warned(caplog):
    return [r for r in caplog.records if "disk" in r.getMessage() and "none was read back" in r.getMessage()]

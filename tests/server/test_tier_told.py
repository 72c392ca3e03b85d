"""What a server says of its tiers: in usage, in a request's story, in /server_info and in /metrics."""

import re
import time
from threading import Thread
from types import SimpleNamespace

import pytest
from served_kit import served
from tier_served_kit import real_tiered, serving, tiered

from kvist.cli.serve.screen import _users
from kvist.server.config import ServeConfig
from kvist.server.earlier import Earlier
from kvist.server.observe.series import TIER_SERIES
from kvist.server.observe.tiers import TIER_NUMBERS, UNREAD_RECORDS, Watch, cached
from kvist.server.tenants import Tenants
from kvist.sim.tiers import PaperTier
from kvist.tier.base import Usage

LONG = list(range(1000, 1200))


def metrics(client):
    """Every sample of /metrics by its text before the number."""
    out = {}
    for line in client.get("/metrics").text.splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            out[name] = float(value)
    return out


def story(client, answer):
    return client.get(f"/v1/requests/{answer['kvist']['request_id']}").json()


def test_every_series_has_a_number_and_every_number_a_series():
    assert {s.name for s in TIER_SERIES} == set(TIER_NUMBERS)


def test_usage_says_where_cached_tokens_lay_and_the_story_why():
    with serving(tiered()) as client:
        cold = client.complete(LONG)
        assert story(client, cold)["tiers"] is None
        client.forget_pool()
        half = client.complete(LONG[:100])
        assert half["usage"]["prompt_tokens_details"]["cached_tokens_by_tier"] == {"pool": 0, "disk": 96}
        both = client.complete(LONG)
        details = both["usage"]["prompt_tokens_details"]
        assert details["cached_tokens"] == 192 == sum(details["cached_tokens_by_tier"].values())
        assert details["cached_tokens_by_tier"]["disk"] == 96
        told = story(client, both)
        assert told["usage"]["cached_tokens_by_tier"] == details["cached_tokens_by_tier"]
        tiers = told["tiers"]
        assert (tiers["decision"], tiers["pool_tokens"], tiers["found_tokens"]) == ("load", 96, 96)
        assert tiers["wanted_tokens"] == tiers["loaded_tokens"] == 96 and tiers["reason"] is None
        assert tiers["predicted_load_ms"] > 0 and tiers["took_ms"] > 0 and tiers["regret_ms"] >= 0
        numbers = metrics(client)
        assert numbers['kvist_cached_tokens_total{tier="tiers"}'] == 192
        assert numbers['kvist_cached_tokens_total{tier="pool"}'] == 96
        assert numbers['kvist_tier_decisions_total{decision="load"}'] == 2
        assert numbers["kvist_tier_loaded_tokens_total"] == 192
        hits = next(v for k, v in numbers.items() if k.startswith("vllm:prefix_cache_hits_total"))
        assert hits == 288


def test_streams_and_other_protocols_say_it_too():
    with serving(tiered("Three.")) as client:
        body = {"messages": [{"role": "user", "content": "Name them. " * 30}], "max_tokens": 4}
        client.post("/v1/chat/completions", body)
        client.forget_pool()
        lines = client.post(
            "/v1/chat/completions", {**body, "stream": True, "stream_options": {"include_usage": True}}
        ).text
        found = re.search(r'"cached_tokens_by_tier":\s*\{"pool":\s*(\d+),\s*"disk":\s*(\d+)\}', lines)
        assert found and int(found[1]) == 0 and int(found[2]) >= 64
        client.forget_pool()
        usage = client.post("/v1/messages", {**body, "model": "tiny"}).json()["usage"]
        assert set(usage) & {"cached_tokens_by_tier"} == set() and usage["cache_read_input_tokens"] == int(found[2])


def test_without_tiers_all_is_the_pools_and_the_series_are_empty():
    with serving(served()) as client:
        client.complete(LONG)
        assert client.cached(LONG) == {"pool": 199}
        numbers = metrics(client)
        assert numbers['kvist_cached_tokens_total{tier="pool"}'] == 199
        assert not [name for name in numbers if "tier_" in name.partition("{")[0]]
        told = client.get("/server_info").json()
        assert told["tiers"] is None and told["features"]["tiers"]["state"] == "inactive"


def test_a_request_that_waits_for_a_tier_says_so():
    tier = PaperTier("disk")
    with serving(tiered(tiers=(tier,))) as client:
        client.complete(LONG)
        client.forget_pool()
        tier.latency_s = 0.4
        slow = Thread(target=client.complete, args=(LONG,))
        slow.start()
        stages = set()
        while slow.is_alive():
            for told in client.get("/v1/requests").json()["data"]:
                stages |= {(s["stage"], s.get("waits_for")) for s in told["samples"] or [] if told["status"] != "done"}
            time.sleep(0.02)
        slow.join()
    assert ("queued", "tier") in stages and ("loading", None) in stages, stages


def test_conditions_are_told_each_as_0_or_1():
    bad = [Usage(3, 300, 1000, "read-only", "the disk is full", evicted_records=2)]
    with serving(tiered(usages=lambda: bad)) as client:
        numbers = metrics(client)
        states = {s: numbers[f'kvist_tier_condition{{state="{s}",tier="disk"}}'] for s in ("ok", "read-only", "off")}
        assert states == {"ok": 0, "read-only": 1, "off": 0}
        assert numbers['kvist_tier_capacity_bytes{tier="disk"}'] == 1000
        fact = client.get("/server_info").json()["tiers"]
        assert fact["places"][0]["condition"] == "read-only" and fact["places"][0]["reason"] == "the disk is full"
        assert fact["write"]["when"] == "through" and fact["load"]["rule"] == "always" and fact["sealed"] is False


def test_a_place_that_hangs_when_asked_how_it_is_holds_nobody_up():
    with serving(tiered(usages=lambda: time.sleep(1.5) or [Usage(0, 0, None)])) as client:
        start = time.monotonic()
        assert client.get("/metrics").status_code == 200 and client.get("/server_info").status_code == 200
        assert time.monotonic() - start < 1.2


def test_f045_a_tier_that_is_written_and_never_read_is_told(caplog):
    numbers = SimpleNamespace(latest={}, usages={"disk": Usage(0, 0, None), "ram": Usage(0, 0, None)})
    service = SimpleNamespace(served=SimpleNamespace(places=None))
    watch = Watch(service, numbers)

    def unread():
        watch.look()
        return dict(TIER_NUMBERS["tier_unread"](numbers))

    assert unread() == {("disk",): 0, ("ram",): 0}
    numbers.latest = {"exec_tier_disk_stored_records": UNREAD_RECORDS, "exec_tier_ram_stored_records": 5}
    assert unread() == {("disk",): 1, ("ram",): 0} == unread()
    assert len([r for r in caplog.records if "none was read" in r.message]) == 1
    numbers.latest = {**numbers.latest, "exec_tier_disk_read_records": 1}
    assert unread() == {("disk",): 0, ("ram",): 0}


def test_cached_tokens_of_either_place_never_go_back():
    from kvist.server.observe.numbers import Numbers

    numbers = Numbers(None, time.monotonic)
    numbers.usages = {"disk": Usage(0, 0, None)}
    seen = []
    for whole, loaded in ((100, 0), (150, 50), (150, 90), (200, 90), (200, 140)):
        numbers.take({"sched_cached_tokens": whole, "sched_loaded_tokens": loaded})
        rows = dict(cached(numbers))
        seen.append((rows[("pool",)], rows[("tiers",)]))
        assert sum(seen[-1]) == whole
    assert all(a <= b and c <= d for (a, c), (b, d) in zip(seen, seen[1:], strict=False)), seen


def test_totals_go_on_over_other_weights_and_gauges_do_not():
    earlier = Earlier()
    earlier.add({"sched_steps": 5, "plan_s": 1.5, "free_blocks": 7, "exec_tier_disk_queued_read_bytes": 9})
    earlier.add({"sched_steps": 2, "exec_tier_disk_read_bytes": 3})
    now = earlier.plus({"sched_steps": 1, "free_blocks": 2, "plan_s": 0.5})
    assert now == {"sched_steps": 8, "plan_s": 2.0, "free_blocks": 2, "exec_tier_disk_read_bytes": 3}


def test_other_weights_do_not_take_the_counts_along():
    first, second = tiered(), tiered()
    with serving(first, loader=lambda path: second) as client:
        client.complete(LONG)
        before = metrics(client)
        assert client.post("/update_weights", {"path": "elsewhere"}).status_code == 200
        client.complete(LONG)
        after = metrics(client)
    totals = [name for name in before if "_total" in name and name.startswith("kvist_")]
    assert all(after[name] >= before[name] for name in totals)
    assert after["kvist_prompt_tokens_total"] == 400


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    with serving(real_tiered(tmp_path_factory.mktemp("tier"))) as client:
        yield client


def test_a_real_tier_counts_what_it_wrote_and_read(disk):
    disk.complete(LONG)
    disk.forget_pool()
    disk.server.service.served.places.flush(10)
    written = metrics(disk)
    assert written['kvist_tier_records{tier="disk"}'] == 12
    assert written['kvist_tier_written_bytes_total{tier="disk"}'] > 0
    assert written['kvist_tier_unread{tier="disk"}'] == 0
    assert disk.cached(LONG) == {"pool": 0, "disk": 192}
    read = metrics(disk)
    assert read['kvist_tier_read_bytes_total{tier="disk"}'] == written['kvist_tier_written_bytes_total{tier="disk"}']
    assert read['kvist_tier_hits_total{tier="disk"}'] == 12 == read['kvist_tier_found_total{tier="disk"}']
    assert read['kvist_tier_condition{state="ok",tier="disk"}'] == 1
    for reason in ("missing", "damaged", "timeout"):
        assert read[f'kvist_tier_misses_total{{reason="{reason}",tier="disk"}}'] == 0
    for reason in ("full", "off", "error"):
        assert read[f'kvist_tier_lost_saves_total{{reason="{reason}",tier="disk"}}'] == 0
    assert read['kvist_tier_queued_bytes{direction="write",tier="disk"}'] == 0


@pytest.mark.parametrize(("isolate", "sealed", "says"), [
    (True, True, "each its own cache"), (False, False, "one cache for all"),
    (False, True, "one cache for all; but the tiers are sealed, and there each has only its own"),
])  # fmt: skip
def test_the_screen_says_who_shares_what(isolate, sealed, says):
    tenants = Tenants.parse(["ann:ka", "bob:kb"], isolate=isolate)
    served = SimpleNamespace(places=SimpleNamespace(sealed=sealed))
    assert _users(ServeConfig(tenants=tenants), served).endswith(says)

"""F054: a reset says per tier what became of it, and after success nothing is found, whatever went on meanwhile."""

import time
from threading import Thread

import pytest
from tier_served_kit import real_tiered, serving, tiered

from kvist.server.tenants import Tenants
from kvist.sim.tiers import PaperMover, PaperTier

LONG = list(range(1000, 1200))
PATHS = ["/reset_prefix_cache", "/flush_cache"]


@pytest.mark.parametrize("path", PATHS)
def test_idle_the_answer_says_what_was_removed_and_a_warm_prompt_is_cold(path):
    ram, disk = PaperTier("ram"), PaperTier("disk")
    with serving(tiered(tiers=(ram, disk))) as client:
        client.complete(LONG)
        client.forget_pool()
        assert client.cached(LONG) == {"pool": 0, "tiers": 192}
        told = client.post(path)
        assert (told.status_code, told.json()) == (
            200,
            {
                "tenant": None,
                "freed_blocks": told.json()["freed_blocks"],
                "success": True,
                "tiers": {"ram": {"records": 12}, "disk": {"records": 12}},
            },
        )
        assert told.json()["freed_blocks"] >= 12 and not ram.records and not disk.records
        assert client.cached(LONG) == {"pool": 0, "tiers": 0}


def test_while_requests_run_they_go_on_the_same():
    with serving(tiered(step_s=0.003)) as client:
        expected = client.complete(LONG, n=40)["choices"][0]["text"]
        other = client.complete(LONG[::-1], n=40)["choices"][0]["text"]
        found = {}
        threads = [
            Thread(target=lambda p=prompt, k=k: found.update({k: client.complete(p, n=40)["choices"][0]["text"]}))
            for k, prompt in enumerate((LONG, LONG[::-1]))
        ]
        for thread in threads:
            thread.start()
        time.sleep(0.05)
        told = client.post(PATHS[0])
        assert told.status_code == 200 and told.json()["success"]
        for thread in threads:
            thread.join(30)
        assert found == {0: expected, 1: other}
        client.settled()
        assert client.post(PATHS[0]).json()["success"]
        assert client.cached(LONG) == {"pool": 0, "disk": 0}


def test_while_a_load_is_on_its_way_it_is_of_no_use_and_harms_nobody():
    tier = PaperTier("disk")
    with serving(tiered(tiers=(tier,))) as client:
        expected = client.complete(LONG)["choices"][0]["text"]
        client.forget_pool()
        tier.latency_s = 0.3
        found = []
        slow = Thread(target=lambda: found.append(client.complete(LONG)))
        slow.start()
        time.sleep(0.45)  # the question was answered, the load is out
        told = client.post(PATHS[0]).json()
        slow.join(20)
        assert told["success"] and found[0]["choices"][0]["text"] == expected
        assert found[0]["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_a_tier_that_cannot_be_emptied_makes_it_a_failure(monkeypatch):
    drop = PaperMover._drop

    def stuck(self, ask):
        drop(self, ask)
        answer = self._dropped.pop()
        self._dropped.append(type(answer)(answer.id, (*answer.records[:-1], -1), "the disk is read-only"))

    monkeypatch.setattr(PaperMover, "_drop", stuck)
    with serving(tiered(tiers=(PaperTier("ram"), PaperTier("disk")))) as client:
        client.complete(LONG)
        told = client.post(PATHS[0])
        assert told.status_code == 503 and told.json()["success"] is False
        assert told.json()["tiers"] == {"ram": {"records": 12}, "disk": {"records": None}}
        assert "disk" in told.json()["reason"] and "read-only" in told.json()["reason"]
        assert client.get("/health").status_code == 200


def test_a_tier_that_does_not_answer_makes_it_a_failure_and_is_not_forgotten(monkeypatch):
    monkeypatch.setattr("kvist.server.resets.WAIT_S", 0.2)
    monkeypatch.setattr("kvist.server.resets.Resets.reset.__defaults__", (0.2,))
    tier = PaperTier("disk")
    with serving(tiered(tiers=(tier,))) as client:
        client.complete(LONG)
        client.settled()
        tier.latency_s = 1.0
        told = client.post(PATHS[0])
        assert told.status_code == 503 and told.json()["success"] is False and "0.2 s" in told.json()["reason"]
        assert told.json()["tiers"] == {"disk": {"records": None}}
        client.settled()
        tier.latency_s = 0.0
        assert client.post(PATHS[0]).json()["tiers"] == {"disk": {"records": 0}}
        assert not client.engine.scheduler.carry.dropped


def test_a_tenant_empties_his_own_part_only():
    keys = Tenants.parse(["ann:ka", "bob:kb"], admin_key="root")
    tier = PaperTier("disk")
    with serving(tiered(tiers=(tier,)), tenants=keys) as client:
        for key in ("ka", "kb"):
            client.complete(LONG, key=key)
        told = client.post(PATHS[0], key="ka").json()
        assert told["tenant"] == "ann" and told["tiers"] == {"disk": {"records": 12}}
        client.forget_pool()
        assert client.cached(LONG, key="ka") == {"pool": 0, "disk": 0}
        client.forget_pool()
        assert client.cached(LONG, key="kb") == {"pool": 0, "disk": 192}


def test_without_tiers_there_is_nothing_to_wait_for():
    from served_kit import served

    with serving(served()) as client:
        client.complete(LONG)
        told = client.post(PATHS[0])
        assert told.status_code == 200 and told.json()["success"] and told.json()["tiers"] == {}


def test_a_real_disk_is_emptied_and_so_are_the_answers_that_were_kept(tmp_path):
    messages = [{"role": "user", "content": "Name three rivers, and the sea that each of them ends in. " * 3}]
    body = {"messages": messages, "max_tokens": 40, "temperature": 0, "ignore_eos": True}
    with serving(real_tiered(tmp_path)) as client:
        first = client.post("/v1/chat/completions", body).json()
        again = {**body, "messages": [*messages, first["choices"][0]["message"], {"role": "user", "content": "More."}]}
        kept = client.post("/v1/chat/completions", again).json()
        assert kept["kvist"]["kept_tokens"] > 0
        client.settled()
        told = client.post(PATHS[0]).json()
        assert told["success"] and told["tiers"]["disk"]["records"] >= 5
        cold = client.post("/v1/chat/completions", body).json()
        assert cold["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert cold["choices"][0]["message"] == first["choices"][0]["message"]
        client.settled()
        assert client.post(PATHS[0]).json()["success"]
    with serving(real_tiered(tmp_path)) as client:
        cold = client.post("/v1/chat/completions", again).json()
        assert cold["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert cold["kvist"]["kept_tokens"] == 0, "the file of answers was emptied, too"


def test_answers_on_disk_that_cannot_be_forgotten_yet_make_it_a_failure_and_do_not_come_back(tmp_path, monkeypatch):
    """The file fails while it is told to forget: nothing of it is read again, and it forgets once it can."""
    from kvist.text.turn_rows import TurnRows

    monkeypatch.setattr("kvist.server.memory.FORGET_S", 0.3)
    write = TurnRows.write

    def broken(self, *args):
        raise OSError(5, "the disk is broken")

    messages = [{"role": "user", "content": "Name three rivers, and the sea that each of them ends in. " * 3}]
    body = {"messages": messages, "max_tokens": 24, "temperature": 0, "ignore_eos": True}
    with serving(real_tiered(tmp_path)) as client:
        first = client.post("/v1/chat/completions", body).json()
        again = {**body, "messages": [*messages, first["choices"][0]["message"], {"role": "user", "content": "More."}]}
        assert client.server.host.chats.memory.file.flush(5)
        monkeypatch.setattr(TurnRows, "write", broken)
        told = client.post(PATHS[0])
        assert told.status_code == 503 and "answers" in told.json()["reason"]
        assert told.json()["tiers"]["disk"]["records"] is not None
        assert client.post("/v1/chat/completions", again).json()["kvist"]["kept_tokens"] == 0
        monkeypatch.setattr(TurnRows, "write", write)
        assert client.server.host.chats.memory.file.flush(10)
    with serving(real_tiered(tmp_path)) as client:
        assert client.post("/v1/chat/completions", again).json()["kvist"]["kept_tokens"] == 0

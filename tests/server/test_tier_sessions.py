"""Sessions as files (F055): what was said goes on from them; anything else there is refused and changes nothing."""

import os
import shutil
from pathlib import Path
from threading import Thread

import pytest
from served_kit import served
from tier_served_kit import real_tiered, serving, tiered

from kvist.server.sessions.sessions import _most_bytes
from kvist.server.sessions.shelf import MOST_SESSIONS, Shelf
from kvist.server.tenants import Tenants
from kvist.tier.bundle import write_bundle
from kvist.tier.ram import RamTier

LONG = list(range(1000, 1200))
OTHER = list(range(3000, 3100))


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("tier")


@pytest.fixture(scope="module")
def disk(home):
    with serving(real_tiered(home)) as client:
        client.folder = Shelf.of(home / "sessions", "default").folder
        yield client


@pytest.fixture(autouse=True)
def empty(request):
    yield
    if "disk" in request.fixturenames:
        client = request.getfixturevalue("disk")
        assert client.get("/health").status_code == 200
        client.settled()
        assert client.post("/reset_prefix_cache").json()["success"]
        shutil.rmtree(client.folder, ignore_errors=True)


def save(client, name="mine", key=None, **what):
    return client.post(f"/v1/sessions/{name}/save", what or {"token_ids": LONG}, key)


def test_saved_emptied_restored_it_goes_on_where_it_was(disk):
    expected = disk.complete(LONG, n=8)["choices"][0]["text"]
    told = save(disk).json()
    assert (told["tokens"], told["asked_tokens"], told["records"], told["tier"]) == (192, 200, 12, "disk")
    assert "last 8 tokens" in told["note"]
    file = disk.folder / "mine.kvist"
    assert file.stat().st_size == told["bytes"] and file.stat().st_mode & 0o077 == 0
    disk.settled()
    assert disk.post("/reset_prefix_cache").json()["success"]
    assert disk.cached(LONG) == {"pool": 0, "disk": 0}
    disk.settled()
    assert disk.post("/reset_prefix_cache").json()["success"]
    back = disk.post("/v1/sessions/mine/restore")
    assert back.status_code == 200
    assert back.json() == {
        "object": "session",
        "name": "mine",
        "tokens": 192,
        "records": 12,
        "success": True,
        "tiers": {"disk": {"stored": 12, "known": 0, "lost": 0}},
    }
    again = disk.complete(LONG, n=8)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens_by_tier"] == {"pool": 0, "disk": 192}
    assert again["choices"][0]["text"] == expected
    assert disk.post("/v1/sessions/mine/restore").json()["tiers"]["disk"]["known"] == 12


def test_a_conversation_and_a_text_are_saved_too_and_listed_and_deleted(disk):
    messages = [{"role": "user", "content": "Tell me about rivers and what they carry. " * 4}]
    body = {"messages": messages, "max_tokens": 24, "temperature": 0, "ignore_eos": True}
    answer = disk.post("/v1/chat/completions", body).json()
    usage = answer["usage"]
    messages = [*messages, answer["choices"][0]["message"]]
    told = save(disk, "talk", messages=messages).json()
    assert told["tokens"] == (usage["total_tokens"] - 1) // 16 * 16, "with the answer"
    text = "A river begins small. " * 20
    disk.complete(text)
    assert save(disk, "text", prompt=text).json()["tokens"] >= 64
    listed = disk.get("/v1/sessions").json()["data"]
    assert [(s["name"], s["tokens"] > 0, s["model"]) for s in listed] == [
        ("talk", True, Path(disk.server.service.served.path).name),
        ("text", True, Path(disk.server.service.served.path).name),
    ]
    gone = disk.http.delete("/v1/sessions/talk")
    assert gone.status_code == 200 and gone.json()["deleted"] is True
    assert disk.http.delete("/v1/sessions/talk").status_code == 404
    assert [s["name"] for s in disk.get("/v1/sessions").json()["data"]] == ["text"]


def test_saving_while_answers_run(disk):
    """What runs goes on the same, and the file has a whole beginning of it."""
    expected = disk.complete(LONG, n=60)["choices"][0]["text"]
    disk.settled()
    assert disk.post("/reset_prefix_cache").json()["success"]
    found = []
    running = Thread(target=lambda: found.append(disk.complete(LONG, n=60)["choices"][0]["text"]))
    running.start()
    told = [save(disk, f"s{n}") for n in range(6)]
    running.join(30)
    assert found == [expected]
    assert {t.status_code for t in told} <= {200, 400}
    good = [t.json() for t in told if t.status_code == 200]
    assert all(t["tokens"] % 16 == 0 and 0 < t["tokens"] <= 192 for t in good)
    for each in good:
        assert disk.post(f"/v1/sessions/{each['name']}/restore").json()["success"]


def test_what_was_never_said_cannot_be_saved_and_the_old_file_stays(disk):
    assert disk.get("/v1/sessions").json()["data"] == []
    none = save(disk, token_ids=OTHER)
    assert none.status_code == 400 and none.json()["error"]["code"] == "nothing_to_save"
    assert not disk.folder.exists()
    disk.complete(LONG)
    assert save(disk).status_code == 200
    before = (disk.folder / "mine.kvist").read_bytes()
    assert save(disk, token_ids=OTHER).status_code == 400
    assert (disk.folder / "mine.kvist").read_bytes() == before
    assert os.listdir(disk.folder) == ["mine.kvist"]


@pytest.mark.parametrize(
    "what",
    [
        {},
        {"token_ids": []},
        {"prompt": ""},
        {"messages": []},
        {"token_ids": [1], "prompt": "a"},
        {"prompt": "a", "messages": [{"role": "user", "content": "b"}]},
        {"token_ids": [10**7]},
        {"token_ids": [-1]},
        {"token_ids": ["1"]},
        {"token_ids": [5] * 9000},
        {"messages": [{"role": "user"}]},
        {"cache_salt": ""},
    ],
    ids=str,
)
def test_bad_asks(disk, what):
    answer = disk.post("/v1/sessions/mine/save", what)
    assert 400 <= answer.status_code < 500, answer.text
    assert answer.json()["error"]["message"]
    assert not disk.folder.exists()


NAMES = ["..%2F..%2Fetc", "..", "%2e%2e", "a%2Fb", "a/b", "a.b", "%00", "a%0Ab", "%20a", "x" * 101, "%F0%9F%90%9F" * 60]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("way", ["save", "restore", "delete"])
def test_names_that_lead_elsewhere(disk, home, name, way):
    before = sorted(home.iterdir())
    if way == "delete":
        answer = disk.http.delete(f"/v1/sessions/{name}")
    else:
        answer = disk.post(f"/v1/sessions/{name}/{way}", {"token_ids": LONG})
    assert 400 <= answer.status_code < 500, answer.text
    assert sorted(home.iterdir()) == before and not disk.folder.exists()


def test_a_missing_one(disk):
    answer = disk.post("/v1/sessions/nobody/restore")
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "session_not_found"
    assert disk.http.delete("/v1/sessions/nobody").status_code == 404


def foreign(path, disk, **changes):
    """A whole and sound file that is not for this model."""
    served = disk.server.service.served
    tier = RamTier(64 << 20)
    size = changes.get("record_bytes", served.layout.block_bytes)
    from kvist.ids import BlockKey, RecordId, record_id
    from kvist.tier.base import Label, Record

    id = record_id(BlockKey(b"k" * 16), 0)
    label = Label(id, RecordId(b""), changes.get("origin", served.places.origin), 0, "default", b"\1\0\0\0" * 16)
    assert tier.put_many([Record(label, memoryview(bytes(size)))], timeout_s=1) == ["stored"]
    write_bundle(path, tier, [id], {"tokens": 16}, record_bytes=size)


def _grow(path, disk):
    with open(path, "r+b") as file:
        file.truncate(20 << 30)


BAD = {
    "zero bytes": lambda path, disk: path.write_bytes(b""),
    "truncated": lambda path, disk: path.write_bytes(path.read_bytes()[:-100]),
    "half": lambda path, disk: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "random": lambda path, disk: path.write_bytes(os.urandom(10_000)),
    "one bit": lambda path, disk: path.write_bytes(_flipped(path.read_bytes())),
    "other model": lambda path, disk: foreign(path, disk, origin=b"another-model-16"),
    "other size": lambda path, disk: foreign(path, disk, record_bytes=4096),
    "too long": _grow,
    "more at the end": lambda path, disk: path.write_bytes(path.read_bytes() + b"x"),
}


def _flipped(data):
    at = len(data) // 3
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


@pytest.mark.parametrize("bad", BAD)
def test_f055_a_bad_file_is_refused_and_what_is_there_stays(disk, bad):
    expected = disk.complete(LONG)["choices"][0]["text"]
    assert save(disk).status_code == 200
    BAD[bad](disk.folder / "mine.kvist", disk)
    answer = disk.post("/v1/sessions/mine/restore")
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "session_refused", answer.text
    assert str(disk.folder) not in answer.text
    assert disk.server.service.served.places.usages()[0].records == 12
    listed = disk.get("/v1/sessions").json()["data"]
    assert [s["name"] for s in listed] == ["mine"]
    disk.forget_pool()
    again = disk.complete(LONG)
    assert again["choices"][0]["text"] == expected
    assert again["usage"]["prompt_tokens_details"]["cached_tokens_by_tier"] == {"pool": 0, "disk": 192}


def test_a_sound_file_that_is_longer_than_any_context_is_refused(disk, monkeypatch):
    disk.complete(LONG)
    size = save(disk).json()["bytes"]
    assert size * 8192 / 192 < _most_bytes(disk.server.service.served)
    monkeypatch.setattr("kvist.server.sessions.sessions._most_bytes", lambda served: size - 1)
    answer = disk.post("/v1/sessions/mine/restore")
    assert answer.status_code == 400 and "are allowed" in answer.json()["error"]["message"]


def test_a_folder_or_a_link_in_a_files_place_is_no_session(disk, tmp_path):
    disk.folder.mkdir(parents=True)
    (disk.folder / "dir.kvist").mkdir()
    secret = tmp_path / "secret"
    secret.write_bytes(b"kvistBDL")
    (disk.folder / "link.kvist").symlink_to(secret)
    for name in ("dir", "link"):
        assert disk.post(f"/v1/sessions/{name}/restore").status_code == 404
    assert disk.get("/v1/sessions").json()["data"] == [] and secret.exists()


def test_there_is_a_bound_on_how_many(disk):
    disk.complete(LONG)
    disk.folder.mkdir(parents=True)
    for n in range(MOST_SESSIONS):
        (disk.folder / f"s{n}.kvist").touch()
    answer = save(disk)
    assert answer.status_code == 409 and answer.json()["error"]["code"] == "too_many_sessions"
    assert save(disk, "s1").status_code == 200, "in place of an old one"


def test_each_tenant_has_his_own(tmp_path):
    keys = Tenants.parse(["ann:ka", "bob:kb"])
    with serving(real_tiered(tmp_path), tenants=keys) as client:
        client.complete(LONG, key="ka")
        assert save(client, key="kb").status_code == 400, "bob never said that"
        assert save(client, key="ka").status_code == 200
        assert [s["name"] for s in client.get("/v1/sessions", "ka").json()["data"]] == ["mine"]
        assert client.get("/v1/sessions", "kb").json()["data"] == []
        assert client.post("/v1/sessions/mine/restore", key="kb").status_code == 404
        assert client.http.delete("/v1/sessions/mine", headers={"x-api-key": "kb"}).status_code == 404
        assert client.get("/v1/sessions").status_code == 401
        client.complete(LONG, key="ka", cache_salt="other")
        assert save(client, "salted", key="ka", token_ids=LONG[:64], cache_salt="third").status_code == 400
        assert save(client, "salted", key="ka", token_ids=LONG[:64], cache_salt="other").status_code == 200
        names = os.listdir(tmp_path / "sessions")
        assert len(names) == 1 and "ann" not in names[0]


@pytest.mark.parametrize("make", [served, tiered], ids=["no tiers", "on paper"])
def test_without_a_disk_tier_there_are_none(make):
    with serving(make()) as client:
        for answer in (save(client), client.post("/v1/sessions/a/restore"), client.get("/v1/sessions")):
            assert answer.status_code == 400 and answer.json()["error"]["code"] == "unsupported"


def test_where_all_is_sealed_no_plain_file_is_written(tmp_path):
    pytest.importorskip("cryptography")
    from kvist.tier.master_key import write_master_key

    write_master_key(tmp_path / "key")
    with serving(real_tiered(tmp_path / "tier", key=str(tmp_path / "key"))) as client:
        client.complete(LONG)
        answer = save(client)
        assert answer.status_code == 400 and "sealed" in answer.json()["error"]["message"]
        messages = [{"role": "user", "content": "A secret about rivers. " * 8}]
        client.post("/v1/chat/completions", {"messages": messages, "max_tokens": 8})
        client.forget_pool()
        assert client.cached(LONG) == {"pool": 0, "disk": 192}
        assert client.get("/server_info").json()["tiers"]["sealed"] is True

"""What one tenant can learn of another: nothing from counts, nothing from times, nothing by a salt."""

import random
import statistics
import time

import pytest
from attack_kit import BODY, all_routers, ask, connect, key, post_bytes, read_all, until
from served_kit import running, served

from kvist.server.tenants import Tenants

KEYS = Tenants.parse(["ann:ka", "bob:kb"], admin_key="root")


@pytest.fixture(autouse=True)
def patched(monkeypatch):
    all_routers(monkeypatch)


@pytest.fixture(scope="module")
def shared():
    """For tests that leave nothing behind but prompts of their own."""
    with pytest.MonkeyPatch.context() as patch:
        all_routers(patch)
        with running(served("x"), tenants=KEYS) as server:
            yield server
            server.books()


def prompt_of(seed, tokens=120):
    """Ids that begin with one of their own: no two prompts have anything in common."""
    source = random.Random(seed)
    return [5000 + seed, *(source.randrange(1000, 20_000) for _ in range(tokens - 1))]


def send(server, who, prompt, **more):
    """Cached tokens, seconds to the whole answer of one token."""
    begin = time.perf_counter()
    status, _, answer = ask(
        server.url, "POST", "/v1/completions", {**BODY, "max_tokens": 1, "prompt": prompt, **more}, key(who)
    )
    took = time.perf_counter() - begin
    assert status == 200, answer
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"], took


def test_another_tenants_prompts_cannot_be_probed():
    """F016: first contact is always cold, by count and by clock, though the owner's own second time is not."""
    with running(served("x", token_s=0.0001), tenants=KEYS) as server:
        secrets = [prompt_of(i) for i in range(50)]
        fresh = [prompt_of(1000 + i) for i in range(50)]
        for prompt in secrets:
            send(server, "ka", prompt)
        warm = [send(server, "ka", prompt) for prompt in secrets]
        guess, blind = [], []
        for mine, new in zip(secrets, fresh, strict=True):
            guess.append(send(server, "kb", mine))
            blind.append(send(server, "kb", new))
        assert all(c > 100 for c, _ in warm)
        assert [c for c, _ in guess] == [0] * 50 == [c for c, _ in blind]
        times = {n: [t for _, t in found] for n, found in (("warm", warm), ("guess", guess), ("blind", blind))}
        assert statistics.median(times["warm"]) < 0.6 * statistics.median(times["blind"])  # the clock would tell
        assert auc(times["guess"], times["blind"]) == pytest.approx(0.5, abs=0.2)
        server.books()


def auc(left, right):
    """How well one number tells two samples apart: 0.5 is not at all."""
    wins = sum((a < b) + 0.5 * (a == b) for a in left for b in right)
    return wins / (len(left) * len(right))


def test_no_salt_joins_another_tenant():
    """F016: whatever the body says, the key decides; within a tenant the salt separates and joins."""
    with running(served("x"), tenants=KEYS) as server:
        prompt = prompt_of(7)
        send(server, "ka", prompt)
        send(server, "ka", prompt, cache_salt="shared")
        own = KEYS.salt(KEYS.find("ka"), "")
        salts = ["shared", "ann", "ka", own.hex(), own.decode("latin-1"), "ann\0shared", "default"]
        for salt in salts:
            assert send(server, "kb", prompt, cache_salt=salt)[0] == 0, salt
        assert send(server, "kb", prompt)[0] == 0
        assert send(server, "ka", prompt)[0] > 100
        assert send(server, "ka", prompt, cache_salt="shared")[0] > 100
        assert send(server, "ka", prompt, cache_salt="other")[0] == 0


FIELDS = ["tenant", "user", "api_key", "salt", "namespace", "session_id", "extras"]


@pytest.mark.parametrize("field", FIELDS)
def test_no_other_field_joins_another_tenant(shared, field):
    prompt = prompt_of(200 + FIELDS.index(field))
    assert send(shared, "ka", prompt)[0] == 0
    assert send(shared, "ka", prompt)[0] > 100
    status, _, answer = ask(shared.url, "POST", "/v1/completions", {**BODY, "prompt": prompt, field: "ann"}, key("kb"))
    assert status == 400 or answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


@pytest.mark.parametrize(
    "headers",
    [
        [], ["Authorization:"], ["Authorization: Bearer"], ["Authorization: Bearer "], ["Authorization: Bearer wrong"],
        ["Authorization: Bearer ka ka"], ["Authorization: Bearer kakb"], ["Authorization: Bearer k"],
        ["Authorization: Token ka"], ["x-api-key: "], ["x-api-key: KA"], ["Authorization: Bearer \xff\xfe"],
        ["Authorization: Bearer " + "k" * 30_000], ["x-api-key: ka\x00"], ["Cookie: key=ka"],
    ],
    ids=lambda h: str(h)[:40],
)  # fmt: skip
def test_wrong_keys(shared, headers):
    """401 (or the 400 of no HTTP at all) before the body is looked at, and no word of which keys exist."""
    with connect(shared.url) as sock:
        head = post_bytes("/v1/completions", b"", length=10, headers=["Connection: close", "X-H: 1"]).decode()
        text = head.replace("X-H: 1", "\r\n".join(["X-H: 1", *headers]))
        sock.sendall(text.encode("latin-1") + b"not json!!")
        got = read_all(sock, 3)
    assert got.split()[1] in (b"401", b"400") and b"ann" not in got and b"kb" not in got
    assert b"json" not in got.split(b"\r\n\r\n")[1]


def test_a_wrong_key_does_not_hold_a_connection():
    """Nobody without a key can send a body for ever."""
    with running(served("x"), tenants=KEYS, read_timeout_s=1.0) as server, connect(server.url) as sock:
        sock.sendall(post_bytes("/v1/completions", b"", length=10**6))
        begin = time.time()
        with pytest.raises(OSError):
            while time.time() - begin < 8:
                sock.sendall(b"x")
                time.sleep(0.05)
        assert time.time() - begin < 4


def test_a_full_queue_is_one_tenants_own():
    """One floods; the other is served."""
    with running(served(None, step_s=0.002, max_sequences=4), tenants=KEYS, max_queue=8) as server:
        body = {**BODY, "max_tokens": 2000, "ignore_eos": True, "stream": True}
        socks = [connect(server.url) for _ in range(20)]
        for i, sock in enumerate(socks):
            lines = ["Authorization: Bearer ka"]
            sock.sendall(post_bytes("/v1/completions", {**body, "prompt": f"flood {i}"}, headers=lines))
        assert until(lambda: server.service.open == 8)
        status, heads, answer = ask(server.url, "POST", "/v1/completions", BODY, key("ka"))
        assert status == 429 and int(heads["retry-after"]) >= 1 and "8 are allowed" in answer["error"]["message"]
        assert server.service._inside == {"ann": 8}
        sock = connect(server.url)
        sock.sendall(post_bytes("/v1/completions", body, headers=["Authorization: Bearer kb"]))
        assert until(lambda: server.service._inside == {"ann": 8, "bob": 1})
        for each in (*socks, sock):
            each.close()
        assert until(lambda: server.service.open == 0, 2)
        server.books()

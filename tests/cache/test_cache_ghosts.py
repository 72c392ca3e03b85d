"""Why a prompt is not cached: it was evicted, or another token is there."""

from __future__ import annotations

import time

import pytest
from cache_paper import FULL, Desk, layout_of, window

from kvist.cache import ghosts, match
from kvist.cache.cache import Match

ONE = layout_of((4, FULL))
PROMPT = list(range(100, 140))


def why(desk: Desk, tokens: list[int], **options) -> tuple[int, str]:
    got = desk.cache.match(tokens, **options)
    return got.cached_tokens, got.reason


def squeeze(desk: Desk, free_blocks: int) -> None:
    """Evict until so many blocks are free."""
    seq = desk.start([7], limit=0, reuse=False)
    desk.cache.extend(seq, 4 * free_blocks)
    desk.finish(seq, publish=False)


def test_a_run_that_was_evicted_says_so() -> None:
    desk = Desk(ONE, 10)
    assert why(desk, PROMPT) == (0, "empty")
    desk.serve(PROMPT)
    for kept in range(9, 0, -1):  # block by block, from the tail
        squeeze(desk, 10 - kept)
        assert why(desk, PROMPT) == (4 * kept, "evicted")
        assert why(desk, [*PROMPT, 1, 2]) == (4 * kept, "evicted")
        assert why(desk, PROMPT[: 4 * kept], limit=4 * kept) == (4 * kept, "end"), "nothing follows"
        assert why(desk, [*PROMPT[: 4 * kept], 1, 2, 3, 4, 5])[1] == "end", "that was never there"
        assert why(desk, PROMPT[: 4 * kept + 3])[1] == "end", "less than a span cannot be told"
        assert why(desk, PROMPT, limit=3) == (3, "limit"), "the limit speaks first"
        assert why(desk, PROMPT[1:])[1] == "diverged"
    squeeze(desk, 10)
    assert desk.cache.cached_blocks == 0
    assert why(desk, PROMPT) == (0, "evicted") and why(desk, PROMPT[1:]) == (0, "empty")
    assert desk.serve(PROMPT) == 0 and desk.cache.counters.stopped_evicted == 1
    assert why(desk, [*PROMPT, 1, 2]) == (40, "end"), "cached again"


def test_growing_over_a_gap() -> None:
    """A node that was cut grows with other tokens: what it lost is still told; grown with the same, it is cached."""
    desk = Desk(ONE, 10)
    desk.serve(PROMPT)
    squeeze(desk, 5)
    desk.serve([*PROMPT[:20], 1, 2, 3, 4])
    assert why(desk, PROMPT) == (20, "evicted") and why(desk, [*PROMPT[:20], 9, 9, 9, 9, 9])[1] == "diverged"
    assert why(desk, [*PROMPT[:20], 1, 2, 3, 4, *PROMPT[20:25]]) == (24, "end"), "not behind its new end"
    desk.serve(PROMPT[:28])
    assert why(desk, [*PROMPT[:28], 1, 2, 3, 4, 5]) == (28, "end")
    squeeze(desk, 10)
    assert why(desk, [*PROMPT[:20], 1]) == (0, "evicted")


def test_one_branch_of_two_goes() -> None:
    desk = Desk(ONE, 12)
    a, b = [*PROMPT[:16], 1, 2, 3, 4, 5, 6, 7, 8], [*PROMPT[:16], 1, 2, 9, 9, 9, 9, 9, 9]
    desk.serve(a)
    desk.serve(b)
    squeeze(desk, 5)  # 4 were free; the older branch loses a block
    assert why(desk, a) == (20, "evicted") and why(desk, b, limit=24) == (24, "end")
    squeeze(desk, 6)
    got = desk.cache.match(a)
    assert (got.cached_tokens, got.reason, got.first_differing) == (18, "evicted", 18), "inside the other's span"
    assert got.cached_there == 9


def test_reset_counts_and_tenants_do_not_see() -> None:
    desk = Desk(ONE, 30)
    desk.serve(PROMPT, salt=b"one", tenant="one")
    desk.serve(PROMPT, extras=(b"m" * 16,), tenant="two")
    desk.cache.reset("one")
    assert why(desk, PROMPT, salt=b"one") == (0, "evicted")
    assert why(desk, PROMPT, salt=b"two") == why(desk, PROMPT) == (0, "empty")
    assert why(desk, PROMPT, extras=(b"m" * 16,)) == (39, "limit")
    desk.cache.reset()
    assert why(desk, PROMPT, extras=(b"m" * 16,)) == (0, "evicted")
    assert why(desk, PROMPT, salt=b"one", extras=(b"m" * 16,)) == (0, "empty")


def test_windows_tell_tombstones_from_runs_that_went() -> None:
    desk = Desk(layout_of((4, window(6))), 12)
    desk.serve(PROMPT)
    tree = desk.cache._tree
    node = next(iter(next(iter(tree.roots.values())).children.values()))
    tree.tombstone(node, tree.rules[0], [0])
    assert why(desk, PROMPT[:3]) == (0, "window")
    desk.cache.reset()
    assert why(desk, PROMPT) == (0, "evicted")


def test_the_memory_is_bounded_and_the_oldest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ghosts, "GHOSTS", 5)
    desk = Desk(ONE, 4)
    for i in range(12):
        desk.serve([i] * 12)
    squeeze(desk, 4)
    assert [i for i in range(12) if why(desk, [i] * 12)[1] == "evicted"] == [7, 8, 9, 10, 11]
    assert len(desk.cache._tree.ghosts) == 5
    desk.serve([7] * 12)
    squeeze(desk, 4)
    desk.serve([50] * 12)
    squeeze(desk, 4)
    assert [i for i in range(12) if why(desk, [i] * 12)[1] == "evicted"] == [7, 9, 10, 11], "evicted again: young again"


def test_an_open_tail_leaves_no_ghost() -> None:
    """Superseded tails did not leave for want of room, and are shorter than a span."""
    desk = Desk(ONE, 12)
    desk.serve(PROMPT[:10])
    desk.serve(PROMPT[:15])
    assert desk.cache.counters.superseded_tails == 1 and len(desk.cache._tree.ghosts) == 0
    assert why(desk, [*PROMPT[:8], 1, 2, 3, 4, 5])[1] == "diverged"


def test_what_is_cached_in_that_place() -> None:
    desk = Desk(ONE, 64)
    match_ = desk.cache.match
    assert match_([1, 2]).cached_there is None
    desk.serve(list(range(10)))
    assert match_([0, 1, 2, 99]).cached_there == 3
    assert match_([0, 1, 2]).cached_there == 3, "the prompt ends, the run goes on"
    assert match_([0, 1, 2, 3, 4, 5, 99]).cached_there == 6
    assert match_(list(range(12))).cached_there is None, "nothing goes on there"
    assert match_(list(range(10)), limit=4).cached_there is None, "wherever the limit is"
    assert match_([*range(9), 50]).cached_there == 9, "an open tail"
    assert match_([77]).cached_there == 0, "the first token already"
    assert match_([77], salt=b"x").cached_there is None
    desk.serve([*range(8), 8, 60, 61, 62, 63])
    assert match_([*range(8), 8, 60, 5]).cached_there == 61, "the nearest run"
    desk.serve([-1, 2, 3, 4, 5], extras=(b"e" * 16,))
    assert match_([5], extras=(b"e" * 16,)).cached_there == -1
    admission = desk.cache.admit(10**6, [0, 1, 2, 99])
    assert admission.match == match_([0, 1, 2, 99])


def test_spans_of_one_token() -> None:
    desk = Desk(layout_of((1, FULL)), 32)
    desk.serve([1, 2, 3, 4])
    desk.serve([1, 2, 5])
    for prompt, there in (([1, 2, 9, 9], {3, 5}), ([9, 9], {1}), ([1, 2, 3, 9, 9], {4}), ([1, 2, 5, 6, 7], {None})):
        got = desk.cache.match(prompt)
        assert got.cached_there in there and got.reason == ("end" if there == {None} else "diverged")


def test_f016_another_namespace_is_a_fresh_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Key 2 asks for key 1's prompt and for a fresh one: the same answer and the same work, cached or evicted."""
    work: list[str] = []
    for where, name in ((match, "common_bytes"), (ghosts, "_digest"), (match, "usable")):
        plain = getattr(where, name)
        monkeypatch.setattr(where, name, lambda *a, f=plain, n=name: work.append(n) or f(*a))

    def ask(tokens: list[int], limit: int | None = None) -> tuple[Match, list[str]]:
        work.clear()
        return desk.cache.match(tokens, limit=limit, salt=b"two"), list(work)

    desk = Desk(ONE, 60)
    secret, fresh = list(range(1000, 1040)), list(range(3000, 3040))
    desk.serve(secret, salt=b"one", tenant="one")
    assert ask(secret) == ask(fresh) and ask(secret)[0].reason == "empty"
    desk.serve([5] * 20, salt=b"two", tenant="two")
    assert ask(secret) == ask(fresh) and ask(secret)[0].reason == "diverged" and ask(secret)[1]
    desk.cache.reset("one")
    assert ask(secret) == ask(fresh) and ask(secret)[0].reason == "diverged" and "_digest" in ask(secret)[1]
    assert desk.cache.match(secret, salt=b"one").reason == "evicted", "key 1 may know"
    assert ask([5] * 20)[0].cached_tokens == 19


def test_a_digest_costs_microseconds() -> None:
    """4,096 tokens whose continuation was evicted: under 150 us, most of it the walk and the packing."""
    desk = Desk(layout_of((16, FULL)), 520, check=False)
    prompt = list(range(4096))
    desk.serve([*prompt, *[1] * 64], limit=0)
    desk.serve([*prompt, *[2] * 64])
    seq = desk.start([3] * 16, limit=0, reuse=False)
    desk.cache.extend(seq, 16 * (520 - 260))
    best = 1.0
    for _ in range(30):
        start = time.perf_counter()
        got = desk.cache.match([*prompt, *[1] * 64])
        best = min(best, time.perf_counter() - start)
    assert (got.cached_tokens, got.reason) == (4096, "evicted") and len(desk.cache._tree.ghosts) == 1
    assert best < 450e-6, f"{best * 1e6:.0f} us: three times what it should be"

"""One arithmetic for everything that runs."""

from types import SimpleNamespace

import pytest

from kvist.sched.budget import share


def seqs(*lacking, drafts=0):
    return [SimpleNamespace(lacking=n, drafts=[1] * drafts) for n in lacking]


@pytest.mark.parametrize(
    "lacking,budget,chunk,expected",
    [
        ((1, 1, 1), 8, 8, [1, 1, 1]),
        ((100, 1, 1), 8, 8, [6, 1, 1]),
        ((1, 100, 1), 8, 8, [1, 6, 1]),
        ((100, 100, 1), 8, 8, [5, 2, 1]),
        ((100, 3, 90, 1), 11, 11, [8, 2, 0, 1]),
        ((100, 3, 90, 1), 21, 21, [16, 3, 1, 1]),
        ((100, 3, 90, 1), 41, 41, [32, 3, 5, 1]),
        ((100, 100, 1), 8, 3, [3, 3, 1]),
        ((5, 100, 1), 16, 16, [5, 10, 1]),
        ((100, 1, 1), 1, 1, [1, 0, 0]),
        ((1, 1, 1), 2, 2, [1, 1, 0]),
        ((), 4, 4, []),
    ],
)
def test_share(lacking, budget, chunk, expected):
    assert share(seqs(*lacking), budget, chunk) == (expected, [])


def test_drafts_take_what_is_left():
    assert share(seqs(1, 1, drafts=3), 6, 6)[0] == [4, 2]
    assert share(seqs(1, 1, drafts=3), 2, 2)[0] == [1, 1]


@pytest.mark.parametrize(
    "lacking,newcomers,budget,expected",
    [
        ((100, 1), (8,), 21, ([16, 1], [4])),
        ((100, 1), (8, 50), 51, ([40, 1], [8, 2])),
        ((100,), (300, 8), 100, ([80], [12, 8])),
        ((100,), (300, 20), 100, ([80], [4, 16])),
        ((1, 1), (300, 8), 100, ([1, 1], [90, 8])),
        ((1,), (300,), 100, ([1], [99])),
        ((), (300,), 100, ([], [100])),
        ((), (300, 300), 100, ([], [80, 20])),
    ],
)
def test_newcomers_get_the_rest_smallest_first(lacking, newcomers, budget, expected):
    assert share(seqs(*lacking), budget, budget, newcomers) == expected


def test_prompts_get_no_more_than_the_pace_allows():
    assert share(seqs(1, 100, 1), 64, 64, (9,), prompt_tokens=16) == ([1, 12, 1], [4])
    assert share(seqs(1, 100, 1), 10, 64, (9,), prompt_tokens=16) == ([1, 6, 1], [2])


def test_the_first_always_moves_and_decodes_move_while_the_budget_lasts():
    for budget in range(1, 12):
        for lacking in ((7, 1, 1), (1, 9, 1), (3, 3, 3)):
            grants, _ = share(seqs(*lacking), budget, budget)
            assert sum(grants) <= budget and grants[0] >= 1
            assert all(0 <= g <= n for g, n in zip(grants, lacking, strict=True))
            ones = [g for g, n in zip(grants, lacking, strict=True) if n == 1]
            assert sum(ones) == min(len(ones), budget - (lacking[0] > 1))

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
        ((100, 100, 1), 8, 8, [7, 0, 1]),
        ((100, 100, 1), 8, 3, [3, 3, 1]),
        ((5, 100, 1), 16, 16, [5, 10, 1]),
        ((100, 1, 1), 1, 1, [1, 0, 0]),
        ((1, 1, 1), 2, 2, [1, 1, 0]),
        ((), 4, 4, []),
    ],
)
def test_share(lacking, budget, chunk, expected):
    assert share(seqs(*lacking), budget, chunk) == expected


def test_drafts_take_what_is_left():
    assert share(seqs(1, 1, drafts=3), 6, 6) == [4, 2]
    assert share(seqs(1, 1, drafts=3), 2, 2) == [1, 1]


def test_the_first_always_moves_and_decodes_move_while_the_budget_lasts():
    for budget in range(1, 12):
        for lacking in ((7, 1, 1), (1, 9, 1), (3, 3, 3)):
            grants = share(seqs(*lacking), budget, budget)
            assert sum(grants) <= budget and grants[0] >= 1
            assert all(0 <= g <= n for g, n in zip(grants, lacking, strict=True))
            ones = [g for g, n in zip(grants, lacking, strict=True) if n == 1]
            assert sum(ones) == min(len(ones), budget - (lacking[0] > 1))

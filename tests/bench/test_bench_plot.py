"""The picture of hits by turn."""

from types import SimpleNamespace

import pytest

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure

from kvist.bench import plot


@pytest.mark.parametrize("turns", [2, 3, 5, 40])
def test_turns_are_whole_and_every_line_is_seen(turns):
    told = [
        SimpleNamespace(turn=t, reported_rate=0.5, inferred_rate=None, optimum_rate=0.5) for t in range(1, turns + 1)
    ]
    figure = Figure()
    axes = figure.subplots()
    plot._by_turn(axes, SimpleNamespace(turns=told))
    figure.draw_without_rendering()
    assert all(float(tick).is_integer() for tick in axes.get_xticks())
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert lines.keys() == {"reported", "optimum"}
    assert (lines["reported"].get_linestyle(), lines["optimum"].get_linestyle()) == ("-", "--")
    assert list(lines["reported"].get_xdata()) == list(range(1, turns + 1))

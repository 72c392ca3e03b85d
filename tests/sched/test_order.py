"""The shelf of orders."""

import pytest

from kvist.errors import BadValue
from kvist.sched.order.registry import load, names
from kvist.sched.sequence import Sequence
from paperwork import ask


def seq(arrival, priority=0, preemptions=0, sample=0):
    request = ask(f"r{arrival}", (1,), priority=priority)
    s = Sequence(arrival, request, sample, arrival, request.sampling, 9, [1])
    s.preemptions = preemptions
    return s


@pytest.mark.parametrize("name", names())
def test_keys_are_total_and_depend_on_the_sequence_alone(name):
    order = load(name)
    assert order.name == name
    some = [seq(a, p, k, i) for a in range(3) for p in range(3) for k in range(5) for i in range(2)]
    keys = [order.key(s) for s in some]
    assert len({k for s, k in zip(some, keys, strict=True)}) >= 18
    assert keys == [order.key(s) for s in some]


@pytest.mark.parametrize("name", names())
def test_nobody_is_thrown_out_for_ever(name):
    order = load(name)
    assert order.key(seq(9, preemptions=3)) < order.key(seq(1, priority=100))


def test_fcfs():
    key = load("fcfs").key
    assert key(seq(1)) < key(seq(2))
    assert key(seq(2, priority=1)) < key(seq(1))
    assert key(seq(1, sample=0)) < key(seq(1, sample=1))
    assert key(seq(2, preemptions=2)) > key(seq(1))


def test_an_unknown_order_is_refused_with_the_known_ones():
    with pytest.raises(BadValue, match="fcfs"):
        load("lottery")

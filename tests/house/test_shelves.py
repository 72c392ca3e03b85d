"""Descriptors in ``spec/shelves.py`` and the registries that bind them name the same variants."""

import pytest


def named(shelf):
    from kvist.spec import shelves

    return {v.name for v in shelves.VARIANTS if v.shelf == shelf}


def test_attention():
    pytest.importorskip("torch", reason="registries of the doing half need torch")
    from kvist.kernels.attention import registry

    assert set(registry.names()) == named("kernels/attention")


def test_codecs():
    """Every element that a cache can be asked for, and no other."""
    from kvist.spec.format import ELEMENTS

    assert named("kernels/codec") == set(ELEMENTS)


def test_evict():
    from kvist.cache.evict import registry

    assert set(registry.names()) == named("cache/evict")


def test_order():
    from kvist.sched.order import registry

    assert set(registry.names()) == named("sched/order")


def test_engines():
    from kvist.planner.engines import registry

    assert set(registry.names()) == named("planner/engines")
    assert [registry.engine(name).name for name in registry.names()] == list(registry.names())


def test_tools():
    from kvist.text.tools import registry

    assert set(registry.names()) == named("text/tools")


def test_workloads():
    from kvist.bench.workload import registry

    assert set(registry.names()) == named("bench/workload")

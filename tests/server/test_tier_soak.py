"""F044: a short soak of a real server over a slow host tier; and the soak itself finds what is wrong."""

import sys
from collections import Counter
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("tokenizers")

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.tiers import soak, soaked  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def slow(cls=soaked.Slow, most_s=0.03):
    made = soaked.slow_ram(soaked.block_bytes(), 7, most_s)
    return cls(made.inner, 7, most_s)


def real_faults(found):
    return [fault for fault in found.faults() if not fault.startswith("no ")]


def test_f044_mixed_hits_give_what_no_cache_gives():
    """All kinds of hit in both ways of writing, copies late in both directions."""
    kinds = Counter()
    for seed, write in enumerate(soak.WRITES):
        found = soak.play(110, write, seed=seed, tier=slow())
        assert not real_faults(found), (found.faults(), found.sample)
        assert found.metrics['kvist_tier_hits_total{tier="ram"}'] > 0
        assert found.kinds["pool_hit"] + found.kinds["host_restore"] + found.kinds["miss"] == 110
        kinds += found.kinds
    assert all(kinds[kind] for kind in soak.NEEDED), kinds


class Foreign(soaked.Slow):
    """Gives another record's bytes for each; that record's own id is what its checksum was made with."""

    def get_many_into(self, ids, buffers, *, timeout_s):
        got = super().get_many_into(ids, buffers, timeout_s=timeout_s)
        kept = [slot.data for slot in self.inner._slots.values()]
        for i, buffer in enumerate(buffers):
            buffer[:] = kept[i % len(kept)].data
        return got


def test_the_soak_finds_foreign_bytes():
    found = soak.play(60, "through", seed=3, tier=slow(Foreign, 0.002))
    assert found.different > 0 and any("differ" in fault for fault in found.faults())
    assert found.sample[0]["got"] != found.sample[0]["want"]


class Empty(soaked.Slow):
    """Takes all and gives nothing."""

    def exists_many(self, ids):
        return [False] * len(ids)


def test_a_soak_in_which_nothing_was_restored_fails():
    found = soak.play(40, "through", seed=3, tier=slow(Empty, 0.002))
    assert not real_faults(found)
    assert {"no host restore happened", "no evict and restore happened"} <= set(found.faults())


def test_markers_and_requests_are_what_they_are_said_to_be():
    marks, work = soaked.markers(5), list(soak.workload(300, 5))
    assert len(set(marks)) == soaked.GROUPS and work == list(soak.workload(300, 5)) != list(soak.workload(300, 6))
    assert all(prompt[: soaked.MARKER_TOKENS] == marks[group] for group, prompt, _ in work)
    assert max(len(prompt) + n for _, prompt, n in work) < 256 and len({group for group, *_ in work}) > 30


def test_a_foreign_marker_is_found():
    marks = soaked.markers(5)
    work, found = [(0, marks[0] * 5, 8)], soak.Found(1)
    soak.compare(work, [(9, *marks[7], 9, 9, 9)], found, 5, lambda: None)
    assert found.foreign == 1 == found.different
    again = soak.Found(1)
    soak.compare(work, [soaked.Plain("best").answer(*work[0][1:])], again, 5, lambda: None)
    assert again.foreign == 0 == again.different

"""A tier that cannot keep one record says so, once and with the least size that would do."""

import pytest
from crash_bench import chain, get, opened, put

from kvist.tier.disk.places import LEAST_CAPACITY_BYTES, least_capacity


def lines(caplog):
    return [r.getMessage() for r in caplog.records if "keeps nothing" in r.getMessage()]


@pytest.mark.parametrize("size", [1_000_000, 5_000_000])
def test_too_small_for_one_record(tmp_path, caplog, size):
    slot = 4096 + -(-size // 4096) * 4096
    least = least_capacity(slot)
    tier = opened(tmp_path / "c", max(LEAST_CAPACITY_BYTES, least - 4096))
    for name in "ab":
        assert put(tier, chain(name, 2, size=size)) == ["full"] * 2
    tier.close()
    (line,) = lines(caplog)
    assert f"{least:,} bytes" in line
    caplog.clear()
    tier = opened(tmp_path / "d", least)
    a = chain("a", 2, size=size)
    assert put(tier, a) == ["stored", "full"] and get(tier, a[:1]) == (["hit"], True)
    tier.close()
    assert not lines(caplog)


def test_records_that_do_not_fit_together_are_no_reason_to_tell(tmp_path, caplog):
    tier = opened(tmp_path / "c")
    assert put(tier, chain("a", 2000)).count("full") > 0
    tier.close()
    assert not lines(caplog)


def test_the_least_capacity_is_never_below_what_any_tier_must_have():
    assert least_capacity(8192) == LEAST_CAPACITY_BYTES
    sizes = [least_capacity(1 << n) for n in range(13, 31)]
    assert sizes == sorted(sizes) and all(size > 1 << n for n, size in zip(range(13, 31), sizes, strict=True))

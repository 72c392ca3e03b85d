"""Tiers that could never hold a block are refused before anything runs."""

import pytest

pytest.importorskip("torch")

from kvist.config import TierConfig  # noqa: E402
from kvist.errors import BadValue  # noqa: E402
from kvist.runtime.places import close_places, open_places  # noqa: E402
from kvist.units import MIB  # noqa: E402


@pytest.mark.parametrize(("place", "small", "large"), [("disk:{}?size=1MiB&reserve=0", 1, 2), ("ram:500KiB", 0.4, 0.7)])
def test_a_tier_smaller_than_a_block_is_refused_with_the_size(place, small, large, tmp_path):
    config = TierConfig(places=(place.format(tmp_path),))
    with pytest.raises(BadValue, match="[0-9.]+ [KM]iB and its label"):
        open_places(config, int(large * MIB))
    tiers = open_places(config, int(small * MIB))
    assert len(tiers) == 1
    close_places(tiers)

"""Tiers that could never hold a block are refused before anything runs."""

import pytest

pytest.importorskip("torch")

from kvist.config import TierConfig  # noqa: E402
from kvist.errors import BadValue  # noqa: E402
from kvist.runtime.places import close_places, open_places  # noqa: E402


@pytest.mark.parametrize("place", ["disk:{}?size=500KiB&reserve=0", "ram:500KiB"])
def test_a_tier_smaller_than_a_block_is_refused_with_the_size(place, tmp_path):
    config = TierConfig(places=(place.format(tmp_path),))
    with pytest.raises(BadValue, match="720 KiB"):
        open_places(config, 720 * 1024)
    tiers = open_places(config, 400 * 1024)
    assert len(tiers) == 1
    close_places(tiers)

from __future__ import annotations

from predictor.pools import PoolBounds, bounds_of
from predictor.settings import PoolSettings, PredictorSettings

GOLD = PoolSettings(name="gold", match_labels={"pool": "gold"}, reserve_cpu_percent=20.0, cap_memory_percent=50.0)
EAST = PoolSettings(name="east", match_labels={"zone": "east"}, floor_cpu_percent=2.0)


def test_the_first_pool_that_fits_overrides_what_it_names():
    settings = PredictorSettings(pools=(GOLD, EAST))
    both = bounds_of({"pool": "gold", "zone": "east", "x": "y"}, settings)
    assert (both.pool, both.cpu.reserve_percent, both.memory.reserve_percent) == ("gold", 20.0, 5.0)
    assert (both.memory.cap_percent, both.cpu.cap_percent, both.cpu.floor_percent) == (50.0, 100.0, 0.0)
    assert bounds_of({"zone": "east"}, settings).cpu.floor_percent == 2.0
    rest = bounds_of({"pool": "silver"}, settings)
    assert (rest.pool, rest.cpu.reserve_percent) == ("", 5.0)


def test_a_pool_without_labels_is_all_nodes():
    assert bounds_of({}, PredictorSettings(pools=(PoolSettings(name="all"),))).pool == "all"


def test_settings_that_change_are_taken_over():
    known = PoolBounds()
    assert known.of({"pool": "gold"}, PredictorSettings(pools=(GOLD,))).pool == "gold"
    assert known.of({"pool": "gold"}, PredictorSettings()).pool == ""
    assert known.of({"pool": "gold"}, PredictorSettings(pools=(EAST, GOLD))).pool == "gold"

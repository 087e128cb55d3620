from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from predictor.zones import split
from slacktide.forecast import Amount, Zone


def zones(*sizes):
    return [Zone(id=number, capacity=Amount(cpu_millis=size)) for number, size in enumerate(sizes)]


def cpu(value):
    return Amount(cpu_millis=value)


def parts(sizes, reclaimable, needed, pinned=None):
    found = split(zones(*sizes), cpu(reclaimable), {k: cpu(v) for k, v in (pinned or {}).items()}, cpu(needed))
    return [zone.reclaimable.cpu_millis for zone in found]


def test_a_machine_of_one_zone_has_no_split():
    assert split(zones(4000), cpu(1000), {}, cpu(3000)) == ()
    assert split([], cpu(1000), {}, cpu(3000)) == ()


def test_need_is_split_by_size_and_not_equally():
    # Katalyst cccc115a (peers.md, row 26): zones of 24 and 8 cores, 12 needed. Equally would leave 18 and 2.
    assert parts([24000, 8000], 20000, 12000) == [15000, 5000]


def test_a_pinned_pod_burdens_its_own_zone():
    assert parts([8000, 8000], 12000, 4000, {1: 4000}) == [8000, 4000]
    assert parts([8000, 8000], 10000, 6000, {1: 4000}) == [7000, 3000]


def test_what_is_kept_on_the_node_is_kept_in_its_zones():
    assert parts([24000, 8000], 10000, 12000) == [7500, 2500]


def test_an_unknown_amount_stays_unknown():
    assert parts([24000, 8000], None, 12000) == [None, None]
    assert parts([24000, None], 10000, 12000) == [None, None]
    assert parts([24000, 8000], 10000, None) == [None, None]


SIZE = st.integers(0, 64000)


@given(
    st.lists(SIZE, min_size=2, max_size=8),
    SIZE,
    SIZE,
    st.dictionaries(st.integers(0, 7), st.integers(0, 64000), max_size=4),
)
def test_zones_never_sell_more_than_the_node_nor_than_they_have(sizes, reclaimable, needed, pinned):
    found = parts(sizes, reclaimable, needed, pinned)
    if None in found:
        return
    assert sum(found) <= reclaimable
    for zone, part in enumerate(found):
        assert 0 <= part <= max(0, sizes[zone] - pinned.get(zone, 0))

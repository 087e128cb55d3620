"""The slot of a node's pods that is still being filled: pods come and go while it is."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from predictor.pods import CELL_MILLIS, OpenSlot


def values(*numbers):
    return np.asarray(numbers, dtype=np.float32)


def test_several_pods_that_come_at_once_have_a_place_each():
    """Each of them: the second and later ones once fell outside, and the stream of their agent failed."""
    slot = OpenSlot(np.asarray([3, 4]))
    slot.put(np.asarray([4, 9, 3, 7, 8]), 1, values(4, 9, 3, 7, 8), values(40, 90, 30, 70, 80))
    assert slot.columns.tolist() == [3, 4, 9, 7, 8]
    assert slot.cpu[0].tolist() == [3, 4, 9, 7, 8]
    assert slot.memory.tolist() == [30, 40, 90, 70, 80]


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=5, unique=True),
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=8, unique=True), max_size=6),
)
def test_whoever_comes_in_whatever_order_keeps_what_is_its_own(first, windows):
    slot = OpenSlot(np.asarray(first))
    seen = set()
    for cell, columns in enumerate(windows):
        use = values(*columns)
        slot.put(np.asarray(columns), cell * CELL_MILLIS + 1, use, use * 10)
        seen.update(columns)
    assert sorted(slot.columns.tolist()) == sorted({*first, *seen})
    for place, column in enumerate(slot.columns.tolist()):
        told = [cell for cell, columns in enumerate(windows) if column in columns]
        assert np.flatnonzero(~np.isnan(slot.cpu[:, place])).tolist() == told
        assert not told or slot.memory[place] == column * 10

"""What a daemon has at its start is left out of collections."""

from __future__ import annotations

import gc

import pytest

from slacktide.garbage import keep_what_is_here


@pytest.fixture(autouse=True)
def _as_before():
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


@pytest.mark.parametrize("thresholds", [None, (20_000, 30, 40)])
def test_what_is_here_is_kept_out_of_collections(thresholds):
    before = gc.get_threshold()
    here = [[]]
    keep_what_is_here(thresholds)
    assert gc.get_freeze_count() > 0
    assert not any(one is here for one in gc.get_objects())
    assert gc.get_threshold() == (thresholds or before)

from __future__ import annotations

import numpy as np
import pytest

from predictor.backtest.pack import pack, packed


@pytest.fixture
def usage():
    return np.random.default_rng(3).gamma(1.0, 1.0, (50, 23))


def test_each_pass_puts_a_series_on_one_node_at_most(usage):
    packing = pack(usage, 5, 4, seed=1)
    assert packing.nodes == 16
    assert np.bincount(packing.owner).tolist() == [5] * 16
    for number in range(4):
        mine = packing.members[(packing.owner >= 4 * number) & (packing.owner < 4 * number + 4)]
        assert len(set(mine.tolist())) == 20


def test_packing_is_told_by_its_seed(usage):
    one, same, other = (pack(usage, 5, 3, seed) for seed in (1, 1, 2))
    assert one.members.tolist() == same.members.tolist() != other.members.tolist()


def test_odd_passes_put_series_of_like_level_together(usage):
    usage[0] = 50.0
    usage[1:, 12:] = 45.0
    packing = pack(usage, 4, 20, seed=1)
    busy = (packing.members >= 12).reshape(20, -1, 4).mean(axis=2)
    assert busy[1::2].std() > 1.5 * busy[::2].std()


def test_fewer_series_than_a_node_holds_make_one_node(usage):
    assert pack(usage, 99, 1, seed=1).nodes == 1


def test_a_packed_series_asks_for_its_own_peak(usage):
    replay = packed("made", 300.0, 0.0, usage, pack(usage, 5, 2, seed=1))
    assert replay.usage.max(axis=0).tolist() <= replay.limits(10).tolist()
    np.testing.assert_allclose(replay.requested, replay.members.max(axis=0))
    np.testing.assert_allclose(replay.usage[:, 3], replay.members[:, replay.owner == 3].sum(axis=1))

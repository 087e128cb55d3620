from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.backtest.replay import Replay, carry_forward, decision_slots, decisions, node_usage, select

NAN = float("nan")


def make_replay(
    slots=40, members=5, owner=(0, 0, 1, 1, 1), at0=0.0, slot_seconds=300.0, seed=1, gaps=0.0, requested=10.0
):
    rng = np.random.default_rng(seed)
    values = rng.uniform(0, 2, (slots, members))
    values[rng.random(values.shape) < gaps] = NAN
    owner = np.array(owner)
    nodes = int(owner.max()) + 1
    return Replay(
        name="made",
        slot_seconds=slot_seconds,
        at0=at0,
        nodes=tuple(f"n{i}" for i in range(nodes)),
        usage=node_usage(values, owner, nodes),
        members=values,
        owner=owner,
        requested=np.full(members, requested),
    )


def same(one, other):
    np.testing.assert_array_equal(one.usage, other.usage)
    np.testing.assert_array_equal(one.requested, other.requested)
    np.testing.assert_array_equal(one.members.series, other.members.series)
    np.testing.assert_array_equal(one.members.hourly_max, other.members.hourly_max)
    np.testing.assert_array_equal(one.members.hourly_mean, other.members.hourly_mean)
    assert one.at == other.at


@pytest.mark.parametrize("every", [300.0, 1500.0, 3600.0])
def test_what_a_decision_sees_does_not_depend_on_what_comes_later(every):
    replay = make_replay(gaps=0.2)
    for cut in (1, 7, 12, 25, 39):
        members = replay.members.copy()
        members[cut:] = 99.0
        other = dataclasses.replace(replay, members=members, usage=node_usage(members, replay.owner, 2))
        seen = list(zip(decisions(replay, 3600, every), decisions(other, 3600, every), strict=True))
        assert seen
        for (slot, one), (_, changed) in seen:
            if slot < cut:
                same(one, changed)


def test_a_decision_sees_its_own_slot_last_and_is_dated_at_its_end():
    replay = make_replay(at0=3600.0)
    found = dict(decisions(replay, 3600.0))
    assert list(found) == [0, 12, 24, 36]
    np.testing.assert_array_equal(found[12].usage, replay.usage[:13])
    assert found[12].at == 3600.0 + 13 * 300


def test_decisions_fall_on_labels_that_are_whole_hours():
    replay = make_replay(at0=1372629600.0 + 600)
    assert all(replay.label(slot) % 3600 == 0 for slot in decision_slots(replay, 3600))
    assert next(iter(decision_slots(replay, 3600))) == 10


@given(st.integers(0, 39), st.floats(0, 0.9))
def test_hours_end_with_the_decision_and_hold_its_slots_alone(slot, gaps):
    replay = make_replay(gaps=gaps)
    [(_, history)] = decisions(replay, 3600.0, slots=range(slot, slot + 1))
    kept = np.flatnonzero(replay.present(slot))
    for row in range(1, len(history.members.hourly_max) + 1):
        end = slot + 1 - 12 * (row - 1)
        block = replay.members[max(0, end - 12) : end, kept]
        highest = np.fmax.reduce(block, axis=0)
        np.testing.assert_allclose(history.members.hourly_max[-row], highest, rtol=1e-6)
        known = ~np.isnan(highest)
        np.testing.assert_allclose(
            history.members.hourly_mean[-row][known], np.nanmean(block[:, known], axis=0), rtol=1e-6
        )
    assert len(history.members.hourly_max) == -(-(slot + 1) // 12)


def test_only_the_last_fourteen_days_are_handed_on():
    replay = make_replay(slots=20 * 288)
    [(_, history)] = decisions(replay, 3600.0, slots=range(19 * 288, 19 * 288 + 1))
    assert history.usage.shape == (14 * 288, 2)
    assert history.members.hourly_max.shape == (14 * 24, 5)


def test_a_series_counts_from_its_first_sample_until_a_day_after_its_last():
    replay = make_replay(slots=600, members=2, owner=(0, 0))
    replay.members[:100, 1] = NAN
    replay.members[200:, 1] = NAN
    assert [float(replay.limits(slot)[0]) for slot in (99, 100, 199, 199 + 287, 199 + 288)] == [10, 20, 20, 20, 10]
    [(_, before)] = decisions(replay, 3600.0, slots=range(99, 100))
    assert before.members.series.tolist() == [0]


def test_a_request_that_changes_counts_as_it_is_at_the_decision():
    replay = make_replay()
    asked = np.full(replay.members.shape, 1.0)
    asked[20:] = 3.0
    replay = dataclasses.replace(replay, requested=asked)
    assert replay.limits(19).tolist() == [2.0, 3.0]
    assert replay.limits(20).tolist() == [6.0, 9.0]


def test_a_node_with_a_request_that_is_not_known_has_none():
    replay = make_replay()
    replay.requested[0] = NAN
    np.testing.assert_array_equal(replay.limits(5), [NAN, 30.0])


def test_gaps_are_carried_as_far_as_allowed():
    values = np.array([[NAN], [1.0], [NAN], [NAN], [NAN], [2.0]])
    np.testing.assert_array_equal(carry_forward(values, 2)[:, 0], [NAN, 1, 1, 1, NAN, 2])
    np.testing.assert_array_equal(carry_forward(values)[:, 0], [NAN, 1, 1, 1, 1, 2])


def test_a_node_without_any_value_is_a_gap_and_never_zero():
    values = np.array([[NAN, NAN, 1.0], [2.0, NAN, NAN]])
    np.testing.assert_array_equal(node_usage(values, np.array([0, 0, 1]), 2), [[NAN, 1], [2, NAN]])


def test_nodes_are_selected_with_their_members():
    replay = make_replay()
    [(_, history)] = decisions(replay, 3600.0, slots=range(30, 31))
    part = select(history, np.array([1]))
    np.testing.assert_array_equal(part.usage[:, 0], replay.usage[:31, 1])
    assert part.members.series.tolist() == [0, 0, 0]
    np.testing.assert_array_equal(part.members.hourly_max, history.members.hourly_max[:, 2:])

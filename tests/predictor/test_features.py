from __future__ import annotations

import dataclasses
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.models import features as blocks
from predictor.models.base import History, Members
from predictor.models.features import feature_names, features

HOUR = 3600.0
DAY = 86400.0
PER_HOUR = 12


def history(hours, pods=(3, 4, 2), seed=0, gaps=0.0, offset=0):
    """Nodes of some pods each that follow the day and jump now and then."""
    rng = np.random.default_rng(seed)
    count = sum(pods)
    slots = hours * PER_HOUR
    clock = 2 * np.pi * (np.arange(slots) + offset)[:, None] / (24 * PER_HOUR)
    use = 1 + 0.5 * np.sin(clock + rng.uniform(0, 6, count)) + rng.gamma(0.3, 0.5, (slots, count))
    owner = np.repeat(np.arange(len(pods)), pods)
    usage = np.stack([use[:, owner == node].sum(axis=1) for node in range(len(pods))], axis=1)
    usage[rng.random(usage.shape) < gaps] = np.nan
    blocks = use.reshape(hours, PER_HOUR, count)
    members = Members(
        owner, blocks.max(axis=1).astype(np.float32), blocks.mean(axis=1).astype(np.float32), np.full(count, np.nan)
    )
    return History(usage, np.full(len(pods), np.nan), 300.0, 0.0, members)


def column(given, name, horizon=HOUR):
    return features(given, horizon)[1][:, feature_names(horizon).index(name)]


@pytest.mark.parametrize("horizon", [300.0, HOUR, 5 * HOUR, DAY, 3 * DAY])
def test_two_weeks_with_pods_leave_no_feature_unknown(horizon):
    scale, table = features(history(336), horizon)
    assert table.shape == (3, len(feature_names(horizon)))
    assert table.dtype == np.float32
    assert np.isfinite(table).all()
    assert (scale > 0).all()


def test_names_are_unique():
    for horizon in (HOUR, DAY):
        assert len(set(feature_names(horizon))) == len(feature_names(horizon))


def test_features_of_windows_are_what_they_say():
    given = history(336)
    usage = np.asarray(given.usage)
    week = usage[-168 * PER_HOUR :].max(axis=0)
    scale, _ = features(given, HOUR)
    np.testing.assert_allclose(scale, week, rtol=1e-6)
    np.testing.assert_allclose(column(given, "slot_1"), usage[-1] / week, rtol=1e-5)
    np.testing.assert_allclose(column(given, "max_24h"), usage[-288:].max(axis=0) / week, rtol=1e-5)
    np.testing.assert_allclose(column(given, "mean_72h"), usage[-864:].mean(axis=0) / week, rtol=1e-4)
    np.testing.assert_allclose(column(given, "sd_24h"), usage[-288:].std(axis=0) / week, rtol=1e-3)
    np.testing.assert_allclose(column(given, "clock_1d"), usage[-288:][:PER_HOUR].max(axis=0) / week, rtol=1e-5)
    days = usage[-7 * 288 :].reshape(7, 288, -1).max(axis=1)
    np.testing.assert_allclose(column(given, "day_top2"), np.sort(days, axis=0)[-2] / week, rtol=1e-5)


def test_features_of_pods_are_what_they_say():
    given = history(336)
    week = np.asarray(given.usage)[-168 * PER_HOUR :].max(axis=0)
    members = given.members
    for node in range(3):
        mine = members.series == node
        highest = members.hourly_max[:, mine]
        np.testing.assert_allclose(
            column(given, "pods_max_24h")[node], highest[-24:].max(axis=0).sum() / week[node], rtol=1e-5
        )
        gaps = highest[-168:].max(axis=0) - highest[-1]
        np.testing.assert_allclose(
            column(given, "pods_gap_168h")[node], np.sqrt((gaps**2).sum()) / week[node], rtol=1e-4
        )
        np.testing.assert_allclose(
            column(given, "pods_clock_max")[node],
            np.max([highest[-24 * day] for day in range(1, 8)], axis=0).sum() / week[node],
            rtol=1e-5,
        )


def test_a_pod_that_jumps_every_five_hours_is_due():
    highest = np.full((169, 2), 1.0, dtype=np.float32)
    highest[168 - 4 :: -5, 1] = 3.0
    usage = np.repeat(highest.sum(axis=1), PER_HOUR)[:, None]
    members = Members(np.zeros(2, dtype=np.int64), highest, highest, np.full(2, np.nan))
    due = History(usage, np.full(1, np.nan), 300.0, 0.0, members)
    assert column(due, "pods_due")[0] == pytest.approx(0.5)
    shorter = Members(members.series, highest[:-1], highest[:-1], members.requested)
    early = dataclasses.replace(due, usage=usage[:-PER_HOUR], members=shorter)
    assert column(early, "pods_due")[0] == 0.0


@settings(max_examples=15, deadline=None)
@given(st.floats(1e-3, 1e9), st.integers(0, 100), st.sampled_from([HOUR, DAY]))
def test_the_unit_does_not_matter(factor, seed, horizon):
    given_ = history(200, seed=seed)
    members = given_.members
    scaled = dataclasses.replace(
        given_,
        usage=np.asarray(given_.usage) * factor,
        members=Members(
            members.series,
            members.hourly_max * np.float32(factor),
            members.hourly_mean * np.float32(factor),
            members.requested,
        ),
    )
    before, after = features(given_, horizon), features(scaled, horizon)
    np.testing.assert_allclose(after[0], before[0] * factor, rtol=1e-5)
    names = feature_names(horizon)
    stable = [place for place, name in enumerate(names) if not _counts(name)]
    np.testing.assert_allclose(after[1][:, stable], before[1][:, stable], atol=2e-3)


def _counts(name):
    """Features that a value on an edge may move by a whole step."""
    return name.startswith(("since", "share", "pods_due", "pods_jump_fresh", "pods_clock_jumped")) or "above" in name


def test_series_do_not_depend_on_their_neighbours_or_their_order():
    whole = history(200, pods=(2, 5, 3, 4))
    order = np.array([2, 0, 3])
    place = {node: number for number, node in enumerate(order)}
    members = whole.members
    kept = np.flatnonzero(np.isin(members.series, order))[::-1]
    part = History(
        np.asarray(whole.usage)[:, order],
        np.full(3, np.nan),
        300.0,
        0.0,
        Members(
            np.array([place[node] for node in members.series[kept]]),
            members.hourly_max[:, kept],
            members.hourly_mean[:, kept],
            members.requested[kept],
        ),
    )
    for all_of, some in zip(features(whole, HOUR), features(part, HOUR), strict=True):
        np.testing.assert_allclose(some, all_of[order], rtol=1e-4, atol=1e-5)


def test_series_of_several_blocks_say_what_each_block_says(monkeypatch):
    whole = history(30, pods=(2, 0, 3, 1, 4, 2, 5), gaps=0.02)
    scale, table = features(whole, HOUR)
    monkeypatch.setattr(blocks, "_BLOCK", 4)
    in_blocks = features(dataclasses.replace(whole), HOUR)
    np.testing.assert_array_equal(in_blocks[0], scale)
    np.testing.assert_array_equal(in_blocks[1], table)


def test_without_pods_only_their_features_are_unknown():
    given = history(336)
    names = feature_names(HOUR)
    bare = features(dataclasses.replace(given, members=None), HOUR)[1]
    unknown = np.isnan(bare).all(axis=0)
    assert [name for name, gone in zip(names, unknown, strict=True) if gone] == [
        name for name in names if name.startswith("pods_")
    ]
    np.testing.assert_array_equal(bare[:, ~unknown], features(given, HOUR)[1][:, ~unknown])


def test_a_series_without_pods_among_others_that_have_some():
    given = history(336)
    members = given.members
    kept = members.series != 1
    fewer = dataclasses.replace(
        given,
        members=Members(
            members.series[kept], members.hourly_max[:, kept], members.hourly_mean[:, kept], members.requested[kept]
        ),
    )
    table = features(fewer, HOUR)[1]
    pods = [place for place, name in enumerate(feature_names(HOUR)) if name.startswith("pods_")]
    assert np.isnan(table[1, pods]).all()
    np.testing.assert_allclose(table[[0, 2]], features(given, HOUR)[1][[0, 2]], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("hours", [0, 1, 2, 10, 23, 30, 169, 200])
def test_short_histories_and_gaps_are_no_error(hours):
    given = history(336, gaps=0.2)
    members = given.members
    last = slice(len(members.hourly_max) - hours, None)
    short = dataclasses.replace(
        given,
        usage=np.asarray(given.usage)[len(given.usage) - hours * PER_HOUR :],
        members=Members(members.series, members.hourly_max[last], members.hourly_mean[last], members.requested),
    )
    scale, table = features(short, HOUR)
    assert not np.isinf(table).any()
    assert np.isfinite(scale).all() == (hours > 0)


def test_an_idle_series_has_a_size_of_nothing_and_an_unmeasured_one_none():
    usage = np.zeros((24 * PER_HOUR, 2))
    usage[:, 1] = np.nan
    scale, table = features(History(usage, np.full(2, np.nan), 300.0), HOUR)
    assert scale[0] == 0.0
    assert np.isnan(scale[1])
    assert not np.isinf(table).any()


def test_what_is_older_than_two_weeks_changes_nothing():
    given = history(336)
    longer = np.concatenate([np.full((500, 3), 1e6), np.asarray(given.usage)])
    members = given.members
    older = np.full((50, len(members.series)), 1e6, dtype=np.float32)
    old = dataclasses.replace(
        given,
        usage=longer,
        members=Members(
            members.series,
            np.concatenate([older, members.hourly_max]),
            np.concatenate([older, members.hourly_mean]),
            members.requested,
        ),
    )
    for before, after in zip(features(given, HOUR), features(old, HOUR), strict=True):
        np.testing.assert_array_equal(before, after)


def test_slots_of_other_lengths():
    given = history(336)
    hourly = np.asarray(given.usage).reshape(336, PER_HOUR, -1).max(axis=1)
    coarse = features(History(hourly, given.requested, HOUR), HOUR)[1]
    place = feature_names(HOUR).index("max_24h")
    np.testing.assert_allclose(coarse[:, place], column(given, "max_24h"), rtol=1e-6)
    scale, table = features(History(hourly, given.requested, 2 * HOUR), HOUR)
    assert np.isnan(scale).all()
    assert np.isnan(table).all()


def test_features_of_one_history_are_made_once_and_cannot_be_changed():
    usage = np.full((600, 2), 10.0)
    one = History(usage=usage, requested=np.full(2, np.nan), slot_seconds=300.0)
    other = History(usage=2 * usage, requested=np.full(2, np.nan), slot_seconds=300.0)
    scale, table = features(one, 3600.0)
    assert features(one, 3600.0)[1] is table
    assert features(one, 24 * 3600.0)[1] is not table
    assert features(other, 3600.0)[0].tolist() == (2 * scale).tolist()
    with pytest.raises(ValueError, match="read-only"):
        table[0, 0] = 0.0


def test_features_are_let_go_with_their_history():
    history = History(usage=np.full((600, 1), 10.0), requested=np.full(1, np.nan), slot_seconds=300.0)
    table = weakref.ref(features(history, 3600.0)[1])
    assert table() is not None
    del history
    assert table() is None

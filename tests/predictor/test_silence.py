from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.settings import PredictorSettings
from predictor.silence import HEARD, SilenceRules, faded, silence, unchanged_seconds

RULES = SilenceRules(15.0, 900.0)


@pytest.mark.parametrize(("minutes", "low", "high"), [(0, 1.0, 1.0), (3, 0.7, 0.99), (10, 0.2, 0.7), (16, 0.0, 0.0)])
def test_koordinator_case_4_holds_shrinks_shrinks_and_is_zero(minutes, low, high):
    # peer-koordinator.md, section 10, case 4, with the defaults; a cliff at minute 15 there, and only with an event.
    settings = PredictorSettings()
    rules = SilenceRules(settings.stale_seconds, settings.expire_seconds)
    share = silence(60.0 * minutes, 60.0 * minutes, rules).share
    assert low <= share <= high


def test_what_stopped_is_said():
    assert silence(10.0, 10.0, RULES) is HEARD
    assert silence(20.0, 20.0, RULES).words == "no sample from the agent for over 15 s: room fades"
    assert silence(1.0, 20.0, RULES).words == "LS and SYSTEM use not measured for over 15 s: room fades"
    assert silence(900.0, 900.0, RULES).words == "no sample from the agent for over 900 s"
    assert silence(900.0, 900.0, RULES).closed
    assert silence(16.0, 16.0, SilenceRules(15.0, 5.0)).closed


@given(st.floats(0, 2000), st.floats(0, 2000), st.floats(0, 1), st.sampled_from([5.0, 900.0]))
def test_it_says_the_same_for_as_long_as_it_says(heard, measured, part, expire):
    rules = SilenceRules(15.0, expire)
    seconds = min(unchanged_seconds(heard, measured, rules), 10_000.0)
    later = part * max(0.0, seconds - 0.001)
    assert silence(heard + later, measured + later, rules) == silence(heard, measured, rules)


@given(st.integers(0, 10**12), st.integers(0, 10**12), st.lists(st.floats(0, 2000), min_size=2, max_size=20))
def test_time_alone_only_lowers_and_never_below_what_is_sold(reclaimable, sold, ages):
    before = reclaimable
    for age in sorted(ages):
        now = faded(reclaimable, sold, silence(age, age, RULES).share)
        assert min(reclaimable, sold) <= now <= before
        before = now
    assert faded(reclaimable, sold, 0.0) == min(reclaimable, sold)


def test_unknown_stays_unknown():
    assert faded(None, 5, 0.5) is None

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.prometheus.windows import Use, believed, inside, per_window, tiered, to_slots
from predictor.slots import SLOT_SECONDS, percentile_90

AMOUNT = st.one_of(st.none(), st.floats(0, 64))
NAN = math.nan


def row(*values):
    return np.asarray([[NAN if value is None else value for value in values]], dtype=float)


def use(total, pods, be=None, system=None):
    nothing = np.full_like(total, NAN)
    return Use(total, pods, nothing if be is None else be, nothing if system is None else system)


@given(st.lists(AMOUNT, min_size=20, max_size=20))
def test_a_slot_stands_for_its_windows_as_it_does_for_samples(values):
    found = to_slots(row(*values), 15, 15)
    known = [value for value in values if value is not None]
    if len(known) < 10:
        assert np.isnan(found.p90[0, 0])
        return
    assert found.p90[0, 0] == percentile_90(known)
    assert found.highest[0, 0] == max(known)
    assert found.mean[0, 0] == pytest.approx(sum(known) / len(known))
    assert found.share[0, 0] == len(known) / 20


def test_windows_that_reach_back_into_the_slot_before_do_not_count():
    assert list(np.flatnonzero(inside(30, 90))) == [2, 3, 4, 5, 6, 7, 8, 9]
    found = to_slots(row(9, 9, *[1] * 8, *[2] * 10), 30, 90)
    assert found.p90.tolist() == [[1.0, 2.0]]


def test_where_too_few_windows_fit_into_a_slot_all_that_end_in_it_count():
    assert inside(60, 300).all()
    assert inside(60, 780).all()
    assert inside(300, 300).tolist() == [True]


def test_a_slot_of_which_less_than_half_was_measured_is_a_gap():
    assert np.isnan(to_slots(row(*[1] * 4, *[None] * 6), 30, 30).p90[0, 0])
    assert to_slots(row(*[1] * 5, *[None] * 5), 30, 30).p90[0, 0] == 1.0


@given(st.floats(0, 64), st.floats(0, 64), st.floats(0, 8), st.floats(0, 8))
def test_protected_is_all_but_best_effort_and_never_below_what_ls_pods_use(total, pods, be, other):
    found = tiered(use(row(total), row(pods), row(be), row(other)))
    ls, system, protected = found.ls[0, 0], found.system[0, 0], found.protected[0, 0]
    assert system >= 0
    assert protected == pytest.approx(ls + system)
    assert protected >= total - be - 1e-9
    assert ls >= pods - be - other - 1e-9
    assert system >= other


def test_what_is_unknown_is_a_gap_and_never_zero():
    without_total = tiered(use(row(None), row(2.0)))
    assert np.isnan(without_total.system[0, 0])
    assert np.isnan(without_total.protected[0, 0])
    assert without_total.ls[0, 0] == 2.0
    without_pods = tiered(use(row(3.0), row(None)))
    assert np.isnan(without_pods.ls[0, 0])
    assert np.isnan(without_pods.be[0, 0])
    assert without_pods.protected[0, 0] == 3.0


def test_removing_a_best_effort_mark_never_lowers_what_is_protected():
    marked = tiered(use(row(5.0), row(4.0), row(1.5)))
    unmarked = tiered(use(row(5.0), row(4.0)))
    assert unmarked.protected[0, 0] >= marked.protected[0, 0]


def test_use_beyond_the_machine_is_refused_and_counted():
    values = use(row(3.0, 9.0, 3.0, 3.0), row(2.0, 2.0, 9.0, -1.0))
    kept, refused = believed(values, row(8.0, 8.0, 8.0, 8.0))
    assert np.isnan(kept.total[0]).tolist() == [False, True, True, True]
    assert np.isnan(kept.pods[0]).tolist() == [False, True, True, True]
    assert refused == 6
    kept, refused = believed(values, row(None, None, None, None))
    assert refused == 2  # only the negative window


def test_a_value_of_a_slot_is_one_of_each_of_its_windows():
    assert per_window(row(1.0, 2.0), SLOT_SECONDS // 100).tolist() == [[1, 1, 1, 2, 2, 2]]

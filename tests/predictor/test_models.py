from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from predictor import models
from predictor.models.base import History

RISKS = np.array([0.01, 0.05])
VALUES = st.one_of(st.just(float("nan")), st.floats(0, 1e6))
USAGE = arrays.arrays(np.float64, st.tuples(st.integers(1, 20), st.integers(0, 4)), elements=VALUES)


def history(usage, slot_seconds=300.0):
    return History(
        usage=np.asarray(usage, dtype=float), requested=np.full(np.shape(usage)[1], np.nan), slot_seconds=slot_seconds
    )


def brute_force(usage, slots):
    answers = []
    for column in range(usage.shape[1]):
        seen = [value for value in usage[-slots:, column] if value == value]
        answers.append(max(seen) if seen else float("nan"))
    return answers


@given(USAGE, st.integers(1, 25))
def test_window_max_is_the_highest_value_of_its_window(usage, slots):
    model = models.create("window_max", window_days=slots * 300 / 86400)
    peaks = model.predict(history(usage), 3600.0, RISKS)
    assert peaks.shape == (2, usage.shape[1])
    np.testing.assert_array_equal(peaks[0], brute_force(usage, slots))
    np.testing.assert_array_equal(peaks[0], peaks[1])


def test_window_max_looks_back_seven_days_by_default():
    usage = np.full((8 * 288, 1), 10.0)
    usage[287] = 99.0
    usage[288] = 50.0
    assert models.create("window_max").predict(history(usage), 3600.0, RISKS)[0, 0] == 50.0


def test_window_max_of_gaps_alone_is_not_known():
    peaks = models.create("window_max").predict(history([[np.nan, 4.0], [np.nan, np.nan]]), 3600.0, RISKS)
    assert np.isnan(peaks[0, 0])
    assert peaks[0, 1] == 4.0


@given(USAGE, st.integers(0, 3), st.floats(0, 1e6))
def test_adding_use_never_lowers_the_peak(usage, column, extra):
    column = min(column, usage.shape[1] - 1)
    more = usage.copy()
    if column >= 0:
        more[-1, column] = np.fmax(more[-1, column], 0) + extra
    model = models.create("window_max")
    before, after = (model.predict(history(u), 3600.0, RISKS)[0] for u in (usage, more))
    assert np.all((after >= before) | np.isnan(before))


def test_an_unknown_model_lists_the_known_ones():
    with pytest.raises(models.UnknownModel, match=r"'windowmax' is not known.*window_max"):
        models.create("windowmax")


def test_the_predictor_starts_without_pandas_and_statsmodels():
    code = (
        "import sys, predictor.main; sys.exit(bool({'pandas', 'statsmodels', 'scipy', 'pyarrow'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0

"""Fits the model `quantile_regression`: for each set of features and each risk one regression (statsmodels)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from statsmodels.regression.quantile_regression import QuantReg
from statsmodels.tools.sm_exceptions import IterationLimitWarning

from predictor.models.base import Floats
from predictor.models.quantile_regression import SETS, design, linear_shares
from predictor.training.location_scale import RISKS
from predictor.training.rows import Rows, folds_of

_ROWS_OF_A_TRACE: Final = 1500
"""So that each trace weighs the same; more rows change nothing but the time it takes."""


def fit(traces: Mapping[str, Rows], names: tuple[str, ...], risks: Sequence[float] = RISKS) -> dict[str, Floats]:
    """Weights (risks, 1 + features) of each set, from the rows whose history is long enough for it.

    A set that no row has history for is absent.
    """
    rng = np.random.default_rng(7)
    fitted = {}
    for label, used, least in SETS:
        inputs, peaks = [], []
        for rows in traces.values():
            values = design(rows.table, names, used)
            hours = rows.table[:, names.index("hours_known")]
            ready = np.flatnonzero(np.isfinite(values).all(axis=1) & (hours >= least))
            if len(ready):
                # A trace with few rows counts as often as one with many.
                ready = rng.choice(ready, _ROWS_OF_A_TRACE, replace=len(ready) < _ROWS_OF_A_TRACE)
                inputs.append(values[ready])
                peaks.append(rows.peak[ready])
        if inputs:
            fitted[f"{label}.weights"] = _regressions(np.concatenate(inputs), np.concatenate(peaks), risks)
    return fitted


def outside(traces: Mapping[str, Rows], names: tuple[str, ...], risks: Sequence[float] = RISKS) -> dict[str, Floats]:
    """(risks, rows) of each trace: what weights that were fitted on the other folds answer."""
    said = {name: np.full((len(risks), len(rows.peak)), np.nan) for name, rows in traces.items()}
    for fold in folds_of(list(traces.values())):
        weights = fit({name: rows.where(rows.fold != fold) for name, rows in traces.items()}, names, risks)
        for name, rows in traces.items():
            mine = rows.fold == fold
            said[name][:, mine] = linear_shares(weights, rows.table[mine], names)
    return said


def _regressions(inputs: Floats, peaks: Floats, risks: Sequence[float]) -> Floats:
    regression = QuantReg(peaks, inputs)
    with warnings.catch_warnings():
        # The weights it stopped at are as good as those after more iterations: the loss no longer changes.
        warnings.simplefilter("ignore", IterationLimitWarning)
        return np.array([regression.fit(1.0 - risk, max_iter=100, p_tol=1e-3).params for risk in risks])

"""The prior of residuals: how far peaks rose above what models said that had not seen the series.

For each model, horizon, group of history length, level asked and trace one sketch (predictor.prior). All of it is out
of fold. Rows whose history was cut short stand for young nodes; planetlab's days are young by nature.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from predictor.models.base import Floats
from predictor.prior import Entry, Group, Resource
from predictor.sketch import Sketch
from predictor.training.rows import Rows

LEVELS: Final = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
_LEAST_ROWS: Final = 300
_ASKED: Final = 0.01
"""The level that a model which answers every risk alike is scored at."""
_YOUNGEST_HOURS: Final = 8.0
"""Younger nodes count with their requests."""
_GROUPS: Final = ((Group.DAY, _YOUNGEST_HOURS, 24.0), (Group.WEEK, 24.0, 168.0), (Group.LONG, 168.0, np.inf))


def entries(
    resource: Resource,
    model: str,
    horizon_seconds: float,
    source: str,
    rows: Rows,
    hours_known: Floats,
    said: Mapping[float, Floats],
) -> Iterator[Entry]:
    """Entries of one model on one trace.

    hours_known  (rows,) hours of history behind each row.
    said         level -> (rows,) what the model answered out of fold, in shares of S, NaN where it could not; level 0
                 for a model that answers every risk alike.
    """
    for group, least, below in _GROUPS:
        mine = (hours_known >= least) & (hours_known < below)
        for level, answers in said.items():
            residuals = (rows.peak - answers)[mine]
            if np.count_nonzero(~np.isnan(residuals)) >= _LEAST_ROWS:
                packed = Sketch.of(residuals).pack()
                yield Entry(resource, model, horizon_seconds, group, level, source, packed)


def line(model: str, hours: int, source: str, level: float, rows: Rows, said: Floats) -> str:
    """What a model gave on the rows that are scored: savings and violations."""
    scored = rows.scored & ~np.isnan(said)
    answers, peaks, limits = said[scored], rows.peak[scored], rows.limit[scored]
    if not len(answers):
        return f"{model} {hours}h {source} level {level}: nothing to score"
    residual = peaks - answers
    rank = int((1.0 - (level or _ASKED)) * (len(residual) - 1))
    exact = answers + np.partition(residual, rank)[rank]
    return (
        f"{model} {hours}h {source} level {level}: savings {_savings(answers, limits):.1f} %, "
        f"violations {100 * np.mean(residual > 0):.2f} %; at exactly the level {_savings(exact, limits):.1f} %"
    )


def _savings(answers: Floats, limits: Floats) -> float:
    return float(100 * np.mean(1 - np.clip(answers / limits, 0, 1)))

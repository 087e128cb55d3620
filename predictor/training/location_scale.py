"""Fits the model `boosted`: trees for where the peak is, trees for how far it strays, and the reach of each risk.

Deviations are those of out-of-fold locations, and the reach is that of out-of-fold locations and deviations: inside
the folds they were fitted on, trees know the answer and look better than they are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

import lightgbm
import numpy as np
import numpy.typing as npt

from predictor.models.base import Floats
from predictor.models.boosted import reach_needed, reached
from predictor.models.node_features import WEEK
from predictor.models.trees import Trees
from predictor.training.convert import trees_of
from predictor.training.rows import Rows, folds_of

RISKS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)

ROUNDS: Final = 200
"""Trees of each set."""
_PARAMETERS: Final[Mapping[str, Any]] = {
    "num_leaves": 15,
    "learning_rate": 0.07,
    "min_data_in_leaf": 200,
    "max_bin": 63,
    "feature_fraction": 0.2,
    "bagging_fraction": 0.5,
    "bagging_freq": 1,
    "lambda_l2": 10.0,
    "seed": 7,
    "deterministic": True,
    "force_row_wise": True,
    "num_threads": 1,
    "verbosity": -1,
}
_CUT_PART: Final = 0.15
"""Part of a trace's weight that rows with shortened histories have."""
STRAIGHT: Final = (1.0, 1.0)
"""A bend that bends nothing."""
_LEAST_RESIDUAL: Final = 0.001
"""Added to deviations: their logarithm is fitted, and a constant series has none."""


@dataclasses.dataclass(frozen=True, slots=True)
class Fitted:
    """location, deviation: trees (deviation: of the logarithm). reach (2, risks), bend (2,): see `reached`."""

    location: Trees
    deviation: Trees
    reach: Floats
    bend: Floats

    def answer(self, rows: Rows) -> Floats:
        """(risks, rows) in shares of S."""
        return self.shares(Outside(rows, self.location.predict(rows.table), np.exp(self.deviation.predict(rows.table))))

    def shares(self, said: Outside) -> Floats:
        """(risks, rows) of locations and deviations."""
        return reached(said.location, said.deviation, self.reach, self.bend, said.rows.hours_known)


@dataclasses.dataclass(frozen=True, slots=True)
class Outside:
    """Location and deviation (rows,) of one trace's rows, out of fold where they are for fitting or scoring."""

    rows: Rows
    location: Floats
    deviation: Floats


def fit(
    traces: Mapping[str, Rows], bend: Sequence[float] = STRAIGHT, rounds: int = ROUNDS
) -> tuple[Fitted, dict[str, Outside]]:
    """Weights from the rows of all traces, each trace weighing the same, and what was said out of fold."""
    rows = list(traces.values())
    peaks = [part.peak for part in rows]
    location, inside = _outside(rows, peaks, "l2", rounds)
    strayed = [np.abs(part.peak - said) + _LEAST_RESIDUAL for part, said in zip(rows, inside, strict=True)]
    deviation, spread = _outside(rows, strayed, "gamma", rounds)
    outside = {
        name: Outside(part, at, np.exp(by)) for name, part, at, by in zip(traces, rows, inside, spread, strict=True)
    }
    bent = np.array(bend, dtype=np.float64)
    return Fitted(location, deviation, reaches(list(outside.values()), bent), bent), outside


def _outside(
    rows: Sequence[Rows], targets: Sequence[Floats], objective: str, rounds: int
) -> tuple[Trees, list[Floats]]:
    """Trees fitted on all rows, and what those fitted on the other folds say of each fold (raw scores)."""
    said = [np.empty(len(target)) for target in targets]
    for fold in folds_of(rows):
        trees = _fit_trees(rows, targets, [part.fold != fold for part in rows], objective, rounds)
        for part, out in zip(rows, said, strict=True):
            mine = part.fold == fold
            out[mine] = trees.predict(part.table[mine])
    return _fit_trees(
        rows, targets, [np.ones(len(part.peak), dtype=np.bool_) for part in rows], objective, rounds
    ), said


def _fit_trees(
    rows: Sequence[Rows], targets: Sequence[Floats], kept: Sequence[npt.NDArray[np.bool_]], objective: str, rounds: int
) -> Trees:
    table = np.concatenate([part.table[mine] for part, mine in zip(rows, kept, strict=True)])
    target = np.concatenate([values[mine] for values, mine in zip(targets, kept, strict=True)])
    weight = np.concatenate([weights_of(part.where(mine)) for part, mine in zip(rows, kept, strict=True)])
    data = lightgbm.Dataset(table, target, weight=weight / weight.mean(), params=dict(_PARAMETERS))
    return trees_of(lightgbm.train({**_PARAMETERS, "objective": objective}, data, rounds))


def weights_of(rows: Rows) -> Floats:
    """(rows,) weights of a trace, 1 in all: its rows with shortened histories get a fixed small part.

    They stray far, and with as much weight as the others they spoil what is said of nodes that are known for long:
    at 24 h by five points of savings on google.
    """
    weight = np.ones(len(rows.peak))
    if rows.cut.any() and not rows.cut.all():
        weight[rows.cut] = _CUT_PART / np.count_nonzero(rows.cut)
        weight[~rows.cut] = (1.0 - _CUT_PART) / np.count_nonzero(~rows.cut)
    return np.asarray(weight / weight.sum(), dtype=np.float64)


def reaches(parts: Sequence[Outside], bend: Floats) -> Floats:
    """(2, risks) reach of each risk, of rows with less than a week of history and of the others: by it as many peaks
    are above the answer as the risk says, mean over traces.

    Where nothing is bent, or where one of the two has no rows, both have the reach of all rows.
    """
    needed = np.concatenate(
        [reach_needed(part.location, part.deviation, part.rows.peak, bend, part.rows.hours_known) for part in parts]
    )
    weight = np.concatenate([weights_of(part.rows) for part in parts])
    known = np.concatenate([part.rows.hours_known for part in parts]) >= WEEK
    if known.all() or not known.any() or tuple(bend) == STRAIGHT:
        return np.tile(_covering(needed, weight), (2, 1))
    return np.array([_covering(needed[mine], weight[mine]) for mine in (~known, known)])


def _covering(needed: Floats, weight: Floats) -> Floats:
    """(risks,) reaches that as much of the weight needs more than as the risk says."""
    order = np.argsort(needed)
    covered = np.cumsum(weight[order])
    places = np.searchsorted(covered, (1.0 - np.array(RISKS)) * covered[-1])
    return np.asarray(needed[order][places], dtype=np.float64)

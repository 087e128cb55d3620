"""What has to be added to a model's answer so that the risk that was asked becomes true. No I/O, no clock.

The shift is a quantile of residuals (peak - forecast) / S (predictor.sketch), pooled over the fleet: the fleet's own of
the last weeks, mixed with the shipped ones of the model (predictor.prior) that stand for a fleet nobody has seen.
A group of nodes with little of its own borrows from the others. Mixing bounds the error: with as much prior as own
weight, the own tail above the shift is at most twice the risk.

On top, a feedback: violations of late are counted beside those that the quantile allowed, and it is asked for as much
more or less as they differ, within bounds. It takes out what the mixture leaves: a prior that is too wide or too narrow
for this fleet, and what releasing slowly adds. Both counts begin at a few, so that a small fleet, where one violation
says little, hardly moves, and a large one is corrected within hours. Source: overcommit.md section 8; Gibbs and Candes,
"Adaptive conformal inference under distribution shift", NeurIPS 2021, whose constant step swings in small fleets.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from predictor.confidence import GROUPS
from predictor.models.base import DAY_SECONDS, Floats, Integers
from predictor.prior import Group
from predictor.sketch import EDGES, Sketch

STRICTEST: Final = -1.2
LOOSEST: Final = 1.0
"""Bounds of the feedback: logarithm of the factor on the asked risk. Never looser than asked where horizons overlap:
outcomes come late there, and a quiet day would be taken for too much reserve."""

_ALLOWED: Final = 10.0
"""Violations, allowed and met, that both counts of the feedback begin with. Violations of a small fleet come by chance:
a level that answers each of them swings, and risk that swings costs more than it saves."""

_BLIND_AT_ONE_PERCENT: Final = 0.2
"""Share of S that is added at 1 % risk when neither prior nor own residuals are there: the cautious end of what the
models need (overcommit.md: 0.02 to 0.2)."""
_BLIND_WEIGHT: Final = 0.1


@dataclasses.dataclass(frozen=True, slots=True)
class CalibrationRules:
    """The asked risk and how own and prior residuals are weighed; see EngineSettings."""

    risk: float
    days: float
    prior_weight_days: float
    prior_nodes: int
    feedback_per_day: float
    loosens: bool
    decisions_per_day: float


def blind() -> Sketch:
    """Residuals of a model that nothing is known of: an exponential tail, 1 % of it above a fifth of S.

    It weighs a tenth of what a prior does: it is no knowledge, so own outcomes are believed sooner.
    """
    rate = math.log(100.0) / _BLIND_AT_ONE_PERCENT
    tail = np.exp(-rate * np.maximum(EDGES, 0.0))
    tail[EDGES < 0] = 1.0
    return Sketch(-np.diff(tail, prepend=1.0))


class Calibration:
    """The residuals of one model and the shift they ask for."""

    def __init__(self, rules: CalibrationRules, prior: Mapping[Group, Mapping[str, Sketch]]) -> None:
        self._rules = rules
        self._prior = tuple(_mixed(prior.get(group, {})) for group in GROUPS)
        self.days: dict[tuple[int, int], Sketch] = {}
        """Own residuals by (day since the epoch, index of the group)."""
        self.allowed = 0.0
        """Violations of late that the level allowed; older ones count less."""
        self.met = 0.0
        """Violations of late."""

    @property
    def level(self) -> float:
        """Logarithm of the factor on the asked risk that feedback has come to."""
        found = math.log((_ALLOWED + self.allowed) / (_ALLOWED + self.met))
        return min(LOOSEST if self._rules.loosens else 0.0, max(STRICTEST, found))

    def learn(self, at: float, residuals: Floats, groups: Integers, violated: float | None) -> None:
        """Take in the outcome of one decision.

        at         when it was made.
        residuals  (nodes,) and groups (nodes,) of the nodes that can be judged.
        violated   share of them whose peak rose above this model's calibrated answer; None when it had none.
        """
        rules, day = self._rules, int(at // DAY_SECONDS)
        for index in np.unique(groups):
            key = day, int(index)
            self.days[key] = self.days.get(key, Sketch.empty()) + Sketch.of(residuals[groups == index])
        oldest = day - math.ceil(rules.days)
        self.days = {key: sketch for key, sketch in self.days.items() if key[0] > oldest}
        if violated is not None and rules.feedback_per_day > 0:
            kept = math.exp(-rules.feedback_per_day / rules.decisions_per_day)
            nominal = min(0.5, rules.risk * math.exp(self.level))
            self.allowed = self.allowed * kept + nominal * len(residuals)
            self.met = self.met * kept + violated * len(residuals)

    def shifts(self, nodes: int, factor: float = 1.0) -> Floats:
        """(groups,) shares of S to add, for a fleet of `nodes`, at the asked risk times `factor`."""
        rules = self._rules
        risk = min(0.5, rules.risk * math.exp(self.level) * factor)
        full = rules.decisions_per_day * min(max(1, nodes), rules.prior_nodes)
        own = [self._own(index) for index in range(len(GROUPS))]
        answer = np.empty(len(GROUPS))
        for index, (prior, samples) in enumerate(self._prior):
            fleet = own[index] + _borrowed(own, index, rules.days * full)
            mixed = fleet + prior.scaled(rules.prior_weight_days * full)
            answer[index] = _covering(mixed, risk, fleet.total + samples)
        return answer

    def _own(self, index: int) -> Sketch:
        return sum((sketch for (_, group), sketch in self.days.items() if group == index), Sketch.empty())


def _borrowed(own: list[Sketch], index: int, full: float) -> Sketch:
    """What the other groups lend to one that has less than `full` weight of its own."""
    others = sum((sketch for other, sketch in enumerate(own) if other != index), Sketch.empty())
    return others.weighing(min(others.total, max(0.0, full - own[index].total)))


def _mixed(sources: Mapping[str, Sketch]) -> tuple[Sketch, float]:
    """One sketch in which every trace counts alike, and how many residuals it was made from; its weight is 1."""
    mixed = sum((sketch.weighing(1.0) for sketch in sources.values()), Sketch.empty())
    if mixed.total <= 0:
        return blind().weighing(_BLIND_WEIGHT), math.inf
    return mixed.weighing(1.0), sum(sketch.total for sketch in sources.values())


def _covering(sketch: Sketch, risk: float, samples: float) -> float:
    """The quantile, or the highest residual ever seen where there are too few for the risk."""
    answer = sketch.quantile(risk, samples)
    return answer if not math.isnan(answer) else float(EDGES[np.flatnonzero(sketch.counts)[-1]])

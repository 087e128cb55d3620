"""Signs that the past no longer tells the future, for the fleet and for one node, and what they widen. Pure.

Fleet: more of the forecasts of the last hours are already exceeded than chance allows. Node: its use stands above
anything seen in a week (a deploy, a scale-out), or it has violated far more often than asked for days.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from predictor.confidence import highest
from predictor.models.base import HOUR_SECONDS, WEEK_SECONDS, Floats, History

ALIKE: Final = 4.0
"""So many nodes that violate at one moment are worth one independent one."""

_CHANCE: Final = 1e-4
"""A fleet is alarmed by what chance brings once in 10,000 moments: about once a year of hourly ones."""
_NODE_CHANCE: Final = 1e-3


def tail(hits: npt.ArrayLike, trials: npt.ArrayLike, risk: float) -> Floats:
    """Chance of at least `hits` of `trials` at `risk` each: the Chernoff bound on the binomial tail, so never too low.

    Arrays of one shape, any non-negative numbers, fractions too; 1 where no more than expected were hit.
    """
    hit, of = np.asarray(hits, dtype=np.float64), np.maximum(np.asarray(trials, dtype=np.float64), 1e-12)
    rate = np.minimum(hit / of, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        upper = np.where(rate > 0, rate * np.log(rate / risk), 0.0)
        lower = np.where(rate < 1, (1 - rate) * np.log((1 - rate) / (1 - risk)), 0.0)
    return np.where(rate > risk, np.exp(-of * (upper + lower)), 1.0)


class Alarm(msgspec.Struct):
    """Whether the fleet is being surprised. `strength` is 1 when it was just told and halves with time."""

    strength: float = 0.0
    at: float = -math.inf

    def now(self, at: float, half_life_seconds: float) -> float:
        """Strength at `at`, 0 to 1; under 5 % it is over."""
        if self.strength <= 0:
            return 0.0
        left = self.strength * 0.5 ** (max(0.0, at - self.at) / half_life_seconds)
        return left if left >= 0.05 else 0.0


def surprised(violations: float, decisions: float, risk: float) -> bool:
    """Whether `violations` of the `decisions` of the last hours are more than chance allows at `risk`.

    Never by a single independent violation, which is all that a small fleet needs to look surprised.
    """
    return violations > ALIKE and bool(tail(violations / ALIKE, decisions / ALIKE, risk) < _CHANCE)


def risen(history: History, margin: float) -> npt.NDArray[np.bool_]:
    """(series,) whether the newest slots all stand above anything in the week before, by `margin` of that.

    A quarter of an hour without a break: one spike is no new level.
    """
    hour = max(1, round(HOUR_SECONDS / history.slot_seconds))
    week = round(WEEK_SECONDS / history.slot_seconds)
    if len(history.usage) <= hour:
        return np.zeros(history.usage.shape[1], dtype=np.bool_)
    before = highest(history.usage[-week - hour : -hour])
    # The lowest of them is NaN with any gap among them, and no evidence of a change.
    level = np.min(history.usage[-min(hour, 3) :], axis=0)
    return np.asarray(level > before * (1.0 + margin), dtype=np.bool_)


@dataclasses.dataclass(frozen=True, slots=True)
class ExceptionRules:
    """When a node is an exception, and what it gets.

    kept     share of the past that still counts at the next decision.
    step     share of S that a violation adds.
    overlap  how many decisions in a row share one horizon, and so are worth one.
    """

    risk: float
    kept: float
    step: float
    overlap: float


@dataclasses.dataclass(slots=True)
class Exceptions:
    """Nodes that violate persistently get a shift of their own, and lose it when they have behaved for long.

    Decayed counts, (nodes,) float32 each: decisions, violations, and `extra`, the share of S that is added: 0 until the
    node violates significantly more than twice the asked risk; from then on up by a step with every violation, and down
    by what balances it at twice the risk.
    """

    decisions: npt.NDArray[np.float32]
    violations: npt.NDArray[np.float32]
    extra: npt.NDArray[np.float32]

    @classmethod
    def none(cls, nodes: int) -> Exceptions:
        """For nodes that nothing is known of."""
        return cls(*(np.zeros(nodes, dtype=np.float32) for _ in range(3)))

    def learn(self, rows: npt.NDArray[np.int64], violated: npt.NDArray[np.bool_], rules: ExceptionRules) -> None:
        """One decision's outcome for the nodes in `rows`."""
        decisions = self.decisions[rows] * rules.kept + 1.0
        violations = self.violations[rows] * rules.kept + violated
        allowed, step = 2.0 * rules.risk, rules.step / rules.overlap
        moved = np.clip(self.extra[rows] + step * np.where(violated, 1.0, -allowed), 0.0, 1.0)
        chance = tail(violations / rules.overlap, decisions / rules.overlap, allowed)
        persistent = (chance < _NODE_CHANCE) & (violations > 2.0 * rules.overlap) & violated
        begun = np.where(persistent, 2.0 * rules.step, 0.0)
        self.decisions[rows], self.violations[rows] = decisions, violations
        self.extra[rows] = np.where(self.extra[rows] > 0, moved, begun)

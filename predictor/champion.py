"""Which model's answer is published: measured violation first, savings second, and not a new one every hour. Pure.

Every candidate makes its calibrated forecast in shadow at each decision, and all are judged on the same nodes. The
first candidate is champion until another one is clearly better.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Final

import msgspec

from predictor.models.base import DAY_SECONDS

_Z: Final = 1.645
_ALIKE: Final = 4.0
"""Violations of nodes at one moment are not independent: so many of them are worth one (overcommit.md: nodes share
series and hours)."""


@dataclasses.dataclass(frozen=True, slots=True)
class ModelScore:
    """How one candidate did in shadow; older decisions count less.

    violation  share of decisions whose peak rose above the calibrated answer; NaN before the first outcome.
    bound      upper end of its one-sided 95 % interval.
    reserve    mean of the calibrated answer over S: less is more to sell; NaN before the first outcome.
    decisions  outcomes seen, one a node and decision, by their weight now.
    failures   times it raised an error since the start.
    shift      share of S added to its answer for nodes with a week of history.
    """

    model: str
    champion: bool
    violation: float
    bound: float
    reserve: float
    decisions: float
    failures: int
    shift: float


class Tally(msgspec.Struct):
    """What one candidate's decisions add up to, with exponential forgetting."""

    decisions: float = 0.0
    violations: float = 0.0
    reserve: float = 0.0

    def add(self, decisions: int, violations: int, reserve: float, kept: float) -> None:
        """One moment's outcomes; `kept` is the share of the past that is still remembered."""
        self.decisions = self.decisions * kept + decisions
        self.violations = self.violations * kept + violations
        self.reserve = self.reserve * kept + reserve

    @property
    def violation(self) -> float:
        """Share of decisions that were violated; NaN when none was made."""
        return self.violations / self.decisions if self.decisions else math.nan

    @property
    def mean_reserve(self) -> float:
        """Mean of the answers over S; NaN when none was made."""
        return self.reserve / self.decisions if self.decisions else math.nan

    def interval(self) -> tuple[float, float]:
        """One-sided 95 % bounds of the violation rate (Wilson), each _ALIKE decisions counting as one."""
        count = self.decisions / _ALIKE
        if count <= 0:
            return 0.0, 1.0
        rate, z2 = self.violation, _Z * _Z
        middle = (rate + z2 / (2 * count)) / (1 + z2 / count)
        half = _Z / (1 + z2 / count) * math.sqrt(rate * (1 - rate) / count + z2 / (4 * count * count))
        return max(0.0, middle - half), min(1.0, middle + half)


@dataclasses.dataclass(frozen=True, slots=True)
class ChampionRules:
    """When a challenger takes over; see EngineSettings."""

    risk: float
    tolerance: float
    margin: float
    wait_seconds: float
    memory_days: float
    least_decisions: float


class Champion(msgspec.Struct):
    """The reigning candidate, and the one that has been better for a while."""

    index: int = 0
    challenger: int = -1
    since: float = 0.0
    reason: str = "first candidate"


def kept(elapsed_seconds: float, rules: ChampionRules) -> float:
    """Share of a tally that is remembered after `elapsed_seconds`."""
    return math.exp(-max(0.0, elapsed_seconds) / (rules.memory_days * DAY_SECONDS))


def judge(
    champion: Champion, tallies: Sequence[Tally], names: Sequence[str], at: float, rules: ChampionRules
) -> Champion:
    """The champion after the outcomes known at `at`.

    A champion that surely violates more than tolerated gives way to the one that violates least. Otherwise a
    challenger must reserve less by the margin, and violate no more than tolerated. It takes over when it has been
    ahead for the waiting time without a break.
    """
    best, why = _best(champion.index, tallies, names, rules)
    if best == champion.index:
        return Champion(champion.index, -1, at, champion.reason)
    if best != champion.challenger:
        return Champion(champion.index, best, at, champion.reason)
    if at - champion.since < rules.wait_seconds:
        return champion
    return Champion(best, -1, at, why)


def _best(reigning: int, tallies: Sequence[Tally], names: Sequence[str], rules: ChampionRules) -> tuple[int, str]:
    known = [i for i, tally in enumerate(tallies) if tally.decisions >= rules.least_decisions]
    if reigning not in known:
        return reigning, ""
    if tallies[reigning].interval()[0] > rules.risk * rules.tolerance:
        return _calmest(reigning, known, tallies, names, rules)
    return _cheapest(reigning, known, tallies, names, rules)


def _calmest(
    reigning: int, known: Sequence[int], tallies: Sequence[Tally], names: Sequence[str], rules: ChampionRules
) -> tuple[int, str]:
    """For a champion that is surely beyond what is tolerated: the one that violates least, if surely less than it."""
    now = tallies[reigning].violation
    best = min(
        (i for i in known if tallies[i].interval()[1] < now), key=lambda i: (tallies[i].violation, i), default=-1
    )
    if best < 0:
        return reigning, ""
    return best, (
        f"{names[reigning]} violated {now:.2%} where {rules.risk:.2%} was asked, "
        f"{names[best]} {tallies[best].violation:.2%}"
    )


def _cheapest(
    reigning: int, known: Sequence[int], tallies: Sequence[Tally], names: Sequence[str], rules: ChampionRules
) -> tuple[int, str]:
    """The one that reserves least of those that violate within what is tolerated, or hardly more than the champion."""
    now = tallies[reigning]
    allowed = max(rules.risk, now.violation) * rules.tolerance
    safe = [i for i in known if tallies[i].violation <= allowed]
    best = min(safe, key=lambda i: (tallies[i].mean_reserve, i != reigning, i))
    gain = 1.0 - tallies[best].mean_reserve / now.mean_reserve if now.mean_reserve > 0 else 0.0
    if gain < rules.margin:
        return reigning, ""
    return best, (
        f"{names[best]} reserves {gain:.1%} less than {names[reigning]} at {tallies[best].violation:.2%} violations"
    )

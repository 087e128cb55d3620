"""What an engine learns from outcomes: calibrations, scores, champion, alarm, exceptions. No I/O, no clock."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from predictor.calibrate import Calibration
from predictor.champion import Champion, Tally, judge, kept
from predictor.drift import Alarm, ExceptionRules, surprised
from predictor.engine_settings import EngineSettings
from predictor.models.base import DAY_SECONDS, Floats, History, Integers, Model
from predictor.pending import EXACT, Decision
from predictor.prior import Group, Prior
from predictor.roster import Roster
from predictor.sketch import Sketch

_ALARM_DECISIONS: Final = 3
"""The fleet's alarm looks at so many of the newest decisions."""
_EXCEPTION_DAYS: Final = 4.0
"""Days after which an outcome counts a third in the test of a node that violates persistently."""
_MOST_RESERVE: Final = 3.0
"""One absurd answer must not decide the score of a model."""


class Learning:
    """All that changes with outcomes.

    models       names of the models that run, those that can be champion first.
    levels       the risk that each is asked at, so that its residuals fit the prior; 0 for one that states none.
    pending      decisions that are not judged yet, oldest first.
    judged       outcomes of what was published since this process began, and `violated`, those that rose above it.
    """

    def __init__(
        self, settings: EngineSettings, models: Mapping[str, Model], contenders: int, prior: Prior | None = None
    ) -> None:
        self._settings = settings
        self.models = tuple(models)
        self.contenders = self.models[:contenders]
        self.levels = np.array([nearest_level(prior, model, settings) for model in models.values()])
        self.calibrations = [
            Calibration(settings.calibration(), _prior_of(prior, name, settings, level))
            for name, level in zip(models, self.levels.tolist(), strict=True)
        ]
        self.tallies = [Tally() for _ in models]
        self.failures = [0] * len(models)
        self.champion = Champion()
        self.alarm = Alarm()
        self.recent: list[tuple[float, float, float]] = []
        self.pending: list[Decision] = []
        self.roster = Roster(len(models))
        self.judged = 0
        self.violated = 0

    def learn(
        self, history: History, columns: Integers, since: float, settled: npt.NDArray[np.bool_] | None = None
    ) -> None:
        """Take in what the rows of the history after `since` tell of the decisions made before.

        columns  (rows of the roster,) column of each node in the history, -1 where it is not there.
        settled  (series,) nodes whose outcome counts, None for all.
        """
        horizon = self._settings.horizon_seconds
        for decision in self.pending:
            decision.watch(history, columns, since)
        due = [decision for decision in self.pending if decision.at + horizon <= history.at]
        self.pending = [decision for decision in self.pending if decision.at + horizon > history.at]
        for decision in due:
            peak = decision.outcome(history, columns, horizon)
            if peak is None:
                continue
            if settled is not None:
                there = columns[decision.rows]
                peak = np.where((there >= 0) & settled[there], peak, np.nan)
            self._judge(decision, peak)
        if due:
            tallies = self.tallies[: len(self.contenders)]
            self.champion = judge(self.champion, tallies, self.contenders, history.at, self._settings.champion())
        self._raise_alarm(history.at)

    def keep(self, decision: Decision) -> None:
        """Judge `decision` when its time has come; nodes that have been away for long are forgotten."""
        self.pending.append(decision)
        moved = self.roster.forget(decision.at)
        if moved is not None:
            self.pending = [entry.moved(moved) for entry in self.pending]

    def _judge(self, decision: Decision, peak: Floats) -> None:
        settings = self._settings
        known = ~np.isnan(peak) & (decision.scale > 0)
        able = np.isfinite(decision.shadow)
        # All models are scored on the same nodes; one that never answered must not leave the others without a score.
        common = np.logical_and.reduce([known, *able[able.any(axis=1)]])
        memory = kept(settings.learn_seconds, settings.champion())
        for index, calibration in enumerate(self.calibrations):
            over = peak > decision.shadow[index] * (1.0 + EXACT)
            mine = known & able[index]
            residuals = (peak - decision.raw[index])[mine] / decision.scale[mine]
            calibration.learn(
                decision.at, residuals, decision.groups[mine], float(over[mine].mean()) if mine.any() else None
            )
            if able[index].any():
                reserve = np.fmin(decision.shadow[index], decision.limit)[common] / decision.scale[common]
                total = float(np.minimum(reserve, _MOST_RESERVE).sum())
                self.tallies[index].add(int(common.sum()), int(over[common].sum()), total, memory)
        self._judge_published(decision, peak, known)

    def _judge_published(self, decision: Decision, peak: Floats, known: npt.NDArray[np.bool_]) -> None:
        settings = self._settings
        violated = (peak > decision.peak * (1.0 + EXACT))[known]
        rules = ExceptionRules(
            risk=settings.risk,
            kept=math.exp(-settings.learn_seconds / (_EXCEPTION_DAYS * DAY_SECONDS)),
            step=settings.exception_step_percent / 100.0,
            overlap=settings.overlap,
        )
        self.roster.exceptions.learn(decision.rows[known], violated, rules)
        self.recent.append((decision.at, float(known.sum()), float(violated.sum())))
        self.judged += int(known.sum())
        self.violated += int(violated.sum())

    def _raise_alarm(self, at: float) -> None:
        settings = self._settings
        # The newest decisions count too, by what has exceeded them so far: a horizon of a day must not hide a bad hour.
        since = at - max(settings.horizon_seconds, settings.learn_seconds) - _ALARM_DECISIONS * settings.learn_seconds
        self.recent = [entry for entry in self.recent if entry[0] > since]
        still = [(decision.at, float(len(decision.over)), float(decision.over.sum())) for decision in self.pending]
        newest = sorted(self.recent + still)[-_ALARM_DECISIONS:]
        alike = min(settings.overlap, max(1, len(newest)))
        made, violated = (sum(entry[field] for entry in newest) / alike for field in (1, 2))
        if surprised(violated, made, settings.risk):
            self.alarm = Alarm(1.0, at)


def nearest_level(prior: Prior | None, model: Model, settings: EngineSettings) -> float:
    """The risk to ask `model` at: of those that residuals are shipped for, the nearest by ratio to what is wanted.

    0 for a model that answers every risk alike.
    """
    if not model.states_risk:
        return 0.0
    wanted = min(0.5, settings.risk * settings.model_risk_ratio)
    known = [level for level in prior.levels(model.name, settings.horizon_seconds) if level > 0] if prior else []
    return min(known, key=lambda level: abs(math.log(level / wanted)), default=wanted)


def _prior_of(
    prior: Prior | None, model: str, settings: EngineSettings, level: float
) -> Mapping[Group, Mapping[str, Sketch]]:
    if prior is None:
        return {}
    return {group: prior.sketches(model, settings.horizon_seconds, group, level) for group in Group}

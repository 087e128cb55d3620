"""What is published as the peak of each node: models, calibrated by their own outcomes, the best of them in front.

One engine for one resource. It learns from the rows of the history it is given: a forecast is judged when the slots of
its horizon are there, never before. It does no I/O and has no clock; the same calls give the same answers.

    peak = model, which falls slowly, + shift x S; at least the newest slot

with S the node's highest use of seven days, and the shift what predictor.calibrate says, wider while
predictor.drift sees reason. Steps every five minutes and steps every hour learn alike: only the first decision of each
hour (six hours for horizons above six hours) is kept and judged.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from predictor import engine_state
from predictor.champion import ModelScore
from predictor.confidence import BY_GROUP, GROUPS, Path, groups_of, scale_of
from predictor.drift import risen
from predictor.engine_settings import EngineSettings as EngineSettings
from predictor.learning import Learning
from predictor.models.base import HOUR_SECONDS, Floats, History, Integers, Model
from predictor.pending import Decision
from predictor.prior import Group, Prior

Flags = npt.NDArray[np.bool_]

_DAY_KEEP: Final = 0.25
"""Of a fall, what a node with under a day of history still holds back after an hour, at most."""
_LONGEST_STEP_HOURS: Final = 1e6
"""A node that is seen for the first time was last seen for ever ago."""


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """The answer of one step, all (series,) in the order of the names.

    peak     highest use expected within the horizon at the asked risk, in the unit of the usage; NaN: nothing known.
    model    which model answered, "" for none.
    path     how, see Path.
    shift    share of S that was added to the model's answer.
    widened  why more than the ordinary shift was added, "" where it was not.
    notes    what an operator should know: a model that failed, state that could not be read.
    """

    at: float
    peak: Floats
    model: tuple[str, ...]
    path: tuple[Path, ...]
    shift: Floats
    widened: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class _Nodes:
    """What is known of the nodes at a step, (series,) each."""

    rows: Integers
    scale: Floats
    newest: Floats
    groups: Integers
    cold: Flags
    new_level: Flags
    extra: Floats


class Engine:
    """See the module. `models` must hold the fallback; candidates that it lacks are left out, and that is noted.

    `state` is what `state()` gave: the engine goes on where that one was. State that cannot be used is noted, and
    the engine begins with the prior. Raises ValueError when the fallback is not there.
    """

    def __init__(
        self,
        settings: EngineSettings,
        models: Mapping[str, Model],
        prior: Prior | None = None,
        state: bytes | None = None,
    ) -> None:
        if settings.fallback not in models:
            raise ValueError(f"the fallback model {settings.fallback!r} is not among: {', '.join(sorted(models))}")
        wanted = dict.fromkeys((*settings.candidates, settings.fallback))
        self._models = {name: models[name] for name in wanted if name in models}
        self._settings = settings
        contenders = max(1, sum(name in settings.candidates for name in self._models))
        self._learning = Learning(settings, self._models, contenders, prior)
        self._last_at = -math.inf
        self._notes = [f"model {name} is not there, so it is no candidate" for name in wanted if name not in models]
        if state is not None:
            self._last_at, notes = engine_state.restore(self._learning, settings, state)
            self._notes += notes

    def step(self, names: Sequence[str], history: History, settled: Flags | None = None) -> Step:
        """Learn from what has become known and say what to expect from `history.at` on.

        names    (series,) of the nodes, each once, in any order.
        settled  (series,) whether the node's pods were the same over the horizon that now ends: others are not judged.

        Raises ValueError when names and history do not fit, or when time goes backwards.
        """
        if len(names) != history.usage.shape[1] or len(set(names)) != len(names):
            raise ValueError(f"{len(names)} names, each once, are needed for {history.usage.shape[1]} series")
        if history.at < self._last_at:
            raise ValueError(f"time goes backwards: {history.at} after {self._last_at}")
        if not len(history.usage):
            raise ValueError("a history of no slots cannot be forecast")
        learning, fresh = self._learning, self._block(history.at) > self._block(self._last_at)
        rows = learning.roster.rows(names, history, recount=fresh)
        learning.learn(history, learning.roster.columns(rows), self._last_at, settled)
        answer, decision = self._answer(history, self._nodes(history, rows))
        learning.roster.seen[rows] = history.at
        if fresh:
            learning.keep(decision)
        self._last_at = history.at
        return answer

    def state(self) -> bytes:
        """Everything learned; an Engine that is given it goes on as this one would."""
        return engine_state.save(self._learning, self._settings, self._last_at)

    def scores(self) -> tuple[ModelScore, ...]:
        """How each model does in shadow, champion or not."""
        learning = self._learning
        nodes = len(learning.roster)
        return tuple(
            ModelScore(
                model=name,
                champion=index == learning.champion.index,
                violation=tally.violation,
                bound=tally.interval()[1],
                reserve=tally.mean_reserve,
                decisions=tally.decisions,
                failures=learning.failures[index],
                shift=float(learning.calibrations[index].shifts(nodes)[GROUPS.index(Group.LONG)]),
            )
            for index, (name, tally) in enumerate(zip(self._models, learning.tallies, strict=True))
        )

    @property
    def outcomes(self) -> tuple[int, int]:
        """Outcomes of what was published, judged since this process began, and those that rose above it."""
        return self._learning.judged, self._learning.violated

    @property
    def champion_reason(self) -> str:
        """Why the champion is the champion."""
        return self._learning.champion.reason

    def _block(self, at: float) -> float:
        return at if math.isinf(at) else math.floor(at / self._settings.learn_seconds)

    def _nodes(self, history: History, rows: Integers) -> _Nodes:
        settings, roster, at = self._settings, self._learning.roster, history.at
        measured = roster.measured[rows].astype(np.float64)
        cold = measured < settings.cold_seconds
        roster.risen[rows[risen(history, settings.rise_margin_percent / 100.0)]] = at
        extra = roster.exceptions.extra[rows].astype(np.float64)
        return _Nodes(
            rows=rows,
            scale=scale_of(history),
            newest=history.usage[-1].astype(np.float64),
            groups=groups_of(measured),
            cold=cold,
            new_level=(at - roster.risen[rows] < settings.rise_hold_seconds) & ~cold,
            extra=np.where(cold, 0.0, extra),
        )

    def _answer(self, history: History, nodes: _Nodes) -> tuple[Step, Decision]:
        alarm = self._learning.alarm.now(history.at, self._settings.alarm_half_life_seconds)
        raw, shifts = self._released(self._raw(history), history.at, nodes), self._shifts(nodes, alarm)
        shadow = np.maximum(raw + shifts * nodes.scale, np.where(np.isnan(nodes.newest), 0.0, nodes.newest))
        chosen = self._chosen(shadow)
        published = self._held(_picked(shadow, chosen) + nodes.extra * nodes.scale, nodes)
        asked = np.where(np.isnan(history.requested), np.nan, np.fmax(history.requested, nodes.scale))
        peak = np.where(nodes.cold, asked, published)
        silent = nodes.cold | np.isnan(peak)
        step = Step(
            at=history.at,
            peak=peak,
            model=tuple(("", *self.models)[index] for index in np.where(silent, 0, 1 + chosen).tolist()),
            path=self._paths(peak, chosen, nodes),
            shift=np.where(silent, np.nan, _picked(shifts, chosen) + nodes.extra),
            widened=_reasons(alarm, nodes),
            notes=self._told(),
        )
        warm = ~silent
        decision = Decision(
            at=history.at,
            rows=nodes.rows[warm],
            scale=nodes.scale[warm].astype(np.float32),
            groups=nodes.groups[warm],
            raw=raw[:, warm].astype(np.float32),
            shadow=shadow[:, warm].astype(np.float32),
            peak=peak[warm].astype(np.float32),
            limit=history.requested[warm].astype(np.float32),
            over=np.zeros(int(warm.sum()), dtype=np.bool_),
        )
        return step, decision

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the models that run."""
        return self._learning.models

    def _raw(self, history: History) -> Floats:
        """(models, series) answers, NaN where a model cannot say."""
        learning, horizon = self._learning, self._settings.horizon_seconds
        answers = np.full((len(self._models), history.usage.shape[1]), np.nan)
        for index, (name, model) in enumerate(self._models.items()):
            try:
                risk = float(learning.levels[index]) or self._settings.risk
                said = model.predict(history, horizon, np.array([risk]))
                answers[index] = np.where(np.isfinite(said[0]) & (said[0] >= 0), said[0], np.nan)
            except Exception as error:  # noqa: BLE001 - whatever a model does, the others answer
                learning.failures[index] += 1
                self._notes.append(f"model {name} failed and is left out of this step: {error!r}")
        return answers

    def _shifts(self, nodes: _Nodes, alarm: float) -> Floats:
        """(models, series) shares of S to add."""
        settings, calibrations = self._settings, self._learning.calibrations
        fleet, count = settings.alarm_risk_ratio**alarm, len(nodes.rows)
        ordinary = np.array([calibration.shifts(count, fleet) for calibration in calibrations])[:, nodes.groups]
        if not nodes.new_level.any():
            return ordinary
        factor = fleet * settings.rise_risk_ratio
        wide = np.array([calibration.shifts(count, factor) for calibration in calibrations])[:, nodes.groups]
        return np.where(nodes.new_level, wide, ordinary)

    def _chosen(self, shadow: Floats) -> Integers:
        """(series,) index of the model that answers: the champion, else the first that can, the fallback for none."""
        champion = self._learning.champion.index
        order = np.array([champion, *(index for index in range(len(shadow)) if index != champion)])
        able = np.isfinite(shadow[order])
        return np.where(able.any(axis=0), order[np.argmax(able, axis=0)], len(shadow) - 1)

    def _released(self, answers: Floats, at: float, nodes: _Nodes) -> Floats:
        """(models, series) answers; those that fall do so slowly.

        A large fall is held back for hours, as what has just been used may come back; a small one is followed, so that
        the slow swing of a day costs nothing.
        """
        settings, roster = self._settings, self._learning.roster
        before = roster.before[:-1, nodes.rows]
        hours = np.maximum(0.0, at - roster.seen[nodes.rows]) / HOUR_SECONDS
        hours = np.where(np.isnan(nodes.newest), 0.0, hours)
        # In its first day a forecast falls because more is known of the node every hour, not for a quiet moment.
        young = nodes.groups == GROUPS.index(Group.DAY)
        share = np.where(young, min(_DAY_KEEP, settings.release_keep_ratio), settings.release_keep_ratio)
        step = settings.release_step_percent / 100.0 * nodes.scale * np.minimum(hours, _LONGEST_STEP_HOURS)
        keep = share**hours
        large = keep * before + (1.0 - keep) * np.where(np.isnan(answers), before, answers)
        slow: Floats = np.fmax(answers, np.fmin(large, before - np.where(hours > 0, step, 0.0)))
        roster.before[:-1, nodes.rows] = np.where(nodes.cold, np.nan, slow)
        return slow

    def _held(self, peak: Floats, nodes: _Nodes) -> Floats:
        """(series,) what is published: no lower than before where the newest slot is a gap, as no data never raises."""
        before = self._learning.roster.before
        held = np.where(np.isnan(nodes.newest), np.fmax(peak, before[-1, nodes.rows]), peak)
        before[-1, nodes.rows] = np.where(nodes.cold, np.nan, held)
        return held

    def _paths(self, peak: Floats, chosen: Integers, nodes: _Nodes) -> tuple[Path, ...]:
        ways = (*BY_GROUP, Path.FALLBACK, Path.REQUESTS, Path.UNKNOWN)
        way = np.where(chosen != self._learning.champion.index, ways.index(Path.FALLBACK), nodes.groups)
        way = np.where(nodes.cold, ways.index(Path.REQUESTS), way)
        way = np.where(np.isnan(peak), ways.index(Path.UNKNOWN), way)
        return tuple(ways[number] for number in way.tolist())

    def _told(self) -> tuple[str, ...]:
        notes, self._notes = tuple(self._notes), []
        return notes


def _picked(values: Floats, chosen: Integers) -> Floats:
    """(series,) of (models, series): each from the model that was chosen."""
    return np.asarray(np.take_along_axis(values, chosen[None], axis=0)[0], dtype=np.float64)


def _reasons(alarm: float, nodes: _Nodes) -> tuple[str, ...]:
    """(series,) why each is widened."""
    fleet = "more of the fleet's latest forecasts were exceeded than chance allows" if alarm else ""

    def reason(new_level: bool, violates: bool) -> str:
        parts = [fleet] if fleet else []
        if new_level:
            parts.append("use stands above anything seen in a week")
        if violates:
            parts.append("violates far more often than asked")
        return "; ".join(parts)

    words = ("", *(reason(new_level, violates) for violates in (False, True) for new_level in (False, True)))
    which = np.where(nodes.cold, 0, 1 + nodes.new_level + 2 * (nodes.extra > 0))
    return tuple(words[number] for number in which.tolist())

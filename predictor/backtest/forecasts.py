"""Forecasts of one model for all decisions of a replay: the same function here, in a pool and on a Dask cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from predictor import models, prior
from predictor.backtest.replay import HISTORY_DAYS, Script, select
from predictor.backtest.trace import Resource
from predictor.engine import Engine
from predictor.engine_settings import EngineSettings
from predictor.models import weights
from predictor.models.base import DAY_SECONDS, Floats, History, Integers
from slacktide.errors import SlacktideError

PUBLISHED: Final = "published"
"""What the product itself would publish: champion, calibration, fallbacks, learned as the replay goes."""
CALIBRATED: Final = "+cal"
"""Suffix of a model that the engine calibrates, with no other to choose from."""
ALL: Final = "all"


class UnknownForecaster(SlacktideError):
    """A name that is no model, no calibrated model and not `published`."""


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """One model over one replay.

    weights  directory that fitted models and the prior are read from; None: what is shipped.
    """

    script: Script
    model: str
    horizon_seconds: float
    risk: float
    resource: Resource = "cpu"
    weights: str | None = None


class Forecaster(Protocol):
    """Called with rising time. `nodes` are numbers of the history's series, which may differ from call to call."""

    def __call__(self, nodes: Integers, history: History) -> Floats:
        """(series,) peaks, NaN where nothing can be said."""
        ...


def named(names: tuple[str, ...]) -> tuple[str, ...]:
    """The forecasters asked for, each once; `all` is every model as it is, and what is published.

    Raises UnknownForecaster that lists the known.
    """
    listed = [one for name in names for one in ((*models.known(), PUBLISHED) if name == ALL else (name,))]
    for name in listed:
        if name != PUBLISHED and name.removesuffix(CALIBRATED) not in models.known():
            raise UnknownForecaster(
                f"model {name!r} is not known; choose {PUBLISHED}, {ALL}, or of these with or without {CALIBRATED!r}:"
                f" {', '.join(models.known())}"
            )
    return tuple(dict.fromkeys(listed))


def learns(name: str) -> bool:
    """Whether the forecaster learns from one decision to the next; the others need the last one alone."""
    return name == PUBLISHED or name.endswith(CALIBRATED)


def forecasts(job: Job, progress: Callable[[int], None] = lambda _: None) -> Floats:
    """(decisions, nodes) peaks, cut to the requests where they are known; NaN where nothing is known.

    A node that nothing can be said about counts with its requests. `progress` is told of decisions made.
    """
    script = job.script
    weights.use(None if job.weights is None else Path(job.weights))
    ask = forecaster(job, script.nodes)
    window = script.slots_of(HISTORY_DAYS * DAY_SECONDS)
    last = _last_seen(script)
    peaks = np.full((len(script.slots), len(script.nodes)), np.nan)
    for number, slot in enumerate(script.slots):
        nodes = np.flatnonzero(last[number] > slot - window)
        history = script.history(number)
        if len(nodes) < len(script.nodes):
            history = select(history, nodes)
        if len(nodes):
            peaks[number, nodes] = ask(nodes, history)
        progress(1)
    limits = script.limits
    return np.where(np.isnan(peaks), limits, np.fmax(np.fmin(peaks, limits), 0.0))


def seen(script: Script) -> npt.NDArray[np.bool_]:
    """(decisions, nodes) whether the node's use in the decision's slot is known: only then is a forecast written."""
    return np.asarray(~np.isnan(script.usage[script.slots]))


def forecaster(job: Job, names: tuple[str, ...]) -> Forecaster:
    """The forecaster of that name, fresh. Raises UnknownForecaster."""
    [name] = named((job.model,))
    if learns(name):
        return _engine(job, name, names)
    model, risks = models.create(name), np.array([job.risk])

    def raw(nodes: Integers, history: History) -> Floats:  # noqa: ARG001 - a model answers for each series by itself
        answer: Floats = model.predict(history, job.horizon_seconds, risks)[0]
        return answer

    return raw


def _engine(job: Job, name: str, names: tuple[str, ...]) -> Forecaster:
    settings = EngineSettings(risk=job.risk, horizon_seconds=job.horizon_seconds)
    if name != PUBLISHED:
        settings = EngineSettings(
            risk=job.risk, horizon_seconds=job.horizon_seconds, candidates=(name.removesuffix(CALIBRATED),)
        )
    wanted = {*settings.candidates, settings.fallback} & set(models.known())
    engine = Engine(settings, {one: models.create(one) for one in wanted}, prior.shipped(job.resource))

    def published(nodes: Integers, history: History) -> Floats:
        return engine.step([names[node] for node in nodes], history).peak

    return published


def _last_seen(script: Script) -> Integers:
    """(decisions, nodes) the newest slot with a value up to the decision's, -1 for none."""
    rows = np.where(np.isnan(script.usage), -1, np.arange(len(script.usage))[:, None])
    return np.asarray(np.maximum.accumulate(rows, axis=0)[script.slots], dtype=np.int64)

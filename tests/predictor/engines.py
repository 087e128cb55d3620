"""Histories, models and engines for the tests of the engine."""

from __future__ import annotations

import numpy as np

from predictor.engine import Engine, EngineSettings
from predictor.models.base import History
from predictor.models.window_max import WindowMax

SLOT = 300.0
HOUR = 12
DAY = 288


class LastHour:
    """The highest use of the last hour: half of all peaks are higher."""

    name = "last_hour"
    states_risk = False

    def predict(self, history, horizon_seconds, risks):
        peak = np.fmax.reduce(history.usage[-HOUR:], axis=0, initial=np.nan).astype(float)
        return np.broadcast_to(peak, (len(risks), len(peak))).copy()


class Broken:
    """Raises, or answers NaN for some series."""

    states_risk = False

    def __init__(self, name, silent=None):
        self.name = name
        self.silent = silent

    def predict(self, history, horizon_seconds, risks):
        if self.silent is None:
            raise RuntimeError("no such weights")
        peak = LastHour().predict(history, horizon_seconds, risks)
        peak[:, self.silent] = np.nan
        return peak


MODELS = {"last_hour": LastHour(), "window_max": WindowMax(7.0)}


def settings(**changes):
    return EngineSettings(**{"candidates": ("last_hour", "window_max"), **changes})


def make(state=None, models=None, prior=None, **changes):
    return Engine(settings(**changes), models or MODELS, prior, state)


def names_of(count):
    return [f"node-{index}" for index in range(count)]


def view(usage, end, at0=0.0, requested=None, window=14 * DAY):
    """What is known when the first `end` slots are complete."""
    columns = usage.shape[1]
    return History(
        usage=usage[max(0, end - window) : end],
        requested=np.full(columns, np.nan) if requested is None else np.asarray(requested, dtype=float),
        slot_seconds=SLOT,
        at=at0 + end * SLOT,
    )


def run(engine, usage, ends, names=None, requested=None):
    """Step through `ends`; (len(ends), series) peaks and the last step."""
    names = names or names_of(usage.shape[1])
    steps = [engine.step(names, view(usage, end, requested=requested)) for end in ends]
    return np.array([step.peak for step in steps]), steps[-1]


def noise(seed, slots, nodes, level=10.0):
    """Use without memory: every hour is like every other."""
    return np.random.default_rng(seed).gamma(4.0, level / 4.0, size=(slots, nodes))


def peaks_of(usage, ends, slots=HOUR):
    """(len(ends), series) highest use in the `slots` after each end."""
    return np.array([usage[end : end + slots].max(axis=0) for end in ends])

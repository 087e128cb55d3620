"""What the predictor's tests share."""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

import numpy as np

from predictor.clock import Instant
from predictor.samples import Sample

WALL = 1_700_000_000.0
WALL_MILLIS = int(WALL * 1000)


class FakeClock:
    """Time that only a test moves."""

    def __init__(self):
        self.monotonic = 1000.0
        self.wall = WALL

    def now(self):
        return Instant(self.monotonic, self.wall)

    def advance(self, seconds):
        self.monotonic += seconds
        self.wall += seconds


def make_sample(sequence, end_millis=None, **values):
    known = {
        "window_millis": 1000,
        "capacity_cpu": 32000,
        "capacity_memory": 64 << 30,
        "ls_cpu_mean": 4000,
        "ls_cpu_max": 4100,
        "ls_memory_mean": 1 << 30,
        "ls_memory_max": 2 << 30,
        "system_cpu_mean": 500,
        "system_cpu_max": 600,
        "system_memory_mean": 1 << 29,
        "system_memory_max": 1 << 29,
        "be_cpu_mean": 100,
        "be_cpu_max": 200,
        "be_memory_mean": 1 << 20,
        "be_memory_max": 1 << 20,
        "ls_requested_cpu": 8000,
        "ls_requested_memory": 4 << 30,
        "be_requested_cpu": 0,
        "be_requested_memory": 0,
        "ls_pressure": 0.01,
        "be_quota": None,
    }
    end = WALL_MILLIS + sequence * 1000 if end_millis is None else end_millis
    return Sample(sequence=sequence, end_millis=end, **{**known, **values})


class TwinStep(NamedTuple):
    """What an engine answers."""

    peak: np.ndarray
    model: tuple
    path: tuple
    shift: np.ndarray
    widened: tuple
    notes: tuple = ()


class TwinScore(NamedTuple):
    """How a candidate did."""

    model: str
    champion: bool
    violation: float
    reserve: float
    decisions: float
    shift: float


class TwinEngine:
    """An engine that expects the highest slot that it was shown; `fails` and `peaks` are for tests to set."""

    def __init__(self, cold_seconds=0.0):
        self.cold_seconds = cold_seconds
        self.fails = False
        self.peaks = None
        self.asked = []

    def step(self, names, history, settled=None):
        self.asked.append((tuple(names), history, settled))
        if self.fails:
            raise ValueError("the model is broken")
        count = len(names)
        peak = np.fmax.reduce(history.usage, axis=0, initial=np.nan).astype(float)
        cold = np.count_nonzero(~np.isnan(history.usage), axis=0) * history.slot_seconds < self.cold_seconds
        if self.peaks is not None:
            peak = np.broadcast_to(np.asarray(self.peaks, dtype=float), count)
        path = tuple(
            "requests" if is_cold or np.isnan(value) else "model" for is_cold, value in zip(cold, peak, strict=True)
        )
        return TwinStep(peak, ("twin",) * count, path, np.full(count, 0.1), ("",) * count)

    def state(self):
        return b"%d steps" % len(self.asked)

    champion_reason = "it is the only one"

    @property
    def outcomes(self):
        return len(self.asked), len(self.asked) // 2

    def scores(self):
        return (TwinScore("twin", True, 0.01, 0.8, 100.0, 0.1), TwinScore("shadow", False, 0.02, 0.7, 90.0, 0.2))


def eventually(condition, seconds=10.0):
    """Wait until `condition()` is true; its value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s")
        threading.Event().wait(0.01)
    return value

"""The product on a daily square wave, with the real engines: what is sold falls before the morning, not after it."""

from __future__ import annotations

import numpy as np
import pytest

from predictor import models, prior
from predictor.engine import Engine
from predictor.history import Window
from predictor.models.base import History
from predictor.settings import ForecastSettings
from predictor.slots import slot_of
from tests.predictor.support import FakeClock
from tests.predictor.test_forecasting import GIB, Cluster, Stage

HOUR = 3600
MIDNIGHT = 1_700_006_400 - 1_700_006_400 % 86400
NODES = ["n1", "n2", "n3", "n4"]


SEASONAL = ("quantile_regression", "window_max")
"""The first of them looks at the same hour of the days before."""


def level(wall):
    """Millicores of LS: 20 cores from 8 to 20 o'clock, 4 at night."""
    return 20000 if 8 <= wall % 86400 / HOUR < 20 else 4000


def history(until, days):
    """(slots, nodes) use of the days before `until`, each node with a little noise of its own; and the slots."""
    last = slot_of(int(until * 1000))
    slots = np.arange(last - days * 288 + 1, last + 1)
    noise = np.random.default_rng(7).uniform(0.9, 1.0, (len(slots), len(NODES)))
    return np.array([level(slot * 300) for slot in slots])[:, None] * noise + 500, slots


def learned(settings, until, days, since):
    """An engine that has seen the time from day `since` on go by, an hour at a time; and its last answer."""
    known = {name: models.create(name) for name in (*settings.candidates, settings.fallback)}
    engine = Engine(settings, known, prior.shipped("cpu"))
    usage, slots = history(until, days)
    unknown = np.full(len(NODES), np.nan)
    for end in range(since * 288, len(slots) + 1, 12):
        at = float((slots[end - 1] + 1) * 300)
        step = engine.step(NODES, History(usage[:end].astype(np.float32), unknown, 300.0, at))
    return engine, step


@pytest.fixture
def stage(metrics):
    cluster, clock = Cluster(), FakeClock()
    for number, name in enumerate(NODES):
        cluster.add_node(name, uid=f"u{number}")
    clock.wall = float(MIDNIGHT + 2 * HOUR)
    settings = ForecastSettings(candidates=SEASONAL)
    stage = Stage(cluster, clock, metrics, {"cold_seconds": settings.cold_seconds, "window_days": 14.0}, known=())
    stage.engines["cpu"], _ = learned(settings, clock.wall, days=14, since=10)
    usage, slots = history(clock.wall, days=14)
    node, slot = np.tile(np.arange(len(NODES)), len(slots)), np.repeat(slots, len(NODES))
    stage.fleet.restore(Window(NODES, node, slot, usage.ravel(), np.full(len(node), 4.0 * GIB)))
    return stage


def test_what_is_sold_falls_before_the_morning_edge(stage):
    # peer-koordinator.md, section 10, case 10: the batch formula there follows use, and falls after the edge.
    sold = {}
    while stage.clock.wall < MIDNIGHT + 8 * HOUR:
        stage.clock.advance(300)
        for name in NODES:
            stage.sample(name, ls_cpu_mean=int(level(stage.clock.wall - 1) * 0.95), ls_requested_cpu=24000)
        stage.clock.advance(11)
        stage.turn()
        stage.clock.advance(-11)
        hour = round((stage.clock.wall - MIDNIGHT) / HOUR, 2)
        sold[hour] = np.array([stage.cluster.forecast(name).reclaimable.cpu_millis for name in NODES])
    night, before = sold[6.0], sold[7.75]
    day = 32000 - 1600 - 20000
    assert (before <= day).all()
    assert (night >= before + 1000).all()
    assert stage.cluster.forecast().terms.cpu.path == "model"


def test_the_shipped_candidates_are_safe_before_the_edge_once_they_have_learned():
    """The first of them takes the edge for noise. Its own violations raise it, or another one takes its place."""
    _, step = learned(ForecastSettings(), float(MIDNIGHT + 7 * HOUR + 3300), days=20, since=7)
    assert (step.peak >= 0.95 * 20000).all()

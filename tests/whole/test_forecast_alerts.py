"""The predictor's alerts fire for real: a predictor whose hour is a minute, agents, and a Prometheus with quick rules.

What is quicker, and what is not: tests/whole/quick_rules.py and fast_predictor.py. All else is the product.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from slacktide.cluster import NODES, connect
from slacktide.names import BATCH_CPU, BATCH_MEMORY
from slacktide.settings import ClusterSettings
from standalone.probe import get, ready
from tests.patience import PATIENCE
from tests.whole import stuck_model
from tests.whole.fast_predictor import CALM_MILLIS, CORES, FastAgents
from tests.whole.monitored import NEEDS_PROMETHEUS, Target, process, scraping
from tests.whole.quick_rules import SCALE, write_quick_rules
from tests.whole.test_space import fill

pytestmark = [pytest.mark.whole, pytest.mark.timeout(300), NEEDS_PROMETHEUS]

SETTINGS = {
    # Once a second; all else is by the predictor's own clock.
    "publish_seconds": "1",
    "rise_wait_seconds": "0",
    "forecast.grace_seconds": "0",
    "forecast.horizon_seconds": "300",
    "forecast.cold_seconds": "0",
    "forecast.candidates": stuck_model.NAME,
    # A minute without news is a report that came a second late.
    "stale_seconds": "600",
}
NODES_THERE = [f"n{index}" for index in range(6)]
CALM_SECONDS = 15.0
"""Longer than any `for` of a quick rule but the slow burn's."""
DEADLINE = 150.0 * PATIENCE
GROWTH = 1.7
"""From slot to slot; the machine is full a good minute later, and a forecast is judged once in a minute."""


class Scene:
    """A fast predictor with agents, an API server and a Prometheus."""

    def __init__(self, folder, history):
        self.folder = folder
        self.history = history
        self.api, self.observe, self.listen = (f"{folder}/{name}.sock" for name in ("api", "observe", "listen"))
        self.stuck = f"{folder}/stuck"
        self.begin = time.monotonic()
        self.prometheus = None
        self.agents = None
        self.predictor = None

    def wait(self, condition, seconds=DEADLINE):
        """The first true value of a condition."""
        deadline = time.monotonic() + seconds
        while not (value := condition()):
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.1)
        return value

    def said(self):
        """The end of each log, and what Prometheus thinks."""
        logs = "\n".join(f"== {path.name}\n{path.read_text()[-3000:]}" for path in Path(self.folder).glob("*.log"))
        pending = self.prometheus.query("ALERTS") if self.prometheus is not None else None
        return f"{logs}\n{pending}"

    def fires(self, alert, **labels):
        """Wait until an alert fires; gives its labels."""

        def found():
            firing = [one for one in self.prometheus.firing() if one["alertname"] == alert]
            return next((one for one in firing if labels.items() <= one.items()), None)

        return self.wait(found)

    def ended(self, alert):
        """Wait until it fires no more."""
        self.wait(lambda: all(one["alertname"] != alert for one in self.prometheus.firing()))

    def metric(self, series):
        """Value of one series as the predictor serves it; None where it does not."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            lines = get(self.observe, "/metrics")[1].decode().splitlines()
            return next((float(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] == series), None)
        return None

    def commands(self):
        flags = [word for name, value in SETTINGS.items() for word in (f"--{name.replace('_', '-')}", value)]
        api = [
            *(sys.executable, "-m", "standalone.api", "--socket", self.api),
            *("--database", f"{self.folder}/api.db", "--log-dir", f"{self.folder}/logs"),
        ]
        predictor = [
            *(sys.executable, "-m", "tests.whole.fast_predictor", str(self.begin)),
            *("--listen", f"unix:{self.listen}", "--history-dir", self.history),
            *("--cluster.server", f"unix:{self.api}", "--observe.listen", f"unix:{self.observe}", *flags),
        ]
        return api, predictor

    def make_nodes(self):
        with contextlib.closing(connect(ClusterSettings(server=f"unix:{self.api}"), user_agent="test")) as client:
            self.wait(lambda: reachable(client))
            amounts = {"cpu": str(CORES), "memory": "64Gi", "pods": "110"}
            for name in NODES_THERE:
                status = {"capacity": amounts, "allocatable": amounts}
                client.create(NODES, {"metadata": {"name": name}, "status": status})

    def publish_too(self, number):
        """Do what another controller of batch resources would."""
        with contextlib.closing(connect(ClusterSettings(server=f"unix:{self.api}"), user_agent="other")) as client:
            amounts = {BATCH_CPU: str(1000 + number), BATCH_MEMORY: str(number << 30)}
            client.patch(NODES, "n0", None, {"status": {"capacity": amounts, "allocatable": amounts}}, "status")


def reachable(client):
    with contextlib.suppress(Exception):
        client.list(NODES)
        return True
    return False


@pytest.fixture(scope="module")
def scene():
    with tempfile.TemporaryDirectory(prefix="st") as folder, contextlib.ExitStack() as stack:
        history = Path(folder, "history")
        history.mkdir(mode=0o700)
        mount = ["mount", "-t", "tmpfs", "-o", "size=24m,mode=700", "none", str(history)]
        if subprocess.run(mount, capture_output=True).returncode:
            pytest.skip("a file system of its own cannot be mounted here, so it cannot be full")
        stack.callback(subprocess.run, ["umount", str(history)], check=True)
        made = Scene(folder, str(history))
        api, predictor = made.commands()
        stack.enter_context(process(api, Path(folder, "api.log")))
        made.make_nodes()
        environ = {**os.environ, stuck_model.FILE: made.stuck}
        made.predictor = stack.enter_context(process(predictor, Path(folder, "predictor.log"), env=environ))
        made.wait(lambda: ready(made.observe).ready)
        made.agents = FastAgents(made.listen, made.begin, NODES_THERE)
        stack.callback(made.agents.close)
        watched = [Target("predictor", made.observe, {})]
        rules = write_quick_rules(Path(folder))
        made.prometheus = stack.enter_context(scraping(Path(folder), watched, made.wait, "1s", rules))
        yield made


def test_nothing_fires_while_all_is_well(scene):
    quiet = f'count_over_time(ALERTS{{alertstate="firing"}}[{CALM_SECONDS:.0f}s])'
    outcomes = 'slacktide_predictor_outcomes_total{resource="cpu"}'
    scene.wait(lambda: (scene.metric(outcomes) or 0) >= len(NODES_THERE))
    # On a machine that is busy otherwise a scrape may be late: a calm stretch is waited for.
    begin = time.monotonic()
    scene.wait(lambda: time.monotonic() > begin + CALM_SECONDS and not scene.prometheus.query(quiet))
    assert scene.prometheus.query("slacktide_predictor_leader")
    assert scene.metric('slacktide_predictor_violations_total{resource="cpu"}') == 0
    assert scene.metric('slacktide_predictor_published{node="n0",resource="cpu"}') > 0


@pytest.fixture(scope="module")
def rising(scene):
    """LS use that grows with every slot, on all nodes, from here on: whichever forecast is judged was too low."""
    begin, slot = time.monotonic(), 300 / SCALE

    def use():
        return round(min(1000.0 * CORES, CALM_MILLIS * GROWTH ** ((time.monotonic() - begin) // slot)))

    scene.agents.use = use


def test_somebody_else_who_publishes_too(scene, rising):
    numbers = iter(range(1000))

    def conflicting():
        scene.publish_too(next(numbers))
        return scene.metric("slacktide_predictor_conflicting_nodes") == 1

    scene.wait(conflicting)
    scene.fires("SlacktideConflict")


def test_a_silent_agent_is_named(scene, rising):
    scene.agents.silent = {"n1"}
    assert scene.fires("SlacktideAgentSilent")["node"] == "n1"
    scene.agents.silent = set()
    scene.ended("SlacktideAgentSilent")


def test_forecasts_that_are_exceeded_burn_the_budget_fast(scene, rising):
    scene.fires("SlacktideViolationBudgetBurn", resource="cpu", window="fast", severity="page")


def test_a_full_disk_of_the_history(scene, rising):
    filler = Path(fill(scene.history))
    scene.fires("SlacktideHistoryDisk")
    filler.unlink()
    scene.ended("SlacktideHistoryDisk")


def test_a_forecast_that_hangs(scene, rising):
    Path(scene.stuck).touch()
    scene.fires("SlacktideForecastsStale")
    Path(scene.stuck).unlink()
    scene.ended("SlacktideForecastsStale")


def test_forecasts_that_are_exceeded_burn_the_budget_slowly(scene, rising):
    scene.fires("SlacktideViolationBudgetBurn", resource="cpu", window="slow", severity="ticket")


def test_no_predictor_leads(scene, rising):
    scene.predictor.kill()
    scene.fires("SlacktideNoLeader")

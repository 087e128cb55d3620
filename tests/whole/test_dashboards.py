"""Every panel of every dashboard has an answer from a real Prometheus that scrapes the running product."""

from __future__ import annotations

import json
import time

import pytest

from deploy import series
from deploy.grafana.__main__ import BOARDS
from deploy.grafana.panels import meant
from tests.patience import PATIENCE
from tests.test_docs import METRICS
from tests.whole.drills import drill
from tests.whole.monitored import NEEDS_PROMETHEUS, NODE, ask_extender, scene, work
from tests.whole.support import started, wait_until
from tests.whole.test_kills import start_be

pytestmark = [pytest.mark.whole, pytest.mark.timeout(300), NEEDS_PROMETHEUS]

SETTINGS = {
    "SLACKTIDE_PREDICTOR_PUBLISH_SECONDS": "0.5",
    "SLACKTIDE_PREDICTOR_RISE_WAIT_SECONDS": "0",
    "SLACKTIDE_PREDICTOR_FORECAST__GRACE_SECONDS": "0",
}
AGENT = """
turn_seconds: 0.5
policies: [batch_limits, weight, spread, burst, contention]
shortage: {run_delay_cut: 100, psi_cut: 1}
contention: {step_percent: 50, quiet_seconds: 0, min_dwell_seconds: 0}
drill:
  dead_man_seconds: 10
  recover_seconds: 60
drill_targets: {detected_seconds: 10, throttled_seconds: 10, recovered_seconds: 60}
"""
"""Whatever else this machine does must not keep BE from running: only a drill makes LS short, and nothing closes. It
passes however busy the machine is."""


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """The product under a little work, an extender beside it, and a Prometheus that scrapes all of it."""
    folder = tmp_path_factory.mktemp("prometheus")
    with started(SETTINGS, config={"agent": AGENT}) as up, scene(up, folder) as (prometheus, port):
        yield up, prometheus, port


def test_every_query_of_every_panel_has_an_answer(watched):
    up, prometheus, port = watched
    work(up)
    asked = [
        (board.title, question.title, meant(query, NODE, "30s", 60))
        for board in BOARDS
        for question in board.questions
        for query in question.queries
    ]
    with drill(up, 12.0):
        deadline = time.monotonic() + 120 * PATIENCE
        silent = asked
        while silent and time.monotonic() < deadline:
            ask_extender(port)
            silent = [one for one in silent if not prometheus.query(one[2])]
            time.sleep(0.5)
    assert silent == []


def test_savings_and_history_are_told_from_the_same_prometheus(watched, tmp_path):
    up, prometheus, _ = watched
    address = ("--prometheus", prometheus.address)
    start_be(up, "spin", "while :; do :; done")

    def savings():
        done = up.run("savings", *address, "--days", "0.01", "--output", "json")
        found = json.loads(done.stdout) if done.returncode == 0 else None
        return found if found and found["total"]["core_hours"] else None

    found = wait_until(savings, up, seconds=90.0 * PATIENCE)
    assert [row["who"] for row in found["rows"]] == ["default"]
    picture = tmp_path / "whole.png"
    done = up.run("forecast", "whole", "--plot", "--hours", "0.5", "--png", str(picture), *address)
    assert done.returncode == 0, done.stderr
    assert "expected peak" in done.stdout
    assert picture.stat().st_size > 1000


def test_no_daemon_has_more_series_than_the_page_of_metrics_says(watched):
    _, prometheus, _ = watched
    most = dict(series.MOST)
    for name, section in (("agent", "Agent"), ("predictor", "Predictor")):
        most[name] = sum(METRICS.bounds(*METRICS.EVERYWHERE, section))
    found = {
        one["metric"]["job"].removeprefix("slacktide-"): int(one["value"][1])
        for one in prometheus.query("max_over_time(scrape_samples_scraped[1h])")
    }
    print(f"series: {found}")
    assert found.keys() == most.keys()
    assert {name: count for name, count in found.items() if count > most[name]} == {}

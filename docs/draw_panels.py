# ruff: noqa: INP001 - a script beside what it writes, not a package
"""Draws the dashboards into docs/pictures from a real run: the product under work, a drill, and a real Prometheus.

Usage: python docs/draw_panels.py [MINUTES]. It starts and ends everything that it needs; `prometheus` must be on PATH,
and BE is throttled only for root. Queries are those of the panels: a picture shows what Prometheus answered.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

# Only now, so that the script draws the checkout that it lies in and not what happens to be installed.
from deploy.grafana.__main__ import BOARDS  # noqa: E402 - see above
from deploy.grafana.panels import Query, meant  # noqa: E402 - see above
from deploy.grafana.picture import Series, picture  # noqa: E402 - see above
from slacktide.cluster import PODS  # noqa: E402 - see above
from slacktide.cluster.errors import NotFound  # noqa: E402 - see above
from tests.whole.drills import drill  # noqa: E402 - see above
from tests.whole.monitored import NODE, Prometheus, ask_extender, scene, work  # noqa: E402 - see above
from tests.whole.node import bound  # noqa: E402 - see above
from tests.whole.support import Up, started  # noqa: E402 - see above

PICTURES: Final = ROOT / "docs" / "pictures"
STEP_SECONDS: Final = 4
SETTINGS: Final = {
    "SLACKTIDE_PREDICTOR_FORECAST__COLD_SECONDS": "0",
    "SLACKTIDE_PREDICTOR_FORECAST__GRACE_SECONDS": "0",
    "SLACKTIDE_AGENT_REPORT__WINDOW_SECONDS": "2",
}
AGENT: Final = """
policies: [batch_limits, weight, spread, burst, contention, close, evict]
shortage: {run_delay_cut: 100, psi_cut: 1}
evict: {fresh_samples: 1, pressure_settle_seconds: 5, cooldown_seconds: 1}
close: {quiet_seconds: 5, min_dwell_seconds: 5}
drill: {dead_man_seconds: 30}
drill_targets: {evicted_seconds: 20}
"""
"""LS is short when a drill says so, however busy this machine is otherwise."""

_BURST: Final = "while :; do i=0; while [ $i -lt 150000 ]; do i=$((i+1)); done; sleep 3; done"
_DRILL_SECONDS: Final = 25.0
_QUESTIONS_A_POD: Final = 20


def live(up: Up, port: int, seconds: float) -> None:
    """Work of both tiers, pods that come and go, a stock scheduler that asks, a drill in the middle, for so long."""
    work(up)
    assert up.ls("--detach", "--name", "bursts", "--", "sh", "-c", _BURST).returncode == 0
    for index in range(3):
        bound(up, f"spin-{index}", "while :; do :; done")
    _ask_for(up, port, 0.6 * seconds)
    with drill(up, _DRILL_SECONDS, victim_budget=1) as one:
        _ask_for(up, port, _DRILL_SECONDS)
        one.result()
    _ask_for(up, port, 0.4 * seconds)


def _ask_for(up: Up, port: int, seconds: float) -> None:
    """Questions twice a second, and a pod every ten."""
    end = time.monotonic() + seconds
    for number in itertools.count():
        if time.monotonic() >= end:
            return
        if number % _QUESTIONS_A_POD == 0:
            _visit(up, number // _QUESTIONS_A_POD)
        ask_extender(port)
        time.sleep(0.5)


def _visit(up: Up, number: int) -> None:
    """A pod of some seconds; every third time one instead that no node can hold, for ten seconds."""
    with contextlib.suppress(NotFound):
        up.client.delete(PODS, "huge", "default", grace_period_seconds=0)
    if number % 3 == 2:
        words = ("--name", "huge", "--cpu", "1000", "--", "true")
    else:
        words = ("--name", f"visit-{time.monotonic_ns()}", "--cpu", "1m", "--", "sleep", "8")
    done = up.run("run", "--detach", "--memory", "1Mi", *words)
    assert done.returncode == 0, done.stderr


def draw(prometheus: Prometheus, begin: float, end: float) -> None:
    """Write a picture of each dashboard."""

    def ask(query: Query) -> list[Series]:
        expr = meant(query, NODE, "30s", round(end - begin))
        return [
            Series(one["metric"], [(float(at), float(value)) for at, value in one["values"]])
            for one in prometheus.range(expr, begin, end, STEP_SECONDS)
        ]

    for board in BOARDS:
        path = PICTURES / f"{board.uid}.png"
        path.write_bytes(picture(board, ask))
        sys.stdout.write(f"{path.relative_to(ROOT)}: {path.stat().st_size} bytes\n")


def main(argv: list[str]) -> int:
    """Run the product, then draw."""
    minutes = float(argv[0]) if argv else 12.0
    with (
        tempfile.TemporaryDirectory() as folder,
        started(SETTINGS, config={"agent": AGENT}) as up,
        scene(up, Path(folder)) as (prometheus, port),
    ):
        begin = time.time()
        live(up, port, 60 * minutes)
        draw(prometheus, begin, time.time())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

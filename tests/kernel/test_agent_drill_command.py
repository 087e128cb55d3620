"""`slacktide drill run` with a real agent on real cgroups: kinds of trouble, an emulated resctrl, a wrong clock."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import pytest

from agent.host.resctrl.groups import BE_GROUP, RdtTree
from cli.app import App
from cli.drillreport import Report
from cli.main import main
from cli.output import Output
from slacktide.forecast import Amount, Forecast, Terms, encode
from slacktide.names import FORECAST_ANNOTATION
from standalone.state import Lock, create, find, prepare
from tests.agent.api_twin import ApiTwin, pod_json
from tests.agent.trees import CID, UID_BE, UID_LS
from tests.cli.twin import Twin
from tests.emulators.resctrl import missing, mounted
from tests.kernel.test_agent_cgroups import BE, BUSY, HALF, LS, groups, pytestmark, wait_for  # noqa: F401 - fixture and marks
from tests.kernel.test_agent_drills import DEADLINE, FLAGS
from tests.patience import PATIENCE

pytestmark = [*pytestmark, pytest.mark.timeout(300)]

WHY_NO_RESCTRL = missing()
QUICK = {
    **FLAGS,
    "policies": "weight,contention,cache_bandwidth,memory,close,evict",
    "cache-bandwidth.settle-seconds": "0.5",
    "cache-bandwidth.quiet-seconds": "1",
    "cache-bandwidth.min-dwell-seconds": "1",
    # How fast this machine is, is not what is tested.
    **{f"drill-targets.{step}-seconds": "300" for step in ("detected", "throttled", "recovered", "relaxed", "retaken")},
}
"""A drill is over in seconds, and none of its targets is missed because this machine is busy."""

AGENT = """
import sys
from agent import parts
from agent.host.resctrl.mount import RdtPlaces

table = sys.argv.pop(1)
if table:
    parts.RdtPlaces = lambda mounts: RdtPlaces(mounts=table)
from agent.main import main

sys.exit(main())
"""
"""The agent as it is, but for where it finds the table of mounts: an emulated resctrl is none for the kernel."""


READY = {"type": "Ready", "status": "True"}


class Node:
    """A real agent with a busy BE pod and an LS pod, and the command on its machine."""

    def __init__(self, root, made):
        self.groups = made
        self.app = App(state_option=root, connect=lambda _: self.api, agent_status=lambda _: None, is_up=lambda _: True)
        self.api = Twin()
        self.api.nodes = [{"metadata": {"name": "n1", "uid": "n1"}, "status": {"conditions": [READY]}}]
        self._state = find(root)
        self._agent = None

    def start(self, mounts=""):
        flags = {
            **QUICK,
            "node": "n1",
            "cluster.server": f"unix:{self._state.api_socket}",
            "state-dir": self._state.folder("agent"),
            "cgroup-root": self.groups.root,
            "turn-seconds": "0.2",
            "predictor": f"unix:{self._state.root}/nobody.sock",
            "drill.listen": f"unix:{self._state.drill_socket}",
        }
        words = [word for name, value in flags.items() for word in (f"--{name}", value)]
        command = [sys.executable, "-c", AGENT, mounts, *words]
        self._agent = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        wait_for(lambda: self._lives() and self.groups.read(BE, "cpu.idle") == "1", "weight", DEADLINE)

    def _lives(self):
        assert self._agent.poll() is None, self._agent.stderr.read()
        return True

    def call(self, *words):
        """(exit code, standard output, standard error) of a command on this machine."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([*words], dataclasses.replace(self.app, out=Output()))
        return code, out.getvalue(), err.getvalue()

    def drill(self, *words):
        """(exit code, report, what was said) of a drill that begins as soon as nothing is against it."""
        end = time.monotonic() + 2 * DEADLINE
        # The first turns of an agent decide nothing.
        while True:
            code, out, err = self.call("drill", "run", "--yes", "--node", "n1", "-o", "json", *words)
            (report,) = reports(out)
            if code != 3:
                return code, report, err
            assert time.monotonic() < end, report

    def end(self):
        """The agent ends and gives everything back."""
        agent, self._agent = self._agent, None
        if agent is None:
            return
        agent.send_signal(signal.SIGTERM)
        _, log = agent.communicate(timeout=20 * PATIENCE)
        assert agent.returncode == 0, log


def reports(text):
    return [msgspec.convert(one, Report) for one in json.loads(text)["drills"]]


@pytest.fixture
def node(groups):  # noqa: F811 - the fixture
    with tempfile.TemporaryDirectory(prefix="st") as root:
        create(root)
        with Lock(root):
            state = prepare(root)
        groups.spawn(f"{BE}/{CID}", BUSY)
        groups.spawn(LS, HALF)
        with ApiTwin(state.api_socket, [pod_json(UID_LS, "ls"), pod_json(UID_BE, "be")]):
            made = Node(root, groups)
            try:
                yield made
            finally:
                made.end()


def forecast_of(now):
    """An annotation that offers four cores, published at `now`."""
    four = Amount(cpu_millis=4000, memory_bytes=1 << 30)
    terms = Terms(capacity=four, reserve=four, peak=four, now=four, sold=four)
    return encode(Forecast(at=now, ttl_seconds=60.0, peak=four, reclaimable=four, terms=terms))


def steps(report):
    return [moment.step for moment in report.timeline]


def test_memory_that_would_run_short(node):
    node.start()
    limits = [
        path
        for mount in node.groups.mounts
        for name in ("memory.high", "memory.max", "memory.limit_in_bytes")
        if (path := Path(mount, node.groups.root, BE, name)).exists()
    ]
    before = [path.read_text() for path in limits]
    assert before
    code, report, said = node.drill("--kind", "memory", "--duration", "3s", "--victims-max", "1", "--dry-run")
    assert (code, report.kind, report.passed) == (0, "memory", True), (report, said)
    assert {"raised", "detected", "rung:evict", "named", "lowered", "recovered"} <= set(steps(report))
    (victim,) = report.victims
    assert (victim.uid, victim.evicted) == (UID_BE, False)
    assert "of memory is available" in victim.reason
    wait_for(lambda: [path.read_text() for path in limits] == before, "the limits before")


@pytest.mark.skipif(WHY_NO_RESCTRL is not None, reason=str(WHY_NO_RESCTRL))
def test_cache_and_bandwidth_are_taken_from_be_and_given_back(node, tmp_path):
    with mounted("intel-2s", tmp_path) as handle:
        node.start(handle.mounts_file)
        tree = RdtTree(handle.path)
        wait_for(lambda: Path(handle.path, BE_GROUP).is_dir() and tree.tasks(BE_GROUP), "the class of BE", DEADLINE)
        wide = tree.schemata(BE_GROUP)
        code, report, said = node.drill("--kind", "bandwidth", "--duration", "4s")
        assert (code, report.kind, report.passed) == (0, "bandwidth", True), (report, said)
        at = {moment.step: moment.elapsed_millis for moment in report.timeline}
        assert {"raised", "detected", "throttled", "rung:cache_bandwidth", "lowered", "recovered"} <= set(at)
        assert at["raised"] <= at["throttled"] <= at["lowered"] <= at["recovered"]
        wait_for(lambda: tree.schemata(BE_GROUP) == wide, f"{wide}, not {tree.schemata(BE_GROUP)}")
        node.end()
        assert not any(path.is_dir() and path.name.startswith("slacktide") for path in Path(handle.path).iterdir())


def test_bandwidth_is_refused_where_nothing_can_limit_it(node):
    node.start()
    code, out, _ = node.call("drill", "run", "--yes", "--kind", "bandwidth", "-o", "json")
    (report,) = reports(out)
    assert (code, report.phase) == (3, "refused")
    assert any("resctrl" in one for one in report.refusals), report.refusals


def test_an_agent_that_is_lost(node):
    node.start()
    code, report, said = node.drill("--kind", "agent-loss", "--duration", "6s")
    assert (code, report.kind, report.passed) == (0, "agent-loss", True), (report, said)
    seen = [step for step in steps(report) if step in {"throttled", "silent", "relaxed", "lowered", "retaken"}]
    assert seen == ["throttled", "silent", "relaxed", "lowered", "retaken"]
    assert node.groups.quota() == node.groups.unlimited


@pytest.mark.parametrize("ahead", [-7200.0, 7200.0])
def test_a_caller_with_a_wrong_clock(node, ahead):
    """Times of a drill are the agent's; the report is by the node's clock, and says how far the caller's is off."""
    node.start()
    node.app.wall = lambda: time.time() + ahead
    began = time.time()
    code, report, _ = node.drill("--duration", "500ms")
    assert (code, report.passed) == (0, True), report
    assert abs(report.skew_millis + 1000 * ahead) < 60_000 * PATIENCE
    assert began - 60 <= report.started_unix_millis / 1000 <= time.time() + 60 * PATIENCE
    times = [moment.elapsed_millis for moment in report.timeline]
    assert times == sorted(times)
    assert times[-1] < 300_000 * PATIENCE
    # Whether a forecast is fresh is not judged by that clock, either.
    node.api.nodes[0]["metadata"]["annotations"] = {FORECAST_ANNOTATION: forecast_of(time.time())}
    code, _, said = node.call("drill", "run", "--yes", "--node", "n1", "--duration", "500ms")
    assert code == 0, said
    assert "4.00 CPU reclaimable, forecast fresh" in said
    assert f"s {'behind' if ahead > 0 else 'ahead of'} this machine's" in said
    _, page, _ = node.call("drill", "report", report.id)
    assert f"s {'behind' if ahead > 0 else 'ahead of'} the caller's" in page

"""A running Slacktide for tests of the whole, and what they ask it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

from slacktide import forecast
from slacktide.cluster import EVENTS, NODES, PODS, connect
from slacktide.cluster.errors import ApiError, NotFound, Unreachable
from slacktide.kernel.hierarchy import discover
from slacktide.names import FORECAST_ANNOTATION
from slacktide.settings import ClusterSettings
from standalone.probe import get
from standalone.process import ProcessId, alive
from standalone.state import Lock, create, find, prepare
from standalone.supervisor import read_report
from standalone.sweep import directories

SLACKTIDE = [sys.executable, "-P", "-m", "cli.main"]
DAEMONS = ("api", "runner", "predictor", "scheduler", "agent")


class Up:
    """A running Slacktide on a state directory of its own."""

    def __init__(self, root):
        self.root = root
        self.state = find(root)
        self.client = connect(ClusterSettings(server=f"unix:{self.state.api_socket}"), user_agent="test")

    def run(self, *words, timeout=60, **options):
        command = [*SLACKTIDE, "--state", self.root, *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, **options)

    def json(self, *words):
        done = self.run(*words, "--output", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def ls(self, *words, **options):
        """Run an LS pod: it needs no idle CPU, so the test does not depend on what else this machine does."""
        return self.run("run", "--tier", "ls", "--cpu", "10m", "--memory", "16Mi", *words, **options)

    def pod(self, name):
        try:
            return self.client.get(PODS, name, "default")
        except NotFound:
            return None

    def output(self, name):
        """What the pod printed so far; "" while it has not started."""
        try:
            return b"".join(self.client.logs("default", name)).decode()
        except (ApiError, Unreachable):
            return ""

    def condition(self, name):
        """Why the pod is not placed, as its condition says it; "" when it says nothing."""
        conditions = self.pod(name).status.conditions
        return next((c.message for c in conditions if c.type == "PodScheduled" and c.status == "False"), "")

    def events(self, name, reason):
        found = self.client.list(EVENTS, "default").items
        return [event for event in found if event.involved_object.name == name and event.reason == reason]

    def forecast(self):
        (node,) = self.client.list(NODES).items
        text = node.metadata.annotations.get(FORECAST_ANNOTATION)
        return forecast.decode(text) if text else None

    def ask(self, name, route):
        """What a daemon answers at its own endpoint; "" while it does not."""
        with contextlib.suppress(OSError):
            return get(self.state.observe_socket(name), route)[1].decode()
        return ""

    def metric(self, daemon, series):
        """Value of one series, None where it is not there."""
        lines = self.ask(daemon, "/metrics").splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] == series), None)

    def clear(self, keep=""):
        """Remove all pods but one."""

        def others():
            return [pod for pod in self.client.list(PODS).items if pod.metadata.name != keep]

        for pod in others():
            with contextlib.suppress(NotFound):
                self.client.delete(PODS, pod.metadata.name, pod.metadata.namespace, grace_period_seconds=0)
        wait_until(lambda: not others(), self)

    def processes(self):
        report = read_report(self.state)
        daemons = {c.name: ProcessId(c.pid, c.start_time) for c in report.components if c.pid}
        return {"supervisor": ProcessId(report.pid, report.start_time), **daemons}

    def ready(self):
        return read_report(self.state).phase == "ready"

    @contextlib.contextmanager
    def without(self, name):
        """One daemon killed, and nobody to start it again until the end: then all are ready again."""
        before = self.processes()
        os.kill(before["supervisor"].pid, signal.SIGSTOP)
        try:
            os.kill(before[name].pid, signal.SIGKILL)
            yield
        finally:
            os.kill(before["supervisor"].pid, signal.SIGCONT)
        wait_until(lambda: self.processes().get(name) not in {None, before[name]} and self.ready(), self)
        assert {n for n, p in before.items() if not alive(p)} == {name}

    def logs(self):
        parts = []
        for name in ("supervisor", *DAEMONS):
            with contextlib.suppress(FileNotFoundError), open(self.state.log_file(name)) as file:
                parts.append(f"== {name}\n" + "".join(file.readlines()[-15:]))
        return "\n".join(parts)

    def left_behind(self):
        sockets = [path for path in self.state.sockets() if os.path.exists(path)]
        return sockets + directories(discover(), self.state.cgroup_root)


def configured(root, config):
    """A state directory in which nothing ran yet, with these settings files: component -> text."""
    create(root)
    with Lock(root):
        state = prepare(root)
    for name, text in config.items():
        with open(state.config_file(name), "w") as file:
            file.write(text)


@contextlib.contextmanager
def started(environ=None, root=None, config=None):
    """Slacktide with settings from `environ`, ended with all its pods; `root` must exist and be empty.

    `config` are settings files that lie in the state directory before the start: component -> text.
    """
    with contextlib.ExitStack() as stack:
        root = root or stack.enter_context(tempfile.TemporaryDirectory(prefix="st"))
        if config:
            configured(root, config)
        command = [*SLACKTIDE, "--state", root, "up", "--detach", "--node", "whole", "--timeout", "90"]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **(environ or {})}
        )
        try:
            assert done.returncode == 0, done.stderr
            up = Up(root)
            stack.callback(up.client.close)
            yield up
        finally:
            subprocess.run(
                [*SLACKTIDE, "--state", root, "down", "--now"], capture_output=True, timeout=120, check=False
            )


def wait_until(condition, up, seconds=60.0):
    """The first true value of `condition`; the test fails with the logs of all daemons when there is none."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, up.logs()
        time.sleep(0.1)
    return value

"""Every daemon goes on after SIGHUP: with new settings where they are good, with the old ones where they are not."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
import tempfile
import time

import pytest

from slacktide.kernel.hierarchy import discover
from standalone.components import components
from standalone.probe import get
from standalone.state import create, prepare
from standalone.sweep import sweep

ALONE = {"runner": "cgroups: 'off'\n", "agent": "observe_only: true\n"}
"""What keeps a daemon that is tried alone off this machine's cgroups."""


class Tried:
    """One daemon as `up` would start it, without the others."""

    def __init__(self, root, name):
        create(root)
        self.state = prepare(root)
        self.name = name
        self.settings("observe: {log_level: info}")
        self.component = next(one for one in components(self.state, "n1") if one.name == name)
        with open(self.state.log_file(name), "wb") as log:
            self.process = subprocess.Popen(self.component.argv, stderr=log, cwd=root, env=environ())

    def settings(self, text):
        with open(self.state.config_file(self.name), "w") as file:
            file.write(f"{ALONE.get(self.name, '')}{text}\n")

    def hang_up(self):
        self.process.send_signal(signal.SIGHUP)

    def metrics(self):
        with contextlib.suppress(OSError):
            return get(self.component.observe, "/metrics")[1].decode()
        return ""

    def reloads(self, result):
        return f'slacktide_settings_reloads_total{{result="{result}"}} 1.0' in self.metrics()

    def events(self, name):
        with open(self.state.log_file(self.name)) as log:
            lines = [json.loads(line) for line in log if line.startswith("{")]
        return [line for line in lines if line["event"] == name]

    def log(self):
        with open(self.state.log_file(self.name)) as log:
            return log.read()

    def until(self, condition):
        deadline = time.monotonic() + 40
        while not condition():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.02)


def environ():
    return {**os.environ, "PYTHONPATH": os.getcwd()}


@pytest.fixture
def tried(request):
    with tempfile.TemporaryDirectory(prefix="st") as root:
        daemon = Tried(root, request.param)
        try:
            yield daemon
        finally:
            daemon.process.kill()
            daemon.process.wait()
            # The agent cannot remove the group that it is in; `up` would.
            left = sweep(discover(), daemon.state.agent_cgroup, kill=False)
        assert left == []


@pytest.mark.parametrize("tried", ["api", "runner", "predictor", "scheduler", "agent"], indirect=True)
def test_a_daemon_goes_on_after_a_good_and_a_bad_reload(tried):
    tried.until(lambda: tried.events("started"))
    tried.settings("observe: {log_level: debug}")
    tried.hang_up()
    # The log is written by a thread of its own: a line may come after the counter.
    tried.until(lambda: tried.reloads("applied") and tried.events("settings reloaded"))
    assert tried.events("settings reloaded")[0]["applied"] == ["observe.log_level"]
    tried.settings("observe: {log_level: loud}\nno_such_setting: 1")
    tried.hang_up()
    refused = "settings not reloaded: the old ones stay in force"
    tried.until(lambda: tried.reloads("refused") and len(tried.events(refused)) >= 2)
    problems = [line["problem"] for line in tried.events(refused)]
    assert len(problems) == 2, problems
    assert any("log_level" in problem for problem in problems)
    assert any("no_such_setting" in problem for problem in problems)
    assert get(tried.component.observe, "/healthz")[0] == 200
    assert tried.process.poll() is None
    tried.process.terminate()
    assert tried.process.wait(20) == 0, tried.log()


@pytest.mark.parametrize(
    ("tried", "path"),
    [("api", "api/objects.sqlite"), ("predictor", "predictor/history.duckdb"), ("agent", "agent/spool.sqlite")],
    indirect=["tried"],
)
def test_what_a_daemon_keeps_is_for_its_own_user(tried, path):
    path = os.path.join(tried.state.root, path)
    tried.until(lambda: os.path.exists(path) and tried.events("started"))
    tried.process.terminate()
    assert tried.process.wait(20) == 0, tried.log()
    folder = os.path.dirname(path)
    modes = {name: stat.S_IMODE(os.lstat(os.path.join(folder, name)).st_mode) for name in os.listdir(folder)}
    assert all(mode & 0o077 == 0 for mode in modes.values()), modes

"""The runner as a process against the embedded API server as a process, without cgroups."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

import pytest

from slacktide.cluster import NODES, PODS, connect
from slacktide.cluster.errors import ClusterError, NotFound
from slacktide.settings import ClusterSettings
from standalone.runner.main import main
from tests.standalone.runner.twin import wait_for


class Site:
    """One state directory with the two daemons, started and killed by the test."""

    def __init__(self, directory):
        self.directory = directory
        self.socket = f"{directory}/a.sock"
        self.running = {}
        self.client = connect(ClusterSettings(server=f"unix:{self.socket}", timeout_seconds=5.0), user_agent="test")

    def api(self):
        self._start("api", "--socket", self.socket, "--database", f"{self.directory}/db", "--log-dir", self.logs)
        wait_for(self._answers, 20)

    def runner(self, *options):
        where = ("--cluster.server", f"unix:{self.socket}", "--node", "n1", "--state-dir", f"{self.directory}/r")
        self._start("runner", *where, "--log-dir", self.logs, "--cgroups", "off", *options)

    @property
    def logs(self):
        return f"{self.directory}/logs"

    def _start(self, name, *arguments):
        log = open(f"{self.directory}/{name}.log", "ab")  # noqa: SIM115 - the process outlives this call
        command = [sys.executable, "-m", f"standalone.{name}", *arguments]
        with log:
            self.running[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def _answers(self):
        with contextlib.suppress(ClusterError):
            return self.client.version()

    def stop(self, name, number=signal.SIGTERM):
        process = self.running.pop(name)
        process.send_signal(number)
        return process.wait(15)

    def run(self, name, script):
        container = {"name": "main", "image": "slacktide.io/host-process", "command": ["sh", "-c", script]}
        spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}
        self.client.bind(self.client.create(PODS, body, "default"), "n1")

    def pod(self, name):
        try:
            return self.client.get(PODS, name, "default")
        except NotFound:
            return None

    def phase(self, name):
        return self.pod(name).status.phase

    def close(self):
        with contextlib.suppress(ClusterError):
            for pod in self.client.list(PODS).items:
                self.client.delete(PODS, pod.metadata.name, "default", grace_period_seconds=1)
            if "runner" in self.running:
                wait_for(lambda: not self.client.list(PODS).items, 15)
        for name in list(self.running):
            self.stop(name)
        self.client.close()


@pytest.fixture
def site(tmp_path):
    made = Site(str(tmp_path))
    yield made
    made.close()


def test_waits_for_the_server_then_runs_pods_and_says_that_cgroups_are_off(site):
    site.runner()
    site.api()
    wait_for(lambda: any(one.metadata.name == "n1" for one in site.client.list(NODES).items), 20)
    node = site.client.get(NODES, "n1")
    assert node.metadata.annotations["slacktide.io/cgroups"] == "off"
    ready = wait_for(lambda: [one for one in site.client.get(NODES, "n1").status.conditions if one.type == "Ready"])[0]
    assert ready.status == "True"
    assert "cgroups are off" in ready.message
    site.run("web", "echo hello; exit 3")
    wait_for(lambda: site.phase("web") == "Failed")
    state = site.pod("web").status.container_statuses[0].state.terminated
    assert (state.exit_code, state.reason) == (3, "Error")
    assert b"".join(site.client.logs("default", "web")) == b"hello\n"
    assert site.stop("runner") == 0


def test_killed_and_started_again_it_goes_on(site):
    site.api()
    site.runner()
    site.run("web", f"echo one; while [ ! -e {site.directory}/go ]; do sleep 0.05; done; echo two; exit 5")
    wait_for(lambda: site.phase("web") == "Running", 20)
    started = site.pod("web").status.container_statuses[0]
    assert site.stop("runner", signal.SIGKILL) == -signal.SIGKILL
    site.stop("api", signal.SIGKILL)
    site.api()
    site.runner()
    with open(f"{site.directory}/go", "w", encoding="utf-8"):
        pass
    wait_for(lambda: site.phase("web") == "Failed", 20)
    ended = site.pod("web").status.container_statuses[0]
    assert (ended.container_id, ended.restart_count) == (started.container_id, 0)
    assert ended.state.terminated.exit_code == 5
    assert b"".join(site.client.logs("default", "web")) == b"one\ntwo\n"
    site.client.delete(PODS, "web", "default")
    wait_for(lambda: site.pod("web") is None)
    wait_for(lambda: os.listdir(site.logs) == [])


def test_a_second_runner_on_the_same_state_is_refused(site):
    site.runner()
    wait_for(lambda: os.path.exists(f"{site.directory}/r/wake"), 20)
    first = site.running.pop("runner")
    site.runner()
    second = site.running.pop("runner")
    site.running["runner"] = first
    assert second.wait(20) == 1
    with open(f"{site.directory}/runner.log", encoding="utf-8") as file:
        assert "used by another runner" in file.read()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--state-dir is needed"),
        (["--state-dir", "/s", "--log-dir", "/l"], "must be one name that begins with slacktide"),
        (["--state-dir", "/s", "--log-dir", "/l", "--cgroup-root", "kubepods"], "kubepods"),
        (["--state-dir", "/s", "--log-dir", "/l", "--cgroup-root", "slacktide/../x"], "slacktide/../x"),
        (["--cgroup", "off"], "cgroups"),
        (["--tick-seconds", "5Mi"], "tick-seconds"),
        (["--log-max-bytes", "10"], "log-max-bytes"),
    ],
)
def test_bad_settings_are_said_and_end_with_2(capsys, arguments, words):
    assert main(arguments) == 2
    assert words in capsys.readouterr().err

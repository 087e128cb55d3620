"""A real Prometheus beside the running product, and the product under a little work of every kind."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import subprocess
import sys
import urllib.parse
from dataclasses import dataclass

import pytest
import yaml

from benchmarks.relay import relay
from tests.cluster.harness import free_ports
from tests.patience import PATIENCE
from tests.whole.support import wait_until
from tests.whole.test_kills import start_be

NEEDS_PROMETHEUS = pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs prometheus (Debian's package)")
NODE = "whole"
JOBS = {"agent": {"node": NODE}, "predictor": {}, "scheduler": {}, "extender": {}}
"""Daemons that are scraped, with the labels that a PodMonitor of the chart adds."""

BE_POD = {
    "metadata": {"name": "asked", "namespace": "default", "uid": "asked"},
    "spec": {
        "containers": [
            {
                "name": "main",
                "resources": {
                    "requests": {"kubernetes.io/batch-cpu": "1"},
                    "limits": {"kubernetes.io/batch-cpu": "1"},
                },
            }
        ]
    },
}


@dataclass(frozen=True)
class Target:
    """One daemon to scrape: its name, its observe socket, and labels for its series."""

    name: str
    socket: str
    labels: dict


class Prometheus:
    """A real one on a loopback port."""

    def __init__(self, port):
        self.port = port

    @property
    def address(self):
        return f"http://127.0.0.1:{self.port}"

    def ask(self, path, **query):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        with contextlib.closing(connection):
            connection.request("GET", f"{path}?{urllib.parse.urlencode(query)}")
            answer = connection.getresponse()
            return answer.status, answer.read()

    def query(self, expr):
        """The series of an expression, now."""
        return self._result("/api/v1/query", query=expr)

    def range(self, expr, begin, end, step):
        """The series of an expression over a time; seconds."""
        return self._result("/api/v1/query_range", query=expr, start=begin, end=end, step=step)

    def firing(self):
        """Labels of the alerts that fire now."""
        status, body = self.ask("/api/v1/alerts")
        assert status == 200, body
        return [one["labels"] for one in json.loads(body)["data"]["alerts"] if one["state"] == "firing"]

    def ready(self):
        try:
            return self.ask("/-/ready")[0] == 200
        except OSError:
            return False

    def _result(self, path, **query):
        status, body = self.ask(path, **query)
        assert status == 200, (query, body)
        return json.loads(body)["data"]["result"]


@contextlib.contextmanager
def process(command, log, **options):
    """A program that is ended when left; `log` gets what it says."""
    with open(log, "wb") as out:
        running = subprocess.Popen(command, stdout=out, stderr=out, **options)
    try:
        yield running
    finally:
        running.terminate()
        try:
            running.wait(15 * PATIENCE)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


@contextlib.contextmanager
def scraping(folder, targets, wait, interval="2s", rules=None):
    """A Prometheus that scrapes `targets`; `rules` is a file of alert rules, `wait` is given a condition."""
    with contextlib.ExitStack() as stack:
        jobs = []
        for target in targets:
            port = stack.enter_context(relay(f"unix:{target.socket}")).port
            served = {"targets": [f"127.0.0.1:{port}"], "labels": target.labels}
            jobs.append({"job_name": f"slacktide-{target.name}", "static_configs": [served]})
        config = {
            "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
            "rule_files": [str(rules)] if rules else [],
            "scrape_configs": jobs,
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        (port,) = free_ports(1)
        prometheus = Prometheus(port)
        command = [
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        stack.enter_context(process(command, folder / "prometheus.log"))
        wait(prometheus.ready)
        yield prometheus


@contextlib.contextmanager
def extender(up, folder, *words, name="extender"):
    """An extender beside the running product; gives its port and its observe socket."""
    observe, (port,) = f"{up.root}/{name}.sock", free_ports(1)
    command = [
        *(sys.executable, "-m", "scheduler_plugins.extender_main"),
        *("--cluster.server", f"unix:{up.state.api_socket}"),
        *("--listen", f"127.0.0.1:{port}", "--observe.listen", f"unix:{observe}", *words),
    ]
    with process(command, folder / f"{name}.log"):
        yield port, observe


def targets(up, extender_socket):
    """All daemons of a running product, and the extender."""
    sockets = {**{name: up.state.observe_socket(name) for name in JOBS}, "extender": extender_socket}
    return [Target(name, sockets[name], labels) for name, labels in JOBS.items()]


def work(up):
    """A busy LS pod and a dozen BE pods."""
    assert up.ls("--detach", "--name", "server", "--", "sh", "-c", "while sleep 0.05; do :; done").returncode == 0
    for index in range(12):
        start_be(up, f"job-{index}", "sleep 600")


def ask_extender(port, pod=BE_POD):
    """Filter and prioritize, as the stock scheduler asks."""
    for verb in ("filter", "prioritize"):
        body = json.dumps({"Pod": pod, "NodeNames": [NODE]})
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("POST", f"/{verb}", body, {"Content-Type": "application/json"})
            connection.getresponse().read()


@contextlib.contextmanager
def scene(up, folder, interval="2s", rules=None, words=()):
    """An extender (with flags `words`) and a Prometheus beside a running product: (Prometheus, extender's port)."""
    with (
        extender(up, folder, *words) as (port, socket),
        scraping(folder, targets(up, socket), lambda condition: wait_until(condition, up), interval, rules) as found,
    ):
        yield found, port

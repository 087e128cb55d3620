"""The two servers, each with what a test may do to it: restart it, make it forget its history.

Where the two differ, the embedded one is wrong.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
import subprocess
import sys

from slacktide.cluster import Client, connect, errors
from slacktide.settings import ClusterSettings
from tests.cluster import harness
from tests.patience import PATIENCE
from tests.slacktide.cluster.fakeapi import wait_for

_START_SECONDS = 60.0 * PATIENCE


class Embedded:
    """The embedded server as a process of its own, on a Unix socket and on loopback TCP."""

    name = "embedded"
    throttles = False

    def __init__(self, directory):
        self.directory = directory
        self.socket = f"{directory}/api.sock"
        self.token_file = f"{directory}/token"
        self.log = f"{directory}/api.log"
        self.process: subprocess.Popen | None = None
        (directory / "logs").mkdir()

    def start(self):
        arguments = {
            "--socket": self.socket,
            "--database": f"{self.directory}/objects.sqlite",
            "--log-dir": f"{self.directory}/logs",
            "--listen": "127.0.0.1:0",
            "--token-file": self.token_file,
            "--kubeconfig-file": f"{self.directory}/kubeconfig",
        }
        flat = [part for pair in arguments.items() for part in pair]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", sys.executable, "-m", "standalone.api", *flat],
                stderr=log,
                stdout=log,
            )
        with contextlib.closing(self.client()) as client:
            wait_for(lambda: self._answers(client), "the embedded server to answer", _START_SECONDS)
        return self

    def _answers(self, client):
        if self.process.poll() is not None:
            with open(self.log, errors="replace") as log:
                raise AssertionError(f"the embedded server ended with {self.process.returncode}:\n{log.read()}")
        try:
            return client.version()
        except errors.ClusterError:
            return None

    def settings(self):
        return ClusterSettings(server=f"unix:{self.socket}")

    def kubeconfig(self):
        return f"{self.directory}/kubeconfig"

    def token(self):
        """A token that is let in over TCP."""
        with open(self.token_file) as file:
            return file.read().strip()

    def client(self):
        return connect(self.settings(), user_agent="slacktide-test")

    def stop(self, how=signal.SIGTERM):
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(how)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(15)
        return self.process.returncode

    def restart(self, how=signal.SIGTERM):
        self.stop(how)
        self.start()

    def forget_history(self):
        """As a compaction would: changes until now can no longer be watched, nor lists of then be gone on with."""
        self.stop(signal.SIGKILL)
        with contextlib.closing(sqlite3.connect(f"{self.directory}/objects.sqlite", isolation_level=None)) as database:
            database.execute("INSERT OR REPLACE INTO meta SELECT 'floor', max(version) FROM log")
            database.execute("DELETE FROM log")
        self.start()


class Real:
    """etcd, kube-apiserver and the controllers that budgets and namespaces need."""

    name = "real"
    throttles = True

    def __init__(self, directory):
        self.directory = directory
        self.plane = harness.ControlPlane(directory)
        self._controllers = contextlib.ExitStack()

    def start(self):
        self.plane.start()
        names = "disruption-controller,namespace-controller,garbage-collector-controller"
        self._controllers.enter_context(self.plane.controllers(names))

    def settings(self):
        return self.plane.settings()

    def kubeconfig(self):
        return self.plane.kubeconfig()

    def token(self):
        """A token of an account that may do everything."""
        with contextlib.closing(self.client()) as client:
            with contextlib.suppress(errors.AlreadyExists):
                _post(client, "/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "robot"}})
                role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
                subject = {"kind": "ServiceAccount", "name": "robot", "namespace": "default"}
                binding = {"metadata": {"name": "robot"}, "roleRef": role, "subjects": [subject]}
                _post(client, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)
            return _post(client, "/api/v1/namespaces/default/serviceaccounts/robot/token", {})["status"]["token"]

    def client(self) -> Client:
        return connect(self.settings(), user_agent="slacktide-test")

    def stop(self):
        self._controllers.close()
        self.plane.stop()

    def restart(self, how=signal.SIGTERM):
        self.plane.stop_api(how)
        self.plane.start()

    def forget_history(self):
        """Compact etcd up to now, and let the server begin with an empty cache."""
        self.plane.compact()
        self.restart(signal.SIGKILL)


def _post(client, path, body):
    return json.loads(client.request("POST", path, body=json.dumps(body).encode()))

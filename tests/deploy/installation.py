"""What an installation takes on the control plane of the tests: controllers, kubelets, a runner of jobs."""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from slacktide.cluster import NODES, PODS, Client
from slacktide.cluster.errors import NotFound
from tests.cluster.fake_kubelet import FakeKubelet, node_body
from tests.cluster.harness import ROOT, ControlPlane
from tests.deploy.chart import NAMESPACE

CONTROLLERS: Final = ",".join(
    f"{name}-controller"
    for name in (
        *("deployment", "replicaset", "daemonset", "statefulset", "job", "serviceaccount"),
        *("disruption", "garbage-collector", "namespace", "endpointslice"),
    )
)


def account_kubeconfig(plane: ControlPlane, client: Client, account: str, directory: Path) -> str:
    """Path of a kubeconfig with a token of a service account of the chart."""
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    token = json.loads(client.request("POST", path, body=json.dumps(body).encode()))["status"]["token"]
    config = json.loads(Path(plane.kubeconfig()).read_text())
    config["users"] = [{"name": "admin", "user": {"token": token}}]
    file = directory / f"{account}.kubeconfig"
    file.write_text(json.dumps(config))
    return str(file)


def make_node(client: Client, name: str, batch: dict[str, str], annotations: dict[str, str]) -> None:
    """A ready node on which this was published."""
    body = node_body(name)
    status = body["status"]
    for part in ("capacity", "allocatable"):
        status[part] = {**status[part], **batch}
    body["metadata"]["annotations"] = annotations
    body["metadata"]["labels"]["kubernetes.io/os"] = "linux"
    client.create(NODES, body)
    client.patch(NODES, name, None, {"status": status}, "status")
    client.patch(NODES, name, None, {"spec": {"taints": None}})


class JobRunner:
    """Runs the command of a job's pod as a process, with the rights of its account, and says how it ended."""

    def __init__(self, plane: ControlPlane, client: Client, directory: Path) -> None:
        self._plane = plane
        self._client = client
        self._directory = directory
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.ran: list[subprocess.CompletedProcess[str]] = []

    def __enter__(self) -> JobRunner:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        done = set()
        while not self._stop.wait(0.1):
            for pod in self._client.list(PODS, NAMESPACE, label_selector="app.kubernetes.io/component=uninstall").items:
                if pod.metadata.uid not in done and pod.status.phase == "Running":
                    done.add(pod.metadata.uid)
                    with contextlib.suppress(NotFound):
                        self._run_pod(pod.metadata.name)

    def _run_pod(self, name: str) -> None:
        pod = self._client.get_dict(PODS, name, NAMESPACE)
        (container,) = pod["spec"]["containers"]
        assert container["command"] == ["slacktide"]
        config = account_kubeconfig(self._plane, self._client, pod["spec"]["serviceAccountName"], self._directory)
        command = [sys.executable, "-m", "cli", *container["args"], "--kubeconfig", config]
        self.ran.append(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100))
        code = self.ran[-1].returncode
        terminated = {"exitCode": code, "reason": "Completed" if code == 0 else "Error"}
        status = {
            "phase": "Failed" if code else "Succeeded",
            "containerStatuses": [
                {**pod["status"]["containerStatuses"][0], "ready": False, "state": {"terminated": terminated}}
            ],
        }
        self._client.patch(PODS, name, NAMESPACE, {"status": status}, "status")


@contextlib.contextmanager
def living(plane: ControlPlane, client: Client, directory: Path) -> Iterator[JobRunner]:
    """Controllers, the stock scheduler, kubelets and the runner of jobs."""
    with (
        plane.controllers(CONTROLLERS),
        plane.scheduler(),
        FakeKubelet(client),
        JobRunner(plane, client, directory) as jobs,
    ):
        yield jobs


def secret(client: Client, name: str) -> dict[str, bytes]:
    """Content of a secret of the chart."""
    found: dict[str, Any] = json.loads(client.request("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets/{name}"))
    return {key: base64.b64decode(value) for key, value in found["data"].items()}

"""The agent on the emulated node, as a pod of the DaemonSet that the manifests have: its account, rights, capabilities.

What differs from the manifest is what this place lacks: the image (a busybox, into which Python and the sources are
mounted from the guest), a network of its own, and time: probes are patient. Settings come from a file of the guest.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from slacktide.cluster import NAMESPACES, PODS
from slacktide.cluster.errors import NotFound
from slacktide.objects import Pod
from tests.kubelet import tools
from tests.kubelet.machine import ADDRESS, CGROUPS, NAME, OUTSIDE, InsideError, Machine

REPOSITORY: Final = Path(__file__).resolve().parents[2]
MANIFEST: Final = REPOSITORY / "deploy" / "manifests" / "agent.yaml"
NAMESPACE: Final = "slacktide-system"
POD: Final = "slacktide-agent"

_START_SECONDS: Final = 600.0
_BYTECODE: Final = "/run/bytecode"
_CONFIG: Final = "/run/agent-config"
_SETTINGS: Final = "settings.yaml"
_LIST_IMPORTS: Final = """
import json, sys
import agent.main, agent.act.watchdog, agent.act.ballast_helper, kubernetes.client, kubernetes.config
print(json.dumps(sorted({one.__file__ for one in sys.modules.values() if getattr(one, "__file__", None)})))
"""
_PATHS: Final = {
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "ConfigMap": f"/api/v1/namespaces/{NAMESPACE}/configmaps",
    "ServiceAccount": f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts",
}
"""What of the manifest is made as it stands."""


class GuestAgent:
    """The one agent of the node; settings as in its configuration file."""

    def __init__(self, machine: Machine, settings: Mapping[str, Any], directory: Path) -> None:
        assert machine.client is not None
        self._machine = machine
        self._client = machine.client
        self._settings = dict(settings)
        self._directory = directory
        self._said: list[str] = []
        self._pod: Pod | None = None

    def start(self) -> None:
        """Make all that the manifest has, the pod in place of the DaemonSet, and wait until the agent decides."""
        self._give_python()
        self._machine.inside.run(f"mkdir -p {_CONFIG}")
        self._write_settings()
        self._client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        objects = list(yaml.safe_load_all(MANIFEST.read_text()))
        certificate = {"ca.crt": Path(self._machine.plane.ca).read_text()}
        objects.append({"kind": "ConfigMap", "metadata": {"name": "slacktide-ca"}, "data": certificate})
        for one in objects:
            if one["kind"] in _PATHS:
                self._client.request("POST", _PATHS[one["kind"]], body=json.dumps(one).encode())
        (daemon_set,) = (one for one in objects if one["kind"] == "DaemonSet")
        template = daemon_set["spec"]["template"]
        metadata = {**template["metadata"], "name": POD, "namespace": NAMESPACE}
        self._pod = self._client.create(PODS, {"metadata": metadata, "spec": self._fitted(template["spec"])})
        self._machine.wait(self._decides, "agent that decides", _START_SECONDS)

    def stop(self) -> None:
        """Delete the pod, and wait until it is gone."""
        self._said = self._lines()
        self._client.delete(PODS, POD, NAMESPACE)
        self._machine.wait(self._is_gone, "end of the agent")

    def set(self, **settings: Any) -> None:
        """Change the configuration file, and tell the agent so."""
        self._settings.update(settings)
        self._write_settings()
        self._machine.inside.run(f"kill -HUP {self._pid()}")

    @property
    def uid(self) -> str:
        """UID of the agent's own pod."""
        assert self._pod is not None
        return self._pod.metadata.uid

    def ready(self) -> bool:
        """Whether the kubelet takes the agent for ready, by its probes."""
        statuses = self._client.get(PODS, POD, NAMESPACE).status.container_statuses
        return bool(statuses) and all(one.ready and not one.restart_count for one in statuses)

    def status(self) -> dict[str, Any]:
        """What it says of itself; empty while it does not."""
        try:
            return json.loads(self._machine.inside.get(f"http://{ADDRESS}:9464/status"))
        except InsideError:
            return {}

    def log(self) -> list[dict[str, Any]]:
        """All that it said, also after it was stopped."""
        return [json.loads(line) for line in self._said or self._lines()]

    def _lines(self) -> list[str]:
        """Of the container's log: after time, stream and flag of the runtime."""
        text = self._machine.inside.run(f"cat /var/log/pods/{NAMESPACE}_{POD}_{self.uid}/agent/*.log")
        return [line.split(" ", 3)[3] for line in text.splitlines()]

    def _pid(self) -> int:
        """Of the agent itself, the first process of its container."""
        (status,) = self._client.get(PODS, POD, NAMESPACE).status.container_statuses
        (path,) = self._machine.inside.find(
            f"{CGROUPS}/kubepods*/**/*{status.container_id.rpartition('/')[2]}*/cgroup.procs"
        )
        return min(int(word) for word in self._machine.inside.read(path).split())

    def _decides(self) -> bool:
        status = self.status()
        return bool(status) and "held" not in status["reasons"]

    def _is_gone(self) -> bool:
        try:
            self._client.get(PODS, POD, NAMESPACE)
        except NotFound:
            return True
        return False

    def _fitted(self, spec: dict[str, Any]) -> dict[str, Any]:
        """The pod's spec, with what this place lacks replaced."""
        (container,) = spec["containers"]
        mounts = {
            "python": sys.base_prefix, "packages": sys.prefix, "sources": str(REPOSITORY), "bytecode": _BYTECODE,
            "usr": "/usr", "lib": "/lib", "lib64": "/lib64",
        }  # fmt: skip
        volumes = [{"name": name, "hostPath": {"path": path}} for name, path in mounts.items()]
        reached = {
            "PYTHONPYCACHEPREFIX": _BYTECODE,
            "KUBERNETES_SERVICE_HOST": OUTSIDE,
            "KUBERNETES_SERVICE_PORT": str(self._machine.plane.port),
        }
        patient = {"timeoutSeconds": 60, "periodSeconds": 10, "failureThreshold": 60}
        probes = {name: {**container[name], **patient} for name in ("startupProbe", "livenessProbe", "readinessProbe")}
        fitted = {
            **container,
            **probes,
            "image": tools.reference("busybox"),
            "imagePullPolicy": "Never",
            "command": [sys.executable, "-m", "agent"],
            "workingDir": str(REPOSITORY),
            "env": [*container["env"], *({"name": name, "value": value} for name, value in reached.items())],
            "volumeMounts": [
                *container["volumeMounts"],
                {"name": "account", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": True},
                *({"name": name, "mountPath": path, "readOnly": True} for name, path in mounts.items()),
            ],
        }
        config = {"name": "config", "hostPath": {"path": _CONFIG}}
        kept = [volume for volume in spec["volumes"] if volume["name"] != "config"]
        return {
            **spec,
            "nodeName": NAME,
            "hostNetwork": True,
            "terminationGracePeriodSeconds": 300,
            "containers": [fitted],
            "volumes": [*kept, config, _account(), *volumes],
        }

    def _write_settings(self) -> None:
        self._machine.inside.write(f"{_CONFIG}/{_SETTINGS}", json.dumps(self._settings))

    def _give_python(self) -> None:
        """What the agent imports, compiled here, into the guest's memory: over 9p it would take the guest minutes."""
        compiled = self._directory / "bytecode"
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(compiled)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        listed = subprocess.run(
            [sys.executable, "-c", _LIST_IMPORTS], cwd=REPOSITORY, env=environment, check=True, capture_output=True
        )
        with tarfile.open(self._machine.shared / "python.tar", "w") as archive:
            archive.add(compiled, _BYTECODE)
            for path in json.loads(listed.stdout):
                archive.add(path, os.path.realpath(path))
        # Files of the same path lie above those of this machine then.
        self._machine.inside.run("tar -xf /mnt/python.tar -C /", seconds=300)


def _account() -> dict[str, Any]:
    """The volume that admission gives to a pod with an account; here that plugin is off."""
    sources = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
        {"configMap": {"name": "slacktide-ca", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
    ]
    return {"name": "account", "projected": {"sources": sources}}

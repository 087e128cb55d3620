"""The agent on the emulated node: its account and rights in the API, its process in the guest, and what it says.

It reaches the API as in a pod: address in the environment, a token of its service account and the authority's
certificate where a pod has them. The token is bound to nothing, since no pod stands behind it.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from slacktide.cluster import NAMESPACES
from tests.kubelet.machine import NAME, OUTSIDE, InsideError, Machine
from tests.patience import PATIENCE

REPOSITORY: Final = Path(__file__).resolve().parents[2]
NAMESPACE: Final = "slacktide-system"
ACCOUNT: Final = "slacktide-agent"
RULES: Final = (
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]},
)

STATE: Final = "/var/lib/slacktide/agent"
_SECRETS: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
_OBSERVE: Final = "127.0.0.1:9464"
_START_SECONDS: Final = 240.0
_STOP_SECONDS: Final = 60.0


class GuestAgent:
    """One agent, started and stopped any number of times; settings as in its configuration file."""

    def __init__(self, machine: Machine, settings: Mapping[str, Any], directory: Path) -> None:
        self._machine = machine
        self._settings = dict(settings)
        self._grant()
        self._give_bytecode(directory)
        machine.inside.run(f"mkdir -p {_SECRETS} {STATE}")
        machine.inside.write(f"{_SECRETS}/token", self._token())
        machine.inside.write(f"{_SECRETS}/namespace", NAMESPACE)
        machine.inside.write(f"{_SECRETS}/ca.crt", Path(machine.plane.ca).read_text())
        self.set()

    def set(self, **settings: Any) -> None:
        """Change the configuration file; an agent that runs is told so."""
        self._settings.update(settings)
        (self._machine.shared / "agent.yaml").write_text(json.dumps(self._settings))
        self._machine.inside.run("test ! -e /run/agent.pid || kill -HUP $(cat /run/agent.pid)")

    def start(self) -> None:
        """Start it, and wait until it decides."""
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPYCACHEPREFIX": "/run/bytecode",
            "KUBERNETES_SERVICE_HOST": OUTSIDE,
            "KUBERNETES_SERVICE_PORT": str(self._machine.plane.port),
        }
        words = [
            *("env", *(f"{name}={value}" for name, value in environment.items())),
            *(sys.executable, "-m", "agent", "--config", "/mnt/agent.yaml", "--node", NAME),
            *("--state-dir", STATE, "--observe.listen", _OBSERVE),
        ]
        self._machine.inside.run(
            f"cd {REPOSITORY}; setsid {shlex.join(words)} >> /mnt/agent.log 2>&1 < /dev/null & echo $! > /run/agent.pid"
        )
        self._machine.wait(self.decides, "agent that decides", _START_SECONDS)

    def stop(self) -> None:
        """Tell it to stop, and wait until it has."""
        self._machine.inside.run("kill -TERM $(cat /run/agent.pid)")
        gone = "if kill -0 $(cat /run/agent.pid) 2> /dev/null; then echo; else rm /run/agent.pid; echo gone; fi"
        self._machine.wait(lambda: self._machine.inside.run(gone).strip(), "end of the agent", _STOP_SECONDS)

    def decides(self) -> bool:
        """Whether it is there and holds nothing back."""
        status = self.status()
        return bool(status) and "held" not in status["reasons"]

    def status(self) -> dict[str, Any]:
        """What it says of itself; empty while it does not."""
        try:
            return json.loads(self._machine.inside.get(f"http://{_OBSERVE}/status"))
        except InsideError:
            return {}

    def log(self) -> list[dict[str, Any]]:
        """All that it said."""
        path = self._machine.shared / "agent.log"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def _grant(self) -> None:
        """Its namespace, account and rights."""
        client = self._machine.client
        assert client is not None
        client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        roles = "/apis/rbac.authorization.k8s.io/v1"
        metadata = {"name": ACCOUNT}
        subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ACCOUNT}
        for path, body in (
            (f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", {}),
            (f"{roles}/clusterroles", {"rules": list(RULES)}),
            (f"{roles}/clusterrolebindings", {"subjects": [subject], "roleRef": reference}),
        ):
            client.request("POST", path, body=json.dumps({"metadata": metadata, **body}).encode())

    def _token(self) -> str:
        client = self._machine.client
        assert client is not None
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{ACCOUNT}/token"
        return json.loads(client.request("POST", path, body=b'{"spec": {"expirationSeconds": 7200}}'))["status"][
            "token"
        ]

    def _give_bytecode(self, directory: Path) -> None:
        """Compiled out here: the guest would take minutes."""
        compiled = directory / "bytecode"
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(compiled)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        imports = (
            "import agent.main, agent.act.watchdog, agent.act.ballast_helper, kubernetes.client, kubernetes.config"
        )
        subprocess.run([sys.executable, "-c", imports], cwd=REPOSITORY, env=environment, check=True)
        with tarfile.open(self._machine.shared / "bytecode.tar", "w") as archive:
            archive.add(compiled, ".")
        self._machine.inside.run(
            "mkdir -p /run/bytecode; tar -xf /mnt/bytecode.tar -C /run/bytecode", seconds=120 * PATIENCE
        )

"""A node: an emulated machine with a pure cgroup v2, containerd, runc and a kubelet, joined to a control plane here.

The machine runs on this machine's own files, like that of `tests.kernel.guest`, so that the same Python runs the same
sources there. It reaches the API server by QEMU's user network, as 10.0.2.2, which is this machine's loopback.
"""

from __future__ import annotations

import json
import secrets
import shutil
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from slacktide.cluster import NODES, Client
from slacktide.objects import Node
from tests.cluster import tools as cluster_tools
from tests.cluster.harness import ControlPlane, Program, StartFailed, free_ports
from tests.kernel import guest
from tests.kubelet import tools
from tests.kubelet.tunnel import KUBELET_PORT, Tunnel
from tests.patience import PATIENCE

DRIVERS: Final = ("systemd", "cgroupfs")
NAME: Final = "node-1"
OUTSIDE: Final = "10.0.2.2"
"""This machine, as the guest sees it."""

ADDRESS: Final = "10.0.2.15"
"""The guest in its network, as `guest/init` sets it."""

FILES: Final = Path(__file__).parent / "guest"
CGROUPS: Final = "/sys/fs/cgroup"

_MEMORY: Final = "3G"
_SECONDS_MAX: Final = 2400
_DOOR: Final = 7000
_SYSTEMD: Final = "/lib/systemd/systemd"
_START_SECONDS: Final = 400.0
_SERVER_NAMES: Final = f"subjectAltName=IP:127.0.0.1,IP:{OUTSIDE},DNS:localhost"

_CONTAINERD: Final = """version = 3
[plugins.'io.containerd.cri.v1.images']
  snapshotter = 'overlayfs'
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = '{pause}'
[plugins.'io.containerd.cri.v1.runtime']
  disable_apparmor = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ['/run/cni']
    conf_dir = '/etc/cni/net.d'
    use_internal_loopback = true
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = 'io.containerd.runc.v2'
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      BinaryName = '/run/node/runc'
      SystemdCgroup = {systemd}
"""


def missing(driver: str) -> str | None:
    """Why no node with this cgroup driver can be had here, in one line; None when it can."""
    reason = guest.why_not()
    if reason is not None:
        return reason
    if not (guest.cache() / "modules" / "network").exists():
        return "the guest's kernel has no network driver: make guest-tools"
    if driver == "systemd" and not Path(_SYSTEMD).exists():
        return f"no {_SYSTEMD} here to run in the guest"
    try:
        tools.directory()
        cluster_tools.directory()
    except tools.ToolsMissing as error:
        return str(error)
    return None


class InsideError(Exception):
    """What was asked of the guest failed there; the text says how."""


class Inside:
    """Looks and acts inside the guest, through guest/inside.py."""

    def __init__(self, port: int, secret: str) -> None:
        self._port = port
        self._secret = secret

    def read(self, path: str) -> str:
        """Text of a file. Raises InsideError."""
        return self._ask({"do": "read", "path": path})["text"]

    def reads(self, paths: Sequence[str]) -> list[str | None]:
        """Text of each file; None where it cannot be read."""
        return self._ask({"do": "reads", "paths": list(paths)})["texts"]

    def write(self, path: str, text: str) -> None:
        """Write to a file in place. Raises InsideError."""
        self._ask({"do": "write", "path": path, "text": text})

    def run(self, script: str, seconds: float = 60.0) -> str:
        """What a shell script printed. Raises InsideError where it fails."""
        answer = self._ask({"do": "run", "script": script, "seconds": seconds * PATIENCE}, seconds * PATIENCE + 30)
        if answer["status"]:
            raise InsideError(f"status {answer['status']}: {answer['text']}")
        return answer["text"]

    def find(self, pattern: str) -> list[str]:
        """Paths that match a pattern of the shell."""
        return self._ask({"do": "find", "pattern": pattern})["paths"]

    def get(self, url: str) -> str:
        """Body of a page of a server in the guest. Raises InsideError."""
        return self._ask({"do": "get", "url": url, "seconds": 30 * PATIENCE})["text"]

    def answers(self) -> bool:
        """Whether the guest is there."""
        try:
            self.read("/proc/uptime")
        except (OSError, InsideError, ValueError):
            return False
        return True

    def _ask(self, request: dict[str, Any], seconds: float = 60 * PATIENCE) -> dict[str, Any]:
        with socket.create_connection(("127.0.0.1", self._port), seconds) as connection:
            connection.sendall(json.dumps({**request, "secret": self._secret}).encode() + b"\n")
            with connection.makefile() as answers:
                line = answers.readline()
        answer = json.loads(line or '{"error": "the guest gave no answer"}')
        if "error" in answer:
            raise InsideError(f"{request.get('path') or request['do']}: {answer['error']}")
        return answer


class NodePlane(ControlPlane):
    """A control plane that a guest may call, and that knows its kubelet, which it reaches as `egress` says."""

    def __init__(self, directory: Path, egress: Path) -> None:
        super().__init__(directory)
        certificate, key = self._pki.issue("kubelet-client", "/O=system:masters/CN=api", "extendedKeyUsage=clientAuth")
        self._flags |= {
            "--egress-selector-config-file": str(egress),
            "--kubelet-preferred-address-types": "InternalIP",
            "--kubelet-client-certificate": certificate,
            "--kubelet-client-key": key,
        }
        self._serving = self._pki.issue("server", "/CN=kube-apiserver", _SERVER_NAMES)
        subject = f"/O=system:nodes/CN=system:node:{NAME}"
        self._certificates["kubelet"] = self._pki.issue("kubelet", subject, "extendedKeyUsage=clientAuth")

    @property
    def ca(self) -> str:
        """Path of the certificate of the authority."""
        return self._pki.ca

    def kubeconfig_inside(self, user: str) -> str:
        """Text of a kubeconfig for a program in the guest."""
        return Path(self.kubeconfig(user)).read_text().replace("127.0.0.1", OUTSIDE)


class Machine:
    """A control plane and one node of it; `stop` ends both. `shared` is the guest's /mnt."""

    def __init__(self, directory: Path, driver: str) -> None:
        self.driver = driver
        door, self._kubelet_port = free_ports(2)
        self._tunnel = Tunnel(directory, self._kubelet_port)
        self.plane = NodePlane(directory, self._tunnel.configuration)
        self.shared = directory / "shared"
        self.shared.mkdir()
        self._secret = secrets.token_hex(16)
        self.inside = Inside(door, self._secret)
        self._door = door
        self._directory = directory
        self._machine: Program | None = None
        self.client: Client | None = None

    def start(self) -> None:
        """Until the kubelet says that the node is ready. Raises StartFailed."""
        self.plane.start()
        self.client = self.plane.client()
        self._lay_out()
        initial = self._directory / "initramfs"
        initial.write_bytes(guest.initial_files())
        forwards = {self._door: _DOOR, self._kubelet_port: KUBELET_PORT}
        doors = [f"hostfwd=tcp:127.0.0.1:{here}-:{there}" for here, there in forwards.items()]
        network = ",".join(("user,id=net", *doors))
        command = guest.command(self.shared, initial, memory=_MEMORY, network=network)
        self._machine = Program("console", command, self._directory)
        self.wait(self.inside.answers, "an answer from the guest", _START_SECONDS)
        self.wait(self._is_ready, "a node that is ready", _START_SECONDS)

    def stop(self) -> None:
        """End everything."""
        if self._machine is not None:
            self._machine.process.kill()
            self._machine.process.wait()
        if self.client is not None:
            self.client.close()
        self.plane.stop()
        self._tunnel.close()

    def node(self) -> Node:
        """The node as the API has it. Raises NotFound."""
        assert self.client is not None
        return self.client.get(NODES, NAME)

    def wait(self, condition: Callable[[], Any], what: str, seconds: float = 300.0) -> Any:
        """What `condition` says once that is true. Raises StartFailed when the guest has ended, or at the deadline."""
        deadline = time.monotonic() + seconds * PATIENCE
        while True:
            found = condition()
            if found:
                return found
            assert self._machine is not None
            if self._machine.process.poll() is not None:
                raise self._machine.fail("ended")
            if time.monotonic() > deadline:
                raise StartFailed(f"no {what} within {seconds * PATIENCE:.0f} s\n{self.last_words()}")
            time.sleep(0.2)

    def kubelet_log(self) -> list[str]:
        """All that the kubelet said."""
        path = self.shared / "kubelet.log"
        return path.read_text(errors="replace").splitlines() if path.exists() else []

    def last_words(self) -> str:
        """The ends of the logs, for one who must find out what is wrong."""
        assert self._machine is not None
        logs = [self._machine.log, *sorted(self.shared.glob("*.log"))]
        return "\n".join(
            f"== {path.name}\n{path.read_text(errors='replace')[-1500:]}" for path in logs if path.exists()
        )

    def _is_ready(self) -> bool:
        assert self.client is not None
        nodes = self.client.list(NODES).items
        return any(one.type == "Ready" and one.status == "True" for node in nodes for one in node.status.conditions)

    def _lay_out(self) -> None:
        """All that the guest's start needs, in its /mnt."""
        for path in FILES.iterdir():
            if path.is_file():
                shutil.copy(path, self.shared / path.name)
        systemd = self.driver == "systemd"
        pause = tools.reference("pause")
        (self.shared / "containerd.toml").write_text(_CONTAINERD.format(pause=pause, systemd=str(systemd).lower()))
        shutil.copy(self.plane.ca, self.shared / "ca.crt")
        (self.shared / "kubelet.yaml").write_text(json.dumps(self._kubelet()))
        (self.shared / "kubelet.kubeconfig").write_text(self.plane.kubeconfig_inside("kubelet"))
        environment = {
            "NODE": NAME,
            "DRIVER": self.driver,
            "SYSTEMD": _SYSTEMD,
            "MODULES": guest.cache() / "modules",
            "TOOLS": tools.directory(),
            "IMAGES": " ".join(tools.IMAGES),
            "PYTHON": sys.executable,
            "SECONDS_MAX": _SECONDS_MAX,
            "SECRET": self._secret,
        }
        lines = [f"{name}='{value}'\n" for name, value in environment.items()]
        (self.shared / "environment").write_text("".join(lines))

    def _kubelet(self) -> dict[str, Any]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "cgroupDriver": self.driver,
            "failSwapOn": False,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": False},
                "x509": {"clientCAFile": "/mnt/ca.crt"},
            },
            "authorization": {"mode": "AlwaysAllow"},
            "resolvConf": "/run/resolv.conf",
            "nodeStatusUpdateFrequency": "5s",
            "nodeStatusReportFrequency": "5s",
            "enforceNodeAllocatable": ["pods"],
            "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        }

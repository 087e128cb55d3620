"""A control plane of its own for a test: etcd, kube-apiserver and what else is asked for, on free ports of loopback.

Everything lives in one directory and ends by its own pid; when the test run is killed, the kernel ends the programs
(PR_SET_PDEATHSIG by `setpriv`). The certificate authority carries no keyUsage, as those of many clusters.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from slacktide.cluster import Client, connect, errors
from slacktide.settings import ClusterSettings
from tests.cluster import tools
from tests.patience import PATIENCE
from tests.pki import Pki

ROOT: Final = Path(__file__).resolve().parents[2]

_START_SECONDS: Final = 60.0 * PATIENCE
_STOP_SECONDS: Final = 15.0
_ETCD_SECONDS: Final = 30.0
_SERVER_NAMES: Final = "subjectAltName=IP:127.0.0.1,DNS:localhost,DNS:kubernetes.default.svc,IP:10.0.0.1"
_CLIENT: Final = "extendedKeyUsage=clientAuth"
_THROUGHPUT: Final = {
    "--max-requests-inflight": "0",
    "--max-mutating-requests-inflight": "0",
    "--enable-priority-and-fairness": "false",
}
USERS: Final = {
    "admin": "/O=system:masters/CN=admin",
    "scheduler": "/CN=system:kube-scheduler",
    "controllers": "/CN=system:kube-controller-manager",
}


class StartFailed(Exception):
    """A program did not come up; the text has the end of its log."""


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on now."""
    with contextlib.ExitStack() as open_sockets:
        found = [open_sockets.enter_context(contextlib.closing(socket.socket())) for _ in range(count)]
        for one in found:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in found]


class Program:
    """One program that runs until `stop`."""

    def __init__(self, name: str, command: list[str], directory: Path, logs: Path | None = None) -> None:
        self.name = name
        self.log = (logs or directory) / f"{name}.log"
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=directory,
            )

    def fail(self, why: str) -> StartFailed:
        """The error to raise when it did not come up."""
        lines = self.log.read_text(errors="replace").splitlines()[-15:]
        return StartFailed(f"{self.name} {why}:\n" + "\n".join(lines))

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it, and wait."""
        if self.process.poll() is None:
            self.process.send_signal(how)
            try:
                self.process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class ControlPlane:
    """etcd and an API server; `kubeconfig(user)` says how to reach it."""

    def __init__(self, directory: Path, *, throughput: bool = False, flags: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        self._programs = tools.directory()
        self._flags = {**(_THROUGHPUT if throughput else {}), **(flags or {})}
        self._pki = Pki(directory)
        self._etcd_port, peer_port, self.port = free_ports(3)
        self._peer = f"http://127.0.0.1:{peer_port}"
        self._certificates = {name: self._pki.issue(name, subject, _CLIENT) for name, subject in USERS.items()}
        self._serving = self._pki.issue("server", "/CN=kube-apiserver", _SERVER_NAMES)
        self._account_key = self._pki.path("accounts.key")
        subprocess.run(["openssl", "genrsa", "-out", self._account_key, "2048"], check=True, capture_output=True)
        self._etcd: Program | None = None
        self._api: Program | None = None

    @property
    def url(self) -> str:
        """Address of the API server."""
        return f"https://127.0.0.1:{self.port}"

    @property
    def ca(self) -> str:
        """Path of the certificate of the authority that signed the API server's."""
        return str(self._pki.ca)

    def start(self) -> None:
        """Start both, and wait until the server answers. Raises StartFailed."""
        if self._etcd is None:
            self._etcd = Program("etcd", [str(self._programs / "etcd"), *_flat(self._etcd_flags())], self.directory)
        self._api = Program(
            "kube-apiserver", [str(self._programs / "kube-apiserver"), *_flat(self._api_flags())], self.directory
        )
        self.wait_ready()

    def wait_ready(self) -> None:
        """Until the server says that it is ready. Raises StartFailed."""
        assert self._api is not None
        deadline = time.monotonic() + _START_SECONDS
        with contextlib.closing(self.client()) as client:
            while not _ready(client):
                if self._api.process.poll() is not None:
                    raise self._api.fail(f"ended with {self._api.process.returncode}")
                if time.monotonic() > deadline:
                    raise self._api.fail(f"was not ready after {_START_SECONDS:.0f} s")
                time.sleep(0.1)

    def stop_api(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End the API server alone; `start` brings it back with what etcd holds."""
        if self._api is not None:
            self._api.stop(how)
            self._api = None

    def compact(self) -> None:
        """Let etcd forget all that was before now. The server knows it from its cache until it is started anew."""
        revision = self._ask_etcd("/v3/maintenance/status", {})["header"]["revision"]
        self._ask_etcd("/v3/kv/compaction", {"revision": revision})

    def _ask_etcd(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self._etcd_port}{path}"
        request = urllib.request.Request(url, json.dumps(body).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=_ETCD_SECONDS) as response:
            answer: dict[str, Any] = json.load(response)
        return answer

    def stop(self) -> None:
        """End everything; the server first, for it does not end without its etcd."""
        self.stop_api()
        if self._etcd is not None:
            self._etcd.stop()
            self._etcd = None

    def client(self, user: str = "admin") -> Client:
        """A client of ours."""
        return connect(self.settings(user), user_agent=f"test-{user}")

    def settings(self, user: str = "admin") -> ClusterSettings:
        """How our programs reach it."""
        return ClusterSettings(kubeconfig=self.kubeconfig(user))

    def kubeconfig(self, user: str = "admin") -> str:
        """Path of a kubeconfig of one of USERS."""
        certificate, key = self._certificates[user]
        path = self.directory / f"{user}.kubeconfig"
        cluster = {"server": self.url, "certificate-authority": self._pki.ca}
        body: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": user, "user": {"client-certificate": certificate, "client-key": key}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
            "current-context": "test",
        }
        path.write_text(json.dumps(body))
        return str(path)

    @contextlib.contextmanager
    def scheduler(self, configuration: Mapping[str, Any] | None = None) -> Iterator[Program]:
        """The stock scheduler, without leader election; `configuration` are fields of KubeSchedulerConfiguration."""
        with running(self.stock_scheduler(configuration)) as started:
            yield started

    def stock_scheduler(self, configuration: Mapping[str, Any] | None = None) -> Program:
        """The same for one that the caller ends, or kills."""
        (port,) = free_ports(1)
        body = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": self.kubeconfig("scheduler"), "qps": 10_000, "burst": 10_000},
            "leaderElection": {"leaderElect": False},
            **(configuration or {}),
        }
        path = self.directory / "scheduler.json"
        path.write_text(json.dumps(body))
        flags = {"--config": str(path), "--secure-port": str(port), "--bind-address": "127.0.0.1"}
        program = str(self._programs / "kube-scheduler")
        return Program("kube-scheduler", [program, *_flat(flags)], self.directory)

    @contextlib.contextmanager
    def controllers(
        self, names: str = "disruption,garbage-collector-controller,namespace-controller"
    ) -> Iterator[Program]:
        """The controller manager with some controllers."""
        (port,) = free_ports(1)
        flags = {
            "--kubeconfig": self.kubeconfig("controllers"),
            "--controllers": names,
            "--leader-elect": "false",
            "--secure-port": str(port),
            "--bind-address": "127.0.0.1",
            "--use-service-account-credentials": "true",
        }
        program = str(self._programs / "kube-controller-manager")
        with running(Program("kube-controller-manager", [program, *_flat(flags)], self.directory)) as started:
            yield started

    @contextlib.contextmanager
    def slacktide(self, module: str, *flags: str, name: str = "") -> Iterator[Program]:
        """One of our daemons, `python -m MODULE`, with the rights of an administrator; `name` names its log."""
        with running(self.daemon(module, *flags, name=name)) as started:
            yield started

    def daemon(self, module: str, *flags: str, name: str = "", kubeconfig: str = "") -> Program:
        """The same for one that the caller ends, or kills."""
        command = [sys.executable, "-m", module, "--cluster.kubeconfig", kubeconfig or self.kubeconfig(), *flags]
        return Program(name or module, command, ROOT, self.directory)

    def _etcd_flags(self) -> dict[str, str]:
        client = f"http://127.0.0.1:{self._etcd_port}"
        return {
            "--data-dir": str(self.directory / "etcd"),
            "--listen-client-urls": client,
            "--advertise-client-urls": client,
            "--listen-peer-urls": self._peer,
            "--initial-advertise-peer-urls": self._peer,
            "--initial-cluster": f"default={self._peer}",
            "--unsafe-no-fsync": "true",
            "--log-level": "warn",
        }

    def _api_flags(self) -> dict[str, str]:
        certificate, key = self._serving
        return {
            "--etcd-servers": f"http://127.0.0.1:{self._etcd_port}",
            "--secure-port": str(self.port),
            "--bind-address": "127.0.0.1",
            "--tls-cert-file": certificate,
            "--tls-private-key-file": key,
            "--client-ca-file": self._pki.ca,
            "--service-account-key-file": self._account_key,
            "--service-account-signing-key-file": self._account_key,
            "--service-account-issuer": "https://kubernetes.default.svc",
            "--service-cluster-ip-range": "10.0.0.0/24",
            "--authorization-mode": "Node,RBAC",
            # Without the controllers nobody makes a namespace's default account, or takes the taint of new nodes away.
            "--disable-admission-plugins": "ServiceAccount,TaintNodesByCondition",
            **self._flags,
        }


@contextlib.contextmanager
def running(program: Program) -> Iterator[Program]:
    """The program, ended afterwards. Raises StartFailed when it has ended by itself by then."""
    try:
        yield program
        if program.process.poll() is not None:
            raise program.fail(f"ended with {program.process.returncode}")
    finally:
        program.stop()


@contextlib.contextmanager
def control_plane(directory: Path, *, throughput: bool = False) -> Iterator[ControlPlane]:
    """A control plane that is gone afterwards. Raises ToolsMissing, StartFailed."""
    plane = ControlPlane(directory, throughput=throughput)
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()


def missing() -> str | None:
    """Why no control plane can be had here, in one line; None when it can."""
    for program in ("openssl", "setpriv"):
        if shutil.which(program) is None:
            return f"no control plane here: {program} is not installed"
    try:
        tools.directory()
    except tools.ToolsMissing as error:
        return str(error)
    return None


def _ready(client: Client) -> bool:
    # It answers before it has made the roles that its own clients need.
    try:
        client.request("GET", "/readyz")
    except errors.ClusterError:
        return False
    return True


def _flat(flags: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in flags.items()]

"""A node that runs the containers of its pods as processes of this machine, for a cluster without a container engine.

What a kubelet would do for Slacktide's own pods: volumes (configMap, secret, emptyDir, projected with tokens, hostPath)
in a mount namespace (`pod_root`), downward API, restarts, HTTP probes, grace period, cgroups in the kubepods layout
below a directory of its own. Images are not looked at: a command is found on PATH. Each pod has an address of loopback,
and services are names in the pods' /etc/hosts. It is not a container runtime: users, capabilities, limits of volumes
and network policies are not enforced. A pod whose containers name no command is only marked Running. Needs root.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from slacktide.cluster import NODES, PODS, Client, Informer
from slacktide.cluster.errors import ClusterError, Conflict, NotFound
from slacktide.kernel.hierarchy import discover
from slacktide.objects import Pod, is_terminal
from slacktide.weights import shares_of
from standalone.runner.attempts import ContainerId, PodUid
from standalone.runner.environment import expand
from standalone.runner.groups import Groups
from standalone.runner.limits import container_limits, pod_limits
from standalone.runner.machine import read_machine
from standalone.sweep import sweep
from tests.cluster.fake_kubelet import running_status, stamp
from tests.cluster.harness import ControlPlane, StartFailed

ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
_TICK_SECONDS: Final = 0.2
_REFRESH_SECONDS: Final = 10.0
_TOKEN_SECONDS: Final = 3600
_PROBE_SECONDS: Final = 1.0
_BACKOFF_SECONDS: Final = (0.5, 1.0, 2.0, 5.0)
_POD_ROOT: Final = Path(__file__).with_name("pod_root.py")
_SERVICES: Final = "/api/v1/services"
_NETWORKS: Final = (64, 250)
_CLAIM_PORT: Final = 9464


@dataclass(slots=True)
class _Container:
    spec: dict[str, Any]
    id: str = ""
    process: subprocess.Popen[bytes] | None = None
    started: str = ""
    restarts: int = -1
    due: float = 0.0
    code: int | None = None
    ready: bool = False


@dataclass(slots=True)
class _LocalPod:
    body: dict[str, Any]
    view: Pod
    address: str
    directory: Path
    containers: list[_Container]
    volumes: dict[str, Path] = field(default_factory=dict)
    refreshed: float = float("-inf")
    tokens: dict[str, float] = field(default_factory=dict)
    end_at: float | None = None
    told: Any = None

    @property
    def names(self) -> tuple[str, str]:
        return self.view.metadata.namespace, self.view.metadata.name


class LocalNode:
    """Use as a context manager: the node is there and its pods run. What it keeps lies in `directory`.

    `cgroup_root` is the directory below each cgroup mount that pods are in; an agent among them is told by a variable.
    """

    def __init__(self, plane: ControlPlane, client: Client, directory: Path, name: str = "local") -> None:
        self._plane = plane
        self._client = client
        self._directory = directory
        self.name = name
        self.cgroup_root = f"slacktide-local-{secrets.token_hex(4)}"
        self._groups = Groups(discover(), self.cgroup_root)
        self._pods: dict[str, _LocalPod] = {}
        self._network: socket.socket | None = None
        self._addresses: Iterator[str] = iter(())
        self._hosts = directory / "hosts"
        self._informer = Informer(client, PODS, field_selector=f"spec.nodeName={name}", name="local-node")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="local-node", daemon=True)

    def __enter__(self) -> LocalNode:
        machine = read_machine(discover())
        self._network, self._addresses = _claim_network()
        self._groups.prepare(shares_of(machine.cpu_millis))
        self._hosts.write_text("127.0.0.1 localhost\n")
        amounts = {"cpu": f"{machine.cpu_millis}m", "memory": str(machine.memory_bytes), "pods": "110"}
        labels = {"kubernetes.io/hostname": self.name, "kubernetes.io/os": "linux"}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": stamp()}
        status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
        self._client.create(NODES, {"metadata": {"name": self.name, "labels": labels}, "status": status})
        self._informer.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._informer.stop()
        for pod in self._pods.values():
            _end(pod, signal.SIGTERM)
        for pod in self._pods.values():
            deadline = time.monotonic() + 10.0
            for one in pod.containers:
                if one.process is not None:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        one.process.wait(max(0.0, deadline - time.monotonic()))
            _end(pod, signal.SIGKILL)
            for one in pod.containers:
                if one.process is not None:
                    one.process.wait()
        sweep(discover(), self.cgroup_root, kill=True)
        assert self._network is not None
        self._network.close()

    def log(self, namespace: str, name: str) -> str:
        """What the containers of a pod wrote so far."""
        found = [pod for pod in self._pods.values() if pod.names == (namespace, name)]
        return "".join(path.read_text(errors="replace") for pod in found for path in pod.directory.glob("*.log"))

    def _loop(self) -> None:
        while not self._stopping.wait(_TICK_SECONDS):
            with contextlib.suppress(ClusterError):
                self._turn()

    def _turn(self) -> None:
        if not self._informer.synced:
            return
        listed = {pod.metadata.uid: pod for pod in self._informer.items()}
        for uid, view in listed.items():
            # One pod that cannot be served now does not keep the others waiting.
            with contextlib.suppress(NotFound, Conflict):
                self._look(uid, view)
        for uid in self._pods.keys() - listed.keys():
            self._finish(self._pods[uid])
        self._write_hosts()

    def _look(self, uid: str, view: Pod) -> None:
        if uid not in self._pods:
            if not is_terminal(view):
                self._pods[uid] = self._admit(view)
            return
        pod = self._pods[uid]
        pod.view = view
        if view.metadata.deletion_timestamp is not None:
            if self._finish(pod):
                self._client.delete(PODS, pod.names[1], pod.names[0], uid=uid, grace_period_seconds=0)
            return
        if is_terminal(view):
            return
        if pod.containers:
            self._refresh(pod)
            for one in pod.containers:
                self._keep(pod, one)
        self._tell(pod)

    def _admit(self, view: Pod) -> _LocalPod:
        body = self._client.get_dict(PODS, view.metadata.name, view.metadata.namespace)
        address = next(self._addresses)
        directory = self._directory / "pods" / view.metadata.uid
        directory.mkdir(parents=True)
        specs = body["spec"]["containers"]
        runs = all("command" in one for one in specs)
        return _LocalPod(body, view, address, directory, [_Container(one) for one in specs] if runs else [])

    def _refresh(self, pod: _LocalPod) -> None:
        """Make and renew volumes. Raises ClusterError where an object is missing: the pod waits."""
        if time.monotonic() - pod.refreshed < _REFRESH_SECONDS:
            return
        volumes = {one["name"]: one for one in pod.body["spec"].get("volumes", [])}
        for name, volume in volumes.items():
            pod.volumes[name] = self._volume(pod, name, volume)
        if ACCOUNT not in {m["mountPath"] for one in pod.containers for m in one.spec.get("volumeMounts", [])}:
            sources = [
                {"serviceAccountToken": {"path": "token"}},
                {"configMap": {"name": "kube-root-ca.crt"}},
                {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
            ]
            pod.volumes[ACCOUNT] = self._volume(pod, "account", {"projected": {"sources": sources}})
        pod.refreshed = time.monotonic()

    def _volume(self, pod: _LocalPod, name: str, volume: Mapping[str, Any]) -> Path:
        place = pod.directory / "volumes" / name
        if "hostPath" in volume:
            host = Path(volume["hostPath"]["path"])
            # What would have to be made on the machine is made in our directory instead.
            place = host if host.exists() else self._directory / "host" / host.relative_to("/")
        place.mkdir(parents=True, exist_ok=True)
        for source in volume.get("projected", {}).get("sources", [volume]):
            for path, content in self._files(pod, name, source).items():
                _write(place / path, content)
        return place

    def _files(self, pod: _LocalPod, name: str, source: Mapping[str, Any]) -> dict[str, bytes]:
        namespace = pod.names[0]
        if "configMap" in source:
            return self._config_map(namespace, source["configMap"])
        if "secret" in source:
            wanted = source["secret"].get("secretName") or source["secret"]["name"]
            data = self._object(f"/api/v1/namespaces/{namespace}/secrets/{wanted}").get("data", {})
            return {key: base64.b64decode(value) for key, value in data.items()}
        if "serviceAccountToken" in source:
            return self._token(pod, name, source["serviceAccountToken"])
        fields = source.get("downwardAPI", {}).get("items", [])
        return {one["path"]: self._field(pod, one["fieldRef"]["fieldPath"]).encode() for one in fields}

    def _config_map(self, namespace: str, source: Mapping[str, Any]) -> dict[str, bytes]:
        try:
            data = self._object(f"/api/v1/namespaces/{namespace}/configmaps/{source['name']}").get("data", {})
        except NotFound:
            if source["name"] != "kube-root-ca.crt":
                raise
            # Without the controller that publishes it.
            data = {"ca.crt": Path(self._plane.ca).read_text()}
        return {key: value.encode() for key, value in data.items()}

    def _token(self, pod: _LocalPod, name: str, source: Mapping[str, Any]) -> dict[str, bytes]:
        """A token bound to the pod, and so to this node; renewed before it ends."""
        if time.monotonic() < pod.tokens.get(name, float("-inf")):
            return {}
        seconds = source.get("expirationSeconds", _TOKEN_SECONDS)
        bound = {"kind": "Pod", "apiVersion": "v1", "name": pod.names[1], "uid": pod.view.metadata.uid}
        spec: dict[str, Any] = {"expirationSeconds": seconds, "boundObjectRef": bound}
        if "audience" in source:
            spec["audiences"] = [source["audience"]]
        account = pod.body["spec"].get("serviceAccountName", "default")
        path = f"/api/v1/namespaces/{pod.names[0]}/serviceaccounts/{account}/token"
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        made = json.loads(self._client.request("POST", path, body=json.dumps(request).encode()))
        pod.tokens[name] = time.monotonic() + 0.8 * seconds
        return {source["path"]: made["status"]["token"].encode()}

    def _object(self, path: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._client.request("GET", path))
        return found

    def _field(self, pod: _LocalPod, path: str) -> str:
        plain = {"status.podIP": pod.address, "status.hostIP": "127.0.0.1", "spec.nodeName": self.name}
        if path in plain:
            return plain[path]
        found: Any = pod.body
        for part in path.split("."):
            found = found.get(part, "")
        return str(found)

    def _keep(self, pod: _LocalPod, one: _Container) -> None:
        """Start a container that is due, note the end of one that ran, ask the probe of one that runs."""
        if one.process is not None and one.process.poll() is None:
            one.ready = self._probe(pod, one)
            return
        if one.process is not None:
            one.code, one.process, one.ready = one.process.returncode, None, False
            one.due = time.monotonic() + _BACKOFF_SECONDS[min(one.restarts, len(_BACKOFF_SECONDS) - 1)]
        policy = pod.body["spec"].get("restartPolicy", "Always")
        over = one.code is not None and (policy == "Never" or (policy == "OnFailure" and one.code == 0))
        if not over and time.monotonic() >= one.due:
            self._start(pod, one)

    def _start(self, pod: _LocalPod, one: _Container) -> None:
        one.restarts += 1
        one.id, one.started = secrets.token_hex(32), stamp()
        view = next(view for view in pod.view.spec.containers if view.name == one.spec["name"])
        qos, uid = pod.body["status"]["qosClass"], PodUid(pod.view.metadata.uid)
        self._groups.make_pod(qos, uid, pod_limits(pod.view))
        self._groups.make_container(qos, uid, ContainerId(one.id), container_limits(view))
        root = pod.directory / f"{one.spec['name']}-{one.restarts}"
        root.mkdir()
        spec = {
            "argv": [expand(word, self._environment(pod, one)) for word in self._words(one)],
            "env": self._environment(pod, one),
            "root": str(root),
            "mounts": self._mounts(pod, one),
            "groups": list(self._groups.container(qos, uid, ContainerId(one.id)).dirs),
        }
        path = root.with_suffix(".json")
        path.write_text(json.dumps(spec))
        with open(pod.directory / f"{one.spec['name']}.log", "ab") as log:
            one.process = subprocess.Popen(
                [sys.executable, "-S", str(_POD_ROOT), str(path)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    @staticmethod
    def _words(one: _Container) -> list[str]:
        return [*one.spec["command"], *one.spec.get("args", [])]

    def _mounts(self, pod: _LocalPod, one: _Container) -> dict[str, str]:
        found = {"/etc/hosts": str(self._hosts)}
        for mount in one.spec.get("volumeMounts", []):
            source = pod.volumes[mount["name"]]
            # The machine's own directories are there already, and /tmp of the machine is as good as an empty one.
            if str(source) != mount["mountPath"] and mount["mountPath"] != "/tmp":
                found[mount["mountPath"]] = str(source)
        if ACCOUNT in pod.volumes:
            found[ACCOUNT] = str(pod.volumes[ACCOUNT])
        return found

    def _environment(self, pod: _LocalPod, one: _Container) -> dict[str, str]:
        scripts = os.path.dirname(sys.executable)
        values = {"PATH": f"{scripts}:{os.environ.get('PATH', '/usr/bin:/bin')}", "HOSTNAME": pod.names[1]}
        values |= {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(self._plane.port)}
        # An agent here must not take the machine's own pods for those of this node.
        values |= {"SLACKTIDE_AGENT_CGROUP_ROOT": self.cgroup_root}
        for variable in one.spec.get("env", []):
            source = variable.get("valueFrom", {}).get("fieldRef")
            text = self._field(pod, source["fieldPath"]) if source else expand(variable.get("value", ""), values)
            values[variable["name"]] = text
        return values

    @staticmethod
    def _probe(pod: _LocalPod, one: _Container) -> bool:
        asked = one.spec.get("readinessProbe", {}).get("httpGet")
        if asked is None:
            return True
        ports = {port.get("name"): port["containerPort"] for port in one.spec.get("ports", [])}
        port = asked["port"] if isinstance(asked["port"], int) else ports[asked["port"]]
        connection = http.client.HTTPConnection(pod.address, port, timeout=_PROBE_SECONDS)
        try:
            connection.request("GET", asked["path"])
            return connection.getresponse().status < 400
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _tell(self, pod: _LocalPod) -> None:
        """Bring the status to the API where it is another than it was told last."""
        state = [(one.restarts, one.ready, one.process is None, one.code) for one in pod.containers]
        if state == pod.told and pod.view.status.phase != "Pending":
            return
        body = {"metadata": {"uid": pod.view.metadata.uid}, "status": self._status(pod)}
        self._client.patch(PODS, pod.names[1], pod.names[0], body, "status")
        pod.told = state

    def _status(self, pod: _LocalPod) -> dict[str, Any]:
        status = running_status(pod.view, pod.address)
        if not pod.containers:
            return status
        codes = [one.code for one in pod.containers]
        over = all(one.process is None and one.code is not None for one in pod.containers)
        if over and pod.body["spec"].get("restartPolicy") in {"Never", "OnFailure"}:
            status["phase"] = "Failed" if any(codes) else "Succeeded"
        ready = "True" if all(one.ready for one in pod.containers) else "False"
        for condition in status["conditions"]:
            if condition["type"] in {"Ready", "ContainersReady"}:
                condition["status"] = ready
        for told, one in zip(status["containerStatuses"], pod.containers, strict=True):
            told |= {"containerID": f"containerd://{one.id}", "ready": one.ready, "restartCount": max(0, one.restarts)}
            if one.process is None:
                told["started"] = False
                told["state"] = {"terminated": {"exitCode": one.code or 0, "containerID": f"containerd://{one.id}"}}
        return status

    def _finish(self, pod: _LocalPod) -> bool:
        """End a pod's processes within its grace period; whether nothing of it is left."""
        uid, now = PodUid(pod.view.metadata.uid), time.monotonic()
        if pod.end_at is None:
            grace = pod.body["spec"].get("terminationGracePeriodSeconds", 30)
            pod.end_at = now + min(grace, pod.view.metadata.deletion_grace_period_seconds or grace)
            _end(pod, signal.SIGTERM)
        elif now > pod.end_at:
            _end(pod, signal.SIGKILL)
        if any(one.process is not None and one.process.poll() is None for one in pod.containers):
            return False
        for ended in self._groups.listed().get(uid, frozenset()):
            if not self._groups.remove_container(uid, ended):
                return False
        if not self._groups.remove_pod(uid):
            return False
        self._pods.pop(uid, None)
        return True

    def _write_hosts(self) -> None:
        """Names of all services whose pods are here; in place, because it is mounted as a file."""
        lines = ["127.0.0.1 localhost"]
        for service in self._object(_SERVICES)["items"]:
            wanted = service["spec"].get("selector")
            namespace, name = service["metadata"]["namespace"], service["metadata"]["name"]
            for pod in self._pods.values():
                labels = pod.view.metadata.labels
                if wanted and pod.names[0] == namespace and wanted.items() <= labels.items():
                    base = f"{name}.{namespace}"
                    lines.append(f"{pod.address} {base}.svc {base} {base}.svc.cluster.local")
        text = "\n".join(lines) + "\n"
        if text != self._hosts.read_text():
            with open(self._hosts, "r+", encoding="utf-8") as file:
                file.write(text)
                file.truncate()


def _claim_network() -> tuple[socket.socket, Iterator[str]]:
    """Addresses 127.N.x.y that no other node of this machine gives to its pods; N is ours while the socket is open."""
    for network in random.sample(range(_NETWORKS[0], _NETWORKS[1]), _NETWORKS[1] - _NETWORKS[0]):
        claim = socket.socket()
        try:
            claim.bind((f"127.{network}.255.254", _CLAIM_PORT))
        except OSError:
            claim.close()
            continue
        return claim, (f"127.{network}.{number >> 8}.{number & 255}" for number in range(1, (1 << 16) - 256))
    raise StartFailed("all networks of loopback are taken by nodes like this one")


def _end(pod: _LocalPod, number: signal.Signals) -> None:
    for one in pod.containers:
        if one.process is not None and one.process.poll() is None:
            one.process.send_signal(number)


def _write(path: Path, content: bytes) -> None:
    if path.exists() and path.read_bytes() == content:
        return
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(content)
    new.chmod(0o600)
    new.rename(path)


def why_not() -> str | None:
    """Why no such node can be had here, in one line; None when it can."""
    if os.geteuid() != 0:
        return "pods as processes need root: mount namespaces and cgroups"
    cpu = discover().controllers.get("cpu")
    if cpu is None or not os.access(cpu.path, os.W_OK):
        return "pods as processes need cgroups that can be written"
    return None

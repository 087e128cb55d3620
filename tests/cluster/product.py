"""The daemons of Slacktide as processes against a real control plane, and what tests ask of a cluster that has them."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from slacktide import forecast, names
from slacktide.cluster import NODES, PODS, Client
from slacktide.cluster.errors import NotFound
from slacktide.cluster.kinds import Kind
from slacktide.objects import ObjectMeta, Pod, View, is_terminal, is_terminating
from slacktide.quantity import parse
from standalone.probe import get
from tests.cluster.harness import ControlPlane, Program
from tests.patience import PATIENCE

CONTROLLERS: Final = ",".join(
    f"{name}-controller" for name in ("deployment", "replicaset", "disruption", "namespace", "garbage-collector")
)
STOCK: Final = "default-scheduler"
FAST: Final = {
    "--publish-seconds": "0.2",
    "--rise-wait-seconds": "0.5",
    "--rise-step-percent": "100",
    "--ttl-seconds": "20",
    "--young-seconds": "0",
    "--reserve-cpu-percent": "0",
    "--reserve-memory-percent": "0",
}
"""Settings of a predictor whose numbers follow at once and are easy to foretell: capacity - need."""

_READY_SECONDS: Final = 60.0 * PATIENCE


class Workload(View, frozen=True):
    """A Deployment."""

    api_version: str = "apps/v1"
    kind: str = "Deployment"
    metadata: ObjectMeta = ObjectMeta()
    spec: dict[str, Any] = {}  # noqa: RUF012 - msgspec copies it for each struct
    status: dict[str, Any] = {}  # noqa: RUF012 - same


DEPLOYMENTS: Final = Kind("apps/v1", "Deployment", "deployments", True, Workload)


def wait_for(condition: Callable[[], Any], what: str | Callable[[], str], seconds: float = 60.0) -> Any:
    """The first true value of `condition`; `what` is what it waits for, in words."""
    deadline = time.monotonic() + seconds * PATIENCE
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"no {what if isinstance(what, str) else what()} within {seconds:.0f} s")
        time.sleep(0.05)
    return found


def deployment(
    name: str,
    replicas: int,
    requests: Mapping[str, str],
    scheduler: str = names.SCHEDULER_NAME,
    labels: Mapping[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """A Deployment whose pods end at once when they are told to."""
    label = {"app": name, **(labels or {})}
    container = {"name": "main", "image": "none", "resources": {"requests": requests, "limits": requests}}
    pod = {"schedulerName": scheduler, "terminationGracePeriodSeconds": 1, "containers": [container], **spec}
    return {
        "metadata": {"name": name, "labels": label},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": label}, "spec": pod},
        },
    }


def be_deployment(name: str, replicas: int, cpu_millis: int = 1000, **more: Any) -> dict[str, Any]:
    """Best-effort pods of so many millicores and 256 MiB each."""
    requests = {names.BATCH_CPU: str(cpu_millis), names.BATCH_MEMORY: str(256 << 20)}
    return deployment(name, replicas, requests, labels={names.TIER_LABEL: "be"}, **more)


class Cluster:
    """Questions to the API server."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def pods(self, namespace: str, app: str = "") -> list[Pod]:
        """Living pods, of one Deployment where it is named."""
        selector = f"app={app}" if app else ""
        found = self.client.list(PODS, namespace, label_selector=selector).items
        return [pod for pod in found if not is_terminal(pod) and not is_terminating(pod)]

    def running(self, namespace: str, app: str, count: int) -> dict[str, str]:
        """Wait until exactly so many pods run; node by pod."""
        pods: list[Pod] = []

        def all_run() -> bool:
            pods[:] = self.pods(namespace, app)
            return len(pods) == count and all(pod.status.phase == "Running" for pod in pods)

        wait_for(all_run, f"{count} running pods of {app}")
        return {pod.metadata.name: pod.spec.node_name for pod in pods}

    def per_node(self, namespace: str, app: str, count: int) -> dict[str, int]:
        """The same, as pods by node."""
        where = list(self.running(namespace, app, count).values())
        return {node: where.count(node) for node in set(where)}

    def forecast(self, node: str) -> forecast.Forecast | None:
        """What the annotation of a node says; None without one or without the node."""
        try:
            text = self.client.get(NODES, node).metadata.annotations.get(names.FORECAST_ANNOTATION)
        except NotFound:
            return None
        return forecast.decode(text) if text else None

    def reclaimable(self, node: str) -> int | None:
        """Millicores that the annotation of a node offers."""
        found = self.forecast(node)
        return None if found is None else found.reclaimable.cpu_millis

    def published(self, node: str) -> int | None:
        """Millicores in the status of a node, None unless capacity and allocatable agree."""
        status = self.client.get(NODES, node).status
        both = [amounts.get(names.BATCH_CPU) for amounts in (status.capacity, status.allocatable)]
        if both[0] is None or both[0] != both[1]:
            return None
        return parse(both[0]).value()

    def offers(self, node: str, cpu_millis: int) -> None:
        """Wait until a node offers exactly so much, in annotation and status."""
        seen: list[int | None] = []

        def good() -> bool:
            seen[:] = [self.reclaimable(node), self.published(node)]
            return seen == [cpu_millis, cpu_millis]

        wait_for(good, lambda: f"offer of {cpu_millis} on {node}, which has {seen} in annotation and status")

    def words(self, namespace: str, app: str) -> str:
        """Why a pod of a Deployment is not placed; empty when none says."""
        for pod in self.pods(namespace, app):
            for condition in pod.status.conditions:
                if condition.type == "PodScheduled" and condition.status == "False":
                    return condition.message
        return ""

    def scale(self, namespace: str, name: str, replicas: int) -> None:
        """Another number of pods."""
        self.client.patch(DEPLOYMENTS, name, namespace, {"spec": {"replicas": replicas}})

    def cordon(self, node: str, unschedulable: bool = True) -> None:
        """As kubectl cordon and uncordon."""
        self.client.patch(NODES, node, None, {"spec": {"unschedulable": unschedulable}}, patch_type="strategic")


class Daemon:
    """One of ours, running, with a Unix socket for questions."""

    def __init__(self, program: Program, socket: str) -> None:
        self.program = program
        self._socket = socket

    def ask(self, route: str) -> str:
        """What it answers; empty while it does not."""
        with contextlib.suppress(OSError):
            return get(self._socket, route, 5.0)[1].decode()
        return ""

    @property
    def ready(self) -> bool:
        """Whether /readyz says so."""
        with contextlib.suppress(OSError):
            return get(self._socket, "/readyz", 5.0)[0] == 200
        return False

    def metric(self, series: str) -> float:
        """Value of one series, 0 where it is not there."""
        for line in self.ask("/metrics").splitlines():
            name, _, value = line.rpartition(" ")
            if name == series:
                return float(value)
        return 0.0

    def log(self) -> list[dict[str, Any]]:
        """Its log lines."""
        lines = self.program.log.read_text(errors="replace").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]


class Product:
    """Starts our daemons; what they keep lies in `directory`, which must have a short path for sockets."""

    def __init__(self, plane: ControlPlane, directory: Path) -> None:
        self.plane = plane
        self.directory = directory

    def predictor_address(self, name: str = "predictor") -> str:
        """Where the predictor of that name listens."""
        return f"unix:{self.directory}/{name}.grpc"

    @contextlib.contextmanager
    def predictor(self, name: str = "predictor", **settings: str) -> Iterator[Daemon]:
        """A predictor with a history of its own, ready; settings as `ttl_seconds="5"`."""
        place = {"--listen": self.predictor_address(name), "--history-dir": f"{self.directory}/{name}-history"}
        with self._running("predictor", name, FAST | place | _flags(settings)) as started:
            yield started

    @contextlib.contextmanager
    def scheduler(self, name: str = "scheduler", **settings: str) -> Iterator[Daemon]:
        """Our second scheduler, ready."""
        with self._running("scheduler_plugins", name, _flags(settings)) as started:
            yield started

    @contextlib.contextmanager
    def extender(self, port: int) -> Iterator[Daemon]:
        """The extender, ready, on a port of loopback."""
        with self._running("scheduler_plugins.extender_main", "extender", {"--listen": f"127.0.0.1:{port}"}) as started:
            yield started

    def daemon(self, module: str, name: str, **settings: str) -> contextlib.AbstractContextManager[Daemon]:
        """Any other daemon, ready; `drill__listen="unix:/x"` is --drill.listen unix:/x."""
        return self._running(module, name, _flags(settings))

    @contextlib.contextmanager
    def _running(self, module: str, name: str, flags: Mapping[str, str]) -> Iterator[Daemon]:
        socket = f"{self.directory}/{name}.observe"
        words = [word for flag in ({**flags, "--observe.listen": f"unix:{socket}"}).items() for word in flag]
        program = self.plane.daemon(module, *words, name=name)
        started = Daemon(program, socket)
        try:
            deadline = time.monotonic() + _READY_SECONDS
            while not started.ready:
                if program.process.poll() is not None or time.monotonic() > deadline:
                    raise program.fail(f"is not ready: {started.ask('/readyz')}")
                time.sleep(0.05)
            yield started
        finally:
            program.stop()


def _flags(settings: Mapping[str, str]) -> dict[str, str]:
    return {f"--{key.replace('__', '.').replace('_', '-')}": value for key, value in settings.items()}

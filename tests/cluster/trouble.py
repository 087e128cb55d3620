"""Predictor and scheduler behind a proxy that fails as told, one node with its agent and an LS pod, and what all of
them saw: the numbers that were published, and the lines that were said.

The proxies speak TLS, as an API server does, so that their certificates can be wrong too.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import ssl
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from agent.report import Reporter
from agent.settings import ReportSettings
from agent.spool import Spool
from slacktide import names
from slacktide.cluster import NAMESPACES, NODES, PODS, Client, Informer
from slacktide.cluster.metrics import ClusterMetrics
from slacktide.objects import Node, Pod
from tests.cluster.fake_kubelet import node_body
from tests.cluster.faults import FaultyProxy, proxied
from tests.cluster.harness import ROOT, ControlPlane, Program
from tests.cluster.product import Cluster, Daemon, Product, wait_for
from tests.cluster.simulated_agents import SimulatedAgents, SimulatedNode
from tests.pki import Pki

SAID: Final = "no service from the API server"
OVER: Final = "the API server serves again"
STEP: Final = 300
SYSTEM: Final = 100
COMPRESSED: Final = {"cluster__timeout_seconds": "1"}
QUICK: Final = ReportSettings(backoff_seconds=0.2, backoff_max_seconds=0.5)
_HERE: Final = "subjectAltName=IP:127.0.0.1\n"


class Certificates:
    """What a proxy may show: `good`, and by name what nobody should believe. `ca` is the authority to believe."""

    def __init__(self, directory: Path) -> None:
        for name in ("ours", "other"):
            (directory / name).mkdir()
        ours, other = Pki(directory / "ours"), Pki(directory / "other")
        self.ca = ours.ca
        self.good = _shown(ours.issue("good", "/CN=api", _HERE))
        self.bad = {
            "expired": _shown(ours.issue("expired", "/CN=api", _HERE, days=-1)),
            "of another authority": _shown(other.issue("other", "/CN=api", _HERE)),
        }

    def kubeconfig(self, proxy: FaultyProxy, path: Path) -> str:
        """Path of a kubeconfig that leads through a proxy; who uses it may do what the proxy may."""
        cluster = {"server": proxy.url, "certificate-authority": self.ca}
        body = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "proxy", "cluster": cluster}],
            "users": [{"name": "anybody", "user": {}}],
            "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "anybody"}}],
            "current-context": "proxy",
        }
        path.write_text(json.dumps(body))
        return str(path)


def _shown(pair: tuple[str, str]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pair)
    return context


class Behind:
    """Starts daemons that reach the API server as a kubeconfig says; for `Product`."""

    def __init__(self, plane: ControlPlane, kubeconfig: str) -> None:
        self._directory = plane.directory
        self._kubeconfig = kubeconfig

    def daemon(self, module: str, *flags: str, name: str = "") -> Program:
        """One that the caller ends."""
        command = [sys.executable, "-m", module, "--cluster.kubeconfig", self._kubeconfig, *flags]
        return Program(name or module, command, ROOT, self._directory)


class Said:
    """The lines of daemons from now on."""

    def __init__(self, *daemons: Daemon) -> None:
        self._before = {daemon: len(daemon.log()) for daemon in daemons}

    def __call__(self, daemon: Daemon, word: str) -> list[dict[str, Any]]:
        """Those with a word in their event."""
        return [line for line in daemon.log()[self._before[daemon] :] if word in line["event"]]

    def once(self, daemon: Daemon) -> None:
        """Each kind of trouble was said once until it was over, however often a busy machine made it begin anew."""
        under_way: dict[str, str] = {}
        for line in self(daemon, ""):
            if SAID in line["event"]:
                # Each right that is missing is a trouble of its own.
                kind = line["detail"] if line["reason"] == "Forbidden" else line["reason"]
                assert kind not in under_way, f"said again: {line}"
                under_way[kind] = line["detail"]
            elif OVER in line["event"]:
                under_way = {kind: detail for kind, detail in under_way.items() if detail != line["was"]}


class Trouble:
    """See the module. `proxy` is the predictor's way to the API server, `schedulers_proxy` the scheduler's: the same
    unless `apart`. `settings` are those of both daemons.
    """

    def __init__(
        self,
        stack: contextlib.ExitStack,
        plane: ControlPlane,
        node: str,
        ls_cpu: int,
        *,
        apart: bool = False,
        predictor: Mapping[str, str] | None = None,
        **settings: str,
    ) -> None:
        self._stack = stack
        self.name = node
        self.client: Client = stack.enter_context(contextlib.closing(plane.client()))
        self.cluster = Cluster(self.client)
        self.namespace = f"faults-{secrets.token_hex(4)}"
        self.directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="st-")))
        self.client.create(NAMESPACES, {"metadata": {"name": self.namespace}})
        self.certificates = Certificates(self.directory)
        self.proxy = stack.enter_context(proxied(plane.settings(), self.certificates.good))
        self.schedulers_proxy = self.proxy
        if apart:
            self.schedulers_proxy = stack.enter_context(proxied(plane.settings(), self.certificates.good))
        self.node(node)
        stack.callback(self._remove_pods)
        self._start(plane, {**COMPRESSED, **settings}, predictor or {})
        agents = stack.enter_context(SimulatedAgents(self.address, self.directory))
        self.agent = agents.add(node, ls_cpu=ls_cpu)
        self.protected = self.client.create(PODS, body("ls", nodeName=node), self.namespace)
        self.numbers: list[int] = []
        stack.enter_context(self._recorded())

    def _start(self, plane: ControlPlane, settings: Mapping[str, str], predictor: Mapping[str, str]) -> None:
        suffix = secrets.token_hex(4)
        ways = [
            Behind(plane, self.certificates.kubeconfig(proxy, self.directory / name))
            for name, proxy in (("predictor.config", self.proxy), ("scheduler.config", self.schedulers_proxy))
        ]
        first, second = (Product(way, self.directory) for way in ways)
        self.predictor = self._stack.enter_context(first.predictor(f"predictor-{suffix}", **{**settings, **predictor}))
        self.scheduler = self._stack.enter_context(second.scheduler(f"scheduler-{suffix}", **settings))
        self.address = first.predictor_address(f"predictor-{suffix}")

    def node(self, name: str) -> Node:
        """A node that is there until the end."""
        made = node_body(name, labels={"kubernetes.io/hostname": name})
        self._stack.callback(self.client.delete, NODES, name)
        return self.client.create(NODES, made)

    def why_not(self, name: str) -> str:
        """What the scheduler says of a pod that it does not place; empty when it says nothing yet."""
        conditions = self.client.get(PODS, name, self.namespace).status.conditions
        return "".join(one.message for one in conditions if one.type == "PodScheduled" and one.status == "False")

    def report(self, name: str, ls_cpu: int, ahead_seconds: float = 0.0) -> None:
        """One more agent reports for a node of that name, by a clock that is so much ahead."""
        boot = secrets.token_hex(8)
        state = self.directory / f"agent-{boot}"
        state.mkdir()
        spool = Spool(str(state), 1 << 24)
        self._stack.callback(spool.close)

        def wall() -> float:
            return time.time() + ahead_seconds

        reporter = Reporter(name, boot, spool, QUICK, self.address, wall=wall)
        reporter.start()
        self._stack.callback(reporter.stop)
        measured, ending = SimulatedNode(name, ls_cpu=ls_cpu, boot=boot), threading.Event()

        def loop() -> None:
            while not ending.wait(0.5):
                reporter.submit(measured.sample(wall()))

        thread = threading.Thread(target=loop, daemon=True)
        thread.start()
        self._stack.callback(lambda: (ending.set(), thread.join()))

    @property
    def daemons(self) -> tuple[Daemon, Daemon]:
        """Both."""
        return self.predictor, self.scheduler

    def _remove_pods(self) -> None:
        for pod in self.client.list(PODS, self.namespace).items:
            self.client.delete(PODS, pod.metadata.name, self.namespace, grace_period_seconds=0)

    @contextlib.contextmanager
    def _recorded(self) -> Iterator[None]:
        """Every number that is published from now on, as somebody sees it who does not go through the proxy."""

        def look(node: Node) -> None:
            self.numbers.append(int(node.status.allocatable.get(names.BATCH_CPU, "0").replace("k", "000")))

        informer = Informer(
            self.client,
            NODES,
            field_selector=f"metadata.name={self.name}",
            on_add=look,
            on_update=lambda _, new: look(new),
            name="seen",
            metrics=ClusterMetrics(),
        )
        informer.start()
        try:
            yield
        finally:
            informer.stop()

    def busier(self, millis: int = STEP) -> None:
        """LS of the node uses more from now on; never less, because the peak of a slot stays for its minutes."""
        self.agent.ls_cpu += millis

    @property
    def left(self) -> int:
        """What LS leaves now, in millicores."""
        return self.agent.capacity_cpu - self.agent.ls_cpu - SYSTEM

    def settled(self) -> None:
        """Wait until what is offered is what LS leaves."""
        self.cluster.offers(self.name, self.left)

    def calm(self) -> None:
        """Wait until no watch has been opened for a second: those that break as soon as they are opened are a trouble
        of their own.
        """
        for proxy in (self.proxy, self.schedulers_proxy):
            wait_for(lambda p=proxy: max(one.at for one in p.calls if one.watching) < time.monotonic() - 1, "calm")

    def place(self, name: str, node: str = "") -> None:
        """A small best-effort pod comes to be, for one node."""
        requests = {names.BATCH_CPU: "100", names.BATCH_MEMORY: str(64 << 20)}
        selector = {"kubernetes.io/hostname": node or self.name}
        spec = {"schedulerName": names.SCHEDULER_NAME, "nodeSelector": selector}
        amounts = {"requests": requests, "limits": requests}
        self.client.create(PODS, body(name, amounts, labels={names.TIER_LABEL: "be"}, **spec), self.namespace)

    def is_untouched(self, pod: Pod) -> bool:
        """Whether nobody has written the pod since."""
        found = self.client.get(PODS, pod.metadata.name, pod.metadata.namespace)
        return found.metadata.resource_version == pod.metadata.resource_version

    def where(self, name: str) -> str:
        """The node of a pod; empty while it has none."""
        return self.client.get(PODS, name, self.namespace).spec.node_name

    def goes_on(self, said: Said) -> None:
        """Wait until both daemons are ready, and have said that it is over as often as that it began."""
        wait_for(lambda: all(daemon.ready for daemon in self.daemons), "readiness")
        for daemon in self.daemons:
            assert daemon.program.process.poll() is None, "the same process as before"
            wait_for(lambda one=daemon: len(said(one, OVER)) >= len(said(one, SAID)), "word that it is over")


def body(
    name: str, resources: Mapping[str, Any] | None = None, labels: Mapping[str, str] | None = None, **spec: Any
) -> dict[str, Any]:
    """A pod of one container."""
    container = {"name": "main", "image": "none", "resources": resources or {}}
    return {"metadata": {"name": name, "labels": labels or {}}, "spec": {"containers": [container], **spec}}

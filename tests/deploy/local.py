"""A cluster on this machine with Slacktide installed by its chart: `make local-cluster`, and the tests of the whole.

Real: etcd, API server, controllers, stock scheduler, helm, and our own daemons, with the rights, settings, certificates
and tokens that the chart gives them. Without a container engine the node starts the pods' commands as processes
(`tests.cluster.local_node`), so images, users, capabilities and network policies are not in force.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slacktide.cluster import NAMESPACES, PODS, Client
from tests.cluster.harness import ControlPlane
from tests.cluster.local_node import LocalNode
from tests.deploy.chart import CHART, NAMESPACE, Helm
from tests.deploy.installation import CONTROLLERS

NODE = "local"
LABELS = {"pod-security.kubernetes.io/enforce": "privileged"}


@dataclass(frozen=True)
class Local:
    """The running cluster. `helm` speaks to it with the rights of an administrator."""

    plane: ControlPlane
    client: Client
    node: LocalNode
    program: Helm

    def helm(self, *arguments: str) -> str:
        """One command of helm on this cluster. Raises Refused."""
        there = ("--namespace", NAMESPACE, "--kubeconfig", self.plane.kubeconfig())
        return self.program.run(*arguments, *there)

    def install(self, **more: str) -> None:
        """The chart, with what this machine needs and `more` values; waits until all is ready. Raises Refused."""
        values = {
            # The machine's own pods, if it has any, are none of ours.
            "agent.settings.cgroup_root": self.node.cgroup_root,
            "predictor.persistence.enabled": "false",
            "predictor.replicas": "1",
            "scheduler.replicas": "1",
            # So that a newcomer sees numbers at once: no caution that takes hours to learn.
            "predictor.settings.rise_wait_seconds": "1",
            "predictor.settings.rise_step_percent": "100",
        }
        sets = [word for name, value in {**values, **more}.items() for word in ("--set", f"{name}={value}")]
        self.helm("install", "slacktide", str(CHART), *sets, "--wait", "--timeout", "300s")

    def words(self) -> str:
        """State and log of our pods, for a failure's message."""
        pods = self.client.list(PODS, NAMESPACE).items
        return "\n".join(
            f"{pod.metadata.name} {pod.status.phase}\n{self.node.log(NAMESPACE, pod.metadata.name)[-3000:]}"
            for pod in pods
        )


@contextlib.contextmanager
def local_cluster(directory: Path, helm: Helm) -> Iterator[Local]:
    """A cluster with one node and nothing installed yet; gone afterwards. Raises ToolsMissing, StartFailed."""
    # As in a real cluster, pods need accounts.
    plane = ControlPlane(directory, flags={"--disable-admission-plugins": "TaintNodesByCondition"})
    with contextlib.ExitStack() as stack:
        stack.callback(plane.stop)
        plane.start()
        client = stack.enter_context(contextlib.closing(plane.client()))
        stack.enter_context(plane.controllers(CONTROLLERS))
        stack.enter_context(plane.scheduler())
        node = stack.enter_context(LocalNode(plane, client, directory, NODE))
        body: dict[str, Any] = {"metadata": {"name": NAMESPACE, "labels": LABELS}}
        client.create(NAMESPACES, body)
        yield Local(plane, client, node, helm)

"""`slacktide doctor --node NAME`: looks at one node, of a cluster or this machine."""

from __future__ import annotations

import contextlib
from typing import Final

from cli.app import App
from cli.asking import InCluster, answered
from cli.clusterchecks import Finding
from cli.clusterdoctor import rights, show
from cli.clusterfacts import Gatherer, own_rights
from cli.forecasts import missing_node
from cli.nodechecks import judge_node
from slacktide.cluster import NODES
from slacktide.cluster.permissions import permissions
from slacktide.status import AgentStatus
from standalone.supervisor import read_report

_OWN: Final = (
    *permissions("get", "nodes", "versions, kernel, forecast, other writers"),
    *permissions("list", "pods", "the agent, other systems"),
    *permissions("get", "leases", "the node's clock", group="coordination.k8s.io"),
    *permissions("get", "nodes/proxy", "kubelet settings"),
    *permissions("get", "pods/proxy", "what the agent says"),
)


def run(app: App, name: str, namespace: str) -> int:
    """Check node `name` of the cluster; the exit code, 1 with a problem. Raises ClusterError, CommandError."""
    with contextlib.closing(app.cluster_client()) as client:
        found: list[Finding] = [rights(own_rights(client, _OWN))]
        facts = Gatherer(client, namespace, app.wall).of_node(name)
        if facts is None:
            raise missing_node(name, [node.metadata.name for node in client.list(NODES).items])
        told = answered(InCluster(client, namespace).ask("agent", "/status", AgentStatus, node=name))
    return show(app, [*found, *judge_node(facts, told)])


def check_is_here(app: App, name: str) -> None:
    """Raises CommandError where `name` is not the node of the Slacktide that runs on this machine."""
    report = read_report(app.state())
    if report is not None and report.node != name:
        raise missing_node(name, [report.node])

"""`slacktide doctor --cluster`: reads the facts, judges them, shows the findings."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from agent.permissions import PERMISSIONS as AGENT
from cli.app import App
from cli.bundling import of_cluster, save
from cli.clusterchecks import Finding, Findings, judge
from cli.clusterfacts import Gatherer, own_rights
from cli.exits import FAILED, OK
from predictor.permissions import AUTH_PERMISSIONS
from predictor.permissions import PERMISSIONS as PREDICTOR
from scheduler_plugins.permissions import EXTENDER_PERMISSIONS, SCHEDULER_PERMISSIONS
from slacktide.cluster.permissions import Permission, permissions

COLUMNS: Final = ("CHECK", "VERDICT", "EVIDENCE", "REMEDY")
WANTED: Final[dict[str, Sequence[Permission]]] = {
    "agent": AGENT,
    "predictor": (*PREDICTOR, *AUTH_PERMISSIONS),
    "scheduler": SCHEDULER_PERMISSIONS,
    "extender": EXTENDER_PERMISSIONS,
}
"""What the account of each component must be allowed, whatever its settings."""

_OWN: Final = (
    *permissions("list", "nodes", "versions, kernels, forecasts, other writers"),
    *permissions("list", "pods", "our components, other systems"),
    *permissions("list", "leases", "clocks, leaders", group="coordination.k8s.io"),
    *permissions("list", "namespaces", "namespaces that opted in"),
    *permissions("get", "nodes/proxy", "kubelet settings"),
    *permissions("create", "subjectaccessreviews", "permissions of our accounts", group="authorization.k8s.io"),
    *permissions("list", "validatingadmissionpolicies", "admission policies", group="admissionregistration.k8s.io"),
)


def run(app: App, namespace: str, kubelets: int, bundle: str | None = None) -> int:
    """Check the cluster; the exit code, 1 with a problem. Raises ClusterError when it does not answer."""
    client = app.cluster_client()
    try:
        findings = [rights(own_rights(client, _OWN))]
        findings += judge(Gatherer(client, namespace, time.time).facts(WANTED, kubelets))
        gathered = of_cluster(client, namespace, findings) if bundle is not None else None
    finally:
        client.close()
    if bundle is not None and gathered is not None:
        save(app, gathered, bundle)
        return _code(findings)
    return show(app, findings)


def show(app: App, findings: Sequence[Finding]) -> int:
    """Print findings; the exit code."""
    if app.out.json:
        problems = sum(finding.verdict == "problem" for finding in findings)
        app.out.document(Findings(findings=list(findings), problems=problems))
    else:
        rows = [[finding.name, finding.verdict, finding.evidence, finding.remedy] for finding in findings]
        app.out.table(COLUMNS, rows)
    return _code(findings)


def _code(findings: Sequence[Finding]) -> int:
    return FAILED if any(finding.verdict == "problem" for finding in findings) else OK


def rights(lacking: Sequence[Permission]) -> Finding:
    """What the caller may not see, said first: the rest is to be read by it."""
    if not lacking:
        return Finding(name="your rights", verdict="ok", evidence="everything can be looked at")
    return Finding(
        name="your rights",
        verdict="unknown",
        evidence=f"you may not: {'; '.join(map(str, lacking))}",
        remedy="ask as a cluster administrator to see the rest",
    )

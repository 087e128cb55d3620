"""Judges the facts of a cluster: each finding has a verdict, what it rests on, and what to do. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Literal

import msgspec

from cli.clusterfacts import CheckedNode, Facts
from predictor.writers import OwnedNode, writer_of
from slacktide.errors import QuantityError
from slacktide.forecast import ForecastError, Freshness, decode, freshness
from slacktide.names import BATCH_CPU, BATCH_MEMORY, FORECAST_ANNOTATION
from slacktide.objects import Lease, Pod, epoch_seconds, is_terminal
from slacktide.quantity import parse
from slacktide.rivals import agent_in, system_of, writer_in
from slacktide.settings import ResourceNames

Verdict = Literal["ok", "warning", "problem", "unknown"]

OLDEST: Final = (1, 33)
NEWEST: Final = (1, 36)
_SKEW_MINORS: Final = 3
"""A kubelet may be this much older than the server. Source: kubernetes version skew policy."""
_SKEW_SECONDS: Final = 5.0
_LEASE_SECONDS: Final = 40.0
_LEADERS: Final = {"slacktide-predictor": "predictor", "slacktide-scheduler": "scheduler"}
_KERNEL_FEATURES: Final = (
    ((5, 14), "cgroup.kill and CPU burst"),
    ((5, 15), "cpu.idle"),
    ((5, 19), "memory.reclaim"),
)
_SHOWN: Final = 3
_GATES: Final = ("MutatingAdmissionPolicy", "ServiceAccountTokenPodNodeInfo", "PodLevelResources")
_NAMES: Final = ResourceNames(cpu=BATCH_CPU, memory=BATCH_MEMORY)
OPT_IN_LABEL: Final = "slacktide.io/batch"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One line. problem: something does not work. warning: it works less well. unknown: it could not be looked at."""

    name: str
    verdict: Verdict
    evidence: str
    remedy: str = ""


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """What `doctor --cluster` prints for programs; `problems` counts the findings with that verdict."""

    findings: list[Finding]
    problems: int


Part = Callable[["Facts"], Iterator[Finding]]


def judge(facts: Facts) -> list[Finding]:
    """Every finding, in the order in which a person reads them."""
    parts: tuple[Part, ...] = (
        _server,
        _kubelets,
        _kernels,
        _clocks,
        _kubelet_settings,
        _gates,
        _components,
        _leaders,
        _forecasts,
        _others,
        _permissions,
        _admission,
    )
    return [finding for part in parts for finding in part(facts)]


def judge_nodes(facts: Facts) -> list[Finding]:
    """What is about the nodes of `facts` alone, whether they are all of the cluster or one of it."""
    parts: tuple[Part, ...] = (_kubelets, _kernels, _clocks, _kubelet_settings, _forecasts, _others)
    return [finding for part in parts for finding in part(facts)]


def _unknown(facts: Facts, name: str, fact: str, remedy: str) -> Finding:
    return Finding(name=name, verdict="unknown", evidence=facts.missing.get(fact, "not read"), remedy=remedy)


def minor(version: str) -> tuple[int, int] | None:
    """(major, minor) of `v1.36.3-gke.1` and the like; None for anything else."""
    found = re.match(r"v?(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else None


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(sorted(names)[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"


def _server(facts: Facts) -> Iterator[Finding]:
    version = minor(facts.version or "")
    evidence = facts.version or "no version"
    supported = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
    if version is None:
        yield Finding(name="api server", verdict="unknown", evidence=evidence, remedy="ask it: kubectl version")
    elif version < OLDEST:
        remedy = f"Slacktide is made for Kubernetes {supported}: upgrade the cluster"
        yield Finding(name="api server", verdict="problem", evidence=evidence, remedy=remedy)
    elif version > NEWEST:
        remedy = f"Slacktide was looked at with {supported}: read docs/kubernetes-versions.md before you rely on it"
        yield Finding(name="api server", verdict="warning", evidence=evidence, remedy=remedy)
    else:
        yield Finding(name="api server", verdict="ok", evidence=evidence)


def _kubelets(facts: Facts) -> Iterator[Finding]:
    if facts.nodes is None:
        yield _unknown(facts, "kubelets", "nodes", "let this account list nodes")
        return
    server = minor(facts.version or "")
    by_version = Counter(str(node.status.node_info.get("kubeletVersion", "")) for node in facts.nodes)
    evidence = ", ".join(f"{count} x {version or 'no version'}" for version, count in sorted(by_version.items()))
    old = [version for version in by_version if (known := minor(version)) is not None and known < OLDEST]
    skewed = [version for version in by_version if server and (known := minor(version)) and _skewed(known, server)]
    if not facts.nodes:
        yield Finding(name="kubelets", verdict="problem", evidence="no nodes", remedy="join a node to the cluster")
    elif skewed:
        remedy = f"outside the skew that Kubernetes allows beside {facts.version}: upgrade {_some(skewed)}"
        yield Finding(name="kubelets", verdict="problem", evidence=evidence, remedy=remedy)
    elif old:
        remedy = f"Slacktide is made for kubelets from {OLDEST[0]}.{OLDEST[1]}: upgrade {_some(old)}"
        yield Finding(name="kubelets", verdict="warning", evidence=evidence, remedy=remedy)
    else:
        yield Finding(name="kubelets", verdict="ok", evidence=evidence)


def _skewed(kubelet: tuple[int, int], server: tuple[int, int]) -> bool:
    return kubelet > server or kubelet[0] != server[0] or server[1] - kubelet[1] > _SKEW_MINORS


def _kernels(facts: Facts) -> Iterator[Finding]:
    nodes = facts.nodes or ()
    systems = [node.metadata.name for node in nodes if _system(node) != "linux"]
    if systems:
        remedy = (
            "the agent runs on Linux alone; its DaemonSet selects kubernetes.io/os=linux, nothing is sold elsewhere"
        )
        yield Finding(name="systems", verdict="warning", evidence=f"not Linux: {_some(systems)}", remedy=remedy)
    kernels: dict[str, list[str]] = {}
    for node in nodes:
        if node.metadata.name not in systems:
            kernels.setdefault(str(node.status.node_info.get("kernelVersion", "")), []).append(node.metadata.name)
    for kernel, names in sorted(kernels.items()):
        yield _kernel(kernel, names)


def _system(node: CheckedNode) -> str:
    return str(node.status.node_info.get("operatingSystem", "")) or "linux"


def _kernel(kernel: str, names: Sequence[str]) -> Finding:
    evidence, version = f"{kernel or 'not said'} on {_some(names)}", minor(kernel)
    if version is None:
        return Finding(name="kernel", verdict="unknown", evidence=evidence, remedy="run slacktide doctor on the node")
    lacking = [what for since, what in _KERNEL_FEATURES if version < since]
    if not lacking:
        return Finding(name="kernel", verdict="ok", evidence=evidence)
    remedy = f"a newer kernel has {', '.join(lacking)}; without, the agent has quota, weight and freezer to protect LS"
    return Finding(name="kernel", verdict="warning", evidence=evidence, remedy=remedy)


def _clocks(facts: Facts) -> Iterator[Finding]:
    if facts.now is None:
        yield _unknown(facts, "clocks", "clock", "ask again: the API server stamped nothing")
        return
    off = facts.here - facts.now
    # The stamp is in whole seconds.
    if abs(off - 0.5) > _SKEW_SECONDS:
        evidence = f"this machine is {abs(off):.0f} s {'ahead of' if off > 0 else 'behind'} the API server"
        yield Finding(name="clock here", verdict="warning", evidence=evidence, remedy="run NTP on this machine")
    if facts.node_leases is None:
        yield _unknown(facts, "clocks of nodes", "node leases", "let this account list leases in kube-node-lease")
        return
    ahead = {lease.metadata.name: age for lease in facts.node_leases if (age := _age(lease, facts.now)) is not None}
    future = {name: -age for name, age in ahead.items() if age < -_SKEW_SECONDS}
    ready = {node.metadata.name for node in facts.nodes or () if _is_ready(node)}
    past = {name: age for name, age in ahead.items() if age > _LEASE_SECONDS + _SKEW_SECONDS and name in ready}
    remedy = "run NTP on these nodes: forecasts of a clock that is more than a minute off are not believed"
    if future:
        evidence = f"ahead of the API server: {_some([f'{name} by {age:.0f} s' for name, age in future.items()])}"
        yield Finding(name="clocks of nodes", verdict="problem", evidence=evidence, remedy=remedy)
    if past:
        evidence = f"Ready, and behind: {_some([f'{name} by up to {age:.0f} s' for name, age in past.items()])}"
        yield Finding(name="clocks of nodes", verdict="warning", evidence=evidence, remedy=remedy)
    if not future and not past:
        evidence = f"{len(ahead)} leases renewed at times that the API server can believe"
        yield Finding(name="clocks of nodes", verdict="ok", evidence=evidence)


def _age(lease: Lease, now: float) -> float | None:
    renewed = epoch_seconds(lease.spec.renew_time)
    return None if renewed is None else now - renewed


def _is_ready(node: CheckedNode) -> bool:
    return any(one.type == "Ready" and one.status == "True" for one in node.status.conditions)


def _kubelet_settings(facts: Facts) -> Iterator[Finding]:
    failed = [name for name in facts.missing if name.startswith("kubelet ")]
    if failed:
        why = facts.missing[failed[0]]
        evidence = f"{len(failed)} could not be read (such as {failed[0].removeprefix('kubelet ')}: {why})"
        remedy = "ask as someone who may get nodes/proxy, or look at the kubelets' settings on the nodes"
        yield Finding(name="kubelet settings", verdict="unknown", evidence=evidence, remedy=remedy)
    wrong: dict[tuple[Verdict, str, str], list[str]] = {}
    for name, settings in facts.kubelets.items():
        for verdict, what, remedy in _wrong_settings(settings):
            wrong.setdefault((verdict, what, remedy), []).append(name)
    for (verdict, what, remedy), names in sorted(wrong.items()):
        yield Finding(name="kubelet settings", verdict=verdict, evidence=f"{what} on {_some(names)}", remedy=remedy)
    if facts.kubelets and not wrong:
        drivers = Counter(str(settings.get("cgroupDriver", "cgroupfs")) for settings in facts.kubelets.values())
        evidence = ", ".join(f"{count} x {driver}" for driver, count in sorted(drivers.items()))
        yield Finding(name="kubelet settings", verdict="ok", evidence=f"cgroup driver {evidence}")


def _wrong_settings(settings: dict[str, Any] | Any) -> Iterator[tuple[Verdict, str, str]]:
    """What in a KubeletConfiguration gets in our way. Source: kubernetes kubelet.config.k8s.io/v1beta1."""
    if settings.get("cgroupsPerQOS") is False:
        yield "problem", "cgroupsPerQOS is off", "turn it on: pods have no cgroups by which the agent knows them"
    if settings.get("cpuCFSQuota") is False:
        yield "warning", "cpuCFSQuota is off", "LS pods run beyond their limits and less can be sold; turn it on"
    if settings.get("cpuManagerPolicy") == "static":
        text = "CPUs of exclusive pods belong to the kubelet: the agent spreads BE over the others alone"
        yield "ok", "cpuManagerPolicy is static", text
    gates = settings.get("featureGates") or {}
    if gates.get("MemoryQoS"):
        text = "kubelet and agent both write memory.high: turn the gate off, or the agent's policy memory"
        yield "warning", "feature gate MemoryQoS is on", text


def _gates(facts: Facts) -> Iterator[Finding]:
    if facts.gates is None:
        yield _unknown(facts, "feature gates", "feature gates", "ask as someone who may get /metrics of the API server")
        return
    known = [f"{name} {'on' if facts.gates[name] else 'off'}" for name in _GATES if name in facts.gates]
    if facts.gates.get("ServiceAccountTokenPodNodeInfo") is False:
        remedy = "turn it on: an agent's token does not name its node without it, and the predictor refuses it"
        yield Finding(name="feature gates", verdict="problem", evidence=", ".join(known), remedy=remedy)
        return
    evidence = ", ".join(known) or "none of those that matter can be switched in this version"
    yield Finding(name="feature gates", verdict="ok", evidence=evidence)


def ours(facts: Facts, component: str) -> list[Pod]:
    """Pods of one of our components that have not ended."""
    wanted = {"app.kubernetes.io/name": "slacktide", "app.kubernetes.io/component": component}
    return [
        pod
        for pod in facts.pods or ()
        if pod.metadata.namespace == facts.namespace
        and wanted.items() <= pod.metadata.labels.items()
        and not is_terminal(pod)
    ]


def _pod_ready(pod: Pod) -> bool:
    return any(one.type == "Ready" and one.status == "True" for one in pod.status.conditions)


def _components(facts: Facts) -> Iterator[Finding]:
    if facts.pods is None:
        yield _unknown(facts, "components", "pods", "let this account list pods in all namespaces")
        return
    for component, needed in (("agent", True), ("predictor", True), ("scheduler", False), ("extender", False)):
        pods = ours(facts, component)
        if pods or needed:
            yield component_of(facts, component, pods)
    if not ours(facts, "scheduler") and not ours(facts, "extender"):
        remedy = "BE pods are placed by forecast by one of the two: install scheduler or extender with the chart"
        yield Finding(
            name="scheduler", verdict="warning", evidence="neither scheduler nor extender runs", remedy=remedy
        )
    versions = Counter(
        pod.metadata.labels.get("app.kubernetes.io/version", "none")
        for component in ("agent", "predictor", "scheduler", "extender")
        for pod in ours(facts, component)
    )
    if len(versions) > 1:
        evidence = ", ".join(f"{count} pods of {version}" for version, count in sorted(versions.items()))
        remedy = "let the rollout end: agent and predictor understand each other one minor version apart, not more"
        yield Finding(name="our versions", verdict="warning", evidence=evidence, remedy=remedy)


def component_of(facts: Facts, component: str, pods: Sequence[Pod]) -> Finding:
    """Whether all `pods` of a component of ours are well, and the agent's are on every node."""
    if not pods:
        remedy = f"install it with the chart, or name its namespace: --namespace (looked in {facts.namespace})"
        return Finding(name=component, verdict="problem", evidence="no pod of it", remedy=remedy)
    unready = [f"{pod.metadata.namespace}/{pod.metadata.name}" for pod in pods if not _pod_ready(pod)]
    if unready:
        remedy = f"its readiness says why: kubectl -n {facts.namespace} describe pod, and its /readyz"
        evidence = f"{len(unready)} of {len(pods)} pods are not ready: {_some(unready)}"
        return Finding(name=component, verdict="problem", evidence=evidence, remedy=remedy)
    bare = _nodes_without(facts, pods) if component == "agent" else []
    if bare:
        remedy = "nothing is sold there: look at the DaemonSet's nodeSelector and tolerations, if that is not meant"
        return Finding(name=component, verdict="warning", evidence=f"none on {_some(bare)}", remedy=remedy)
    return Finding(name=component, verdict="ok", evidence=f"{len(pods)} pods, all ready")


def _nodes_without(facts: Facts, pods: Sequence[Pod]) -> list[str]:
    there = {pod.spec.node_name for pod in pods}
    nodes = (node for node in facts.nodes or () if _system(node) == "linux")
    return [node.metadata.name for node in nodes if node.metadata.name not in there]


def _leaders(facts: Facts) -> Iterator[Finding]:
    if facts.leader_leases is None or facts.now is None:
        yield _unknown(facts, "leaders", "leader leases", "let this account list leases in kube-system")
        return
    leases = {lease.metadata.name: lease for lease in facts.leader_leases}
    for name, component in _LEADERS.items():
        if not ours(facts, component):
            continue
        lease = leases.get(name)
        age = _age(lease, facts.now) if lease else None
        holder = lease.spec.holder_identity if lease else ""
        if lease is None or age is None or not holder:
            remedy = f"no {component} leads: look at its log; may it create and update leases in kube-system?"
            yield Finding(name=f"{component} leader", verdict="problem", evidence=f"lease {name}: none", remedy=remedy)
        elif age > (lease.spec.lease_duration_seconds or _LEASE_SECONDS) + _SKEW_SECONDS:
            remedy = f"no {component} leads: look at its log and at the API server's health"
            evidence = f"{holder} renewed {age:.0f} s ago"
            yield Finding(name=f"{component} leader", verdict="problem", evidence=evidence, remedy=remedy)
        else:
            yield Finding(name=f"{component} leader", verdict="ok", evidence=str(holder))


def _forecasts(facts: Facts) -> Iterator[Finding]:
    if facts.nodes is None or facts.now is None:
        return
    ages: dict[Freshness, list[str]] = {}
    closed: list[str] = []
    left: list[str] = []
    fractions: list[str] = []
    for node in facts.nodes:
        name = node.metadata.name
        try:
            forecast = decode(node.metadata.annotations.get(FORECAST_ANNOTATION, ""))
        except ForecastError:
            left += [name] if any(_sold(node)) else []
            continue
        ages.setdefault(freshness(forecast, facts.now), []).append(name)
        closed += [f"{name} ({forecast.closed})"] if forecast.closed else []
        fractions += [name] if any(not whole for whole in _sold(node)) else []
    yield from _forecast_findings(ages, closed, left, fractions)


def _sold(node: CheckedNode) -> list[bool]:
    """Of each batch amount above 0 in the node's status, whether it is a whole number."""
    found = []
    for amounts in (node.status.capacity, node.status.allocatable):
        for name in (BATCH_CPU, BATCH_MEMORY):
            try:
                amount = parse(amounts.get(name, "0"))
            except QuantityError:
                continue
            if amount.value() > 0:
                found.append(amount.is_whole)
    return found


def _forecast_findings(
    ages: dict[Freshness, list[str]], closed: Sequence[str], left: Sequence[str], fractions: Sequence[str]
) -> Iterator[Finding]:
    fresh, old = ages.get(Freshness.FRESH, []), ages.get(Freshness.EXPIRED, [])
    if old:
        remedy = "nothing is sold there; does the predictor lead and do the agents report? see slacktide top"
        yield Finding(name="forecasts", verdict="problem", evidence=f"expired on {_some(old)}", remedy=remedy)
    elif fresh:
        yield Finding(name="forecasts", verdict="ok", evidence=f"fresh on {len(fresh)} nodes")
    if closed:
        remedy = "each names its reason; slacktide explain node NAME has the terms"
        yield Finding(name="closed nodes", verdict="warning", evidence=_some(closed), remedy=remedy)
    if left:
        remedy = (
            "batch resources without a forecast are somebody else's, or were left behind: see `other systems`, or take "
            "them off with slacktide withdraw"
        )
        yield Finding(name="left behind", verdict="warning", evidence=_some(left), remedy=remedy)
    if fractions:
        remedy = "batch amounts must be whole numbers; who writes them? see `other systems`"
        yield Finding(name="fractions", verdict="problem", evidence=_some(fractions), remedy=remedy)


def _others(facts: Facts) -> Iterator[Finding]:
    if facts.pods is None or facts.nodes is None:
        yield _unknown(facts, "other systems", "pods", "let this account list pods and nodes")
        return
    agents: dict[str, list[str]] = {}
    writers: dict[str, list[str]] = {}
    for pod in facts.pods:
        if system := agent_in(pod):
            agents.setdefault(system, []).append(pod.spec.node_name)
        elif system := writer_in(pod):
            writers.setdefault(system, []).append(f"pod {pod.metadata.namespace}/{pod.metadata.name}")
    for node in facts.nodes:
        manager = writer_of(OwnedNode(metadata=node.metadata), _NAMES)
        if manager:
            writers.setdefault(system_of(manager) or manager, []).append(f"node {node.metadata.name} by {manager}")
    for system, names in sorted(agents.items()):
        remedy = (
            f"nothing is sold there until it is gone: uninstall {system}, or keep one of the two agents off each node"
        )
        evidence = f"agent of {system} on {_some(names)}"
        yield Finding(name="other systems", verdict="problem", evidence=evidence, remedy=remedy)
    for system, seen in sorted(writers.items()):
        remedy = f"let one write them: switch {system} off, or give ours other names (resources.cpu, resources.memory)"
        evidence = f"batch resources written by {system}: {_some(seen)}"
        yield Finding(name="other systems", verdict="problem", evidence=evidence, remedy=remedy)
    if not agents and not writers:
        yield Finding(name="other systems", verdict="ok", evidence="none that manages the same nodes")


def _permissions(facts: Facts) -> Iterator[Finding]:
    if facts.denied is None:
        remedy = "ask as someone who may create subjectaccessreviews"
        yield _unknown(facts, "permissions", "permissions", remedy)
        return
    for component, lacking in facts.denied.items():
        account = f"{facts.namespace}/slacktide-{component}"
        if component in ("scheduler", "extender") and not ours(facts, component):
            continue
        if lacking:
            evidence = f"{account} lacks: {'; '.join(map(str, lacking))}"
            remedy = "grant it: docs/security.md has the table, the chart's ClusterRoles have all of it"
            yield Finding(name="permissions", verdict="problem", evidence=evidence, remedy=remedy)
        else:
            yield Finding(name="permissions", verdict="ok", evidence=f"{account} has all that it needs")


def _admission(facts: Facts) -> Iterator[Finding]:
    if facts.policies is None:
        yield _unknown(facts, "admission", "admission policies", "let this account list admission policies")
        return
    policies, bound = facts.policies.get("validating policies", ()), facts.policies.get("validating bindings", ())
    if not policies or not bound:
        evidence = f"{len(policies)} validating policies, {len(bound)} bindings"
        remedy = "fractional amounts and foreign writers are let in: install with admission.enabled (docs/admission.md)"
        yield Finding(name="admission", verdict="warning", evidence=evidence, remedy=remedy)
    else:
        yield Finding(name="admission", verdict="ok", evidence=f"validating: {', '.join(policies)}")
    opted = [one.metadata.name for one in facts.namespaces or () if one.metadata.labels.get(OPT_IN_LABEL) == "enabled"]
    if "mutating policies" not in facts.policies:
        remedy = (
            "pods are not converted at admission; convert manifests instead: slacktide convert -f (docs/admission.md)"
        )
        verdict: Verdict = "warning" if opted else "ok"
        evidence = f"this API server has no MutatingAdmissionPolicy; {len(opted)} namespaces opted in"
        yield Finding(name="conversion", verdict=verdict, evidence=evidence, remedy=remedy)
    elif opted and not (facts.policies["mutating policies"] and facts.policies.get("mutating bindings")):
        remedy = "install with admission.conversion.enabled, or convert manifests: slacktide convert -f"
        evidence = f"{_some(opted)} opted in and nothing converts"
        yield Finding(name="conversion", verdict="warning", evidence=evidence, remedy=remedy)
    else:
        yield Finding(name="conversion", verdict="ok", evidence=f"{len(opted)} namespaces opted in")

"""Pure: requests and limits of pods and containers into the values of cgroup knobs, as a kubelet computes them.

CPU requests become v1 shares, and shares become a v2 weight by the linear map `1 + (shares - 2) * 9999 / 262142`
that kubelet uses for pods and QoS classes. (Container runtimes of 2025 use a quadratic map; a node of ours has one
map for all levels, so that a container weighs in its pod as the pod does in its class.)
Batch resources mean nothing to a kubelet: a pod that asks for nothing else is BestEffort, with shares 2 and no limit.
Source: kubernetes pkg/kubelet/cm/helpers_linux.go, reference/kernel.md 2.2 for the vectors.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from slacktide.objects import Container, Pod
from slacktide.quantity import cpu_millis, memory_bytes
from slacktide.resources import limits_of, qos_class, requests_of
from slacktide.weights import shares_of

PERIOD_MICROS: Final = 100_000
MIN_QUOTA_MICROS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Knobs of one cgroup. `quota_micros` is per period of 100 ms; None is no limit, `shares` None is untouched."""

    shares: int | None
    quota_micros: int | None = None
    memory_bytes: int | None = None
    whole_group_oom: bool = False
    """On v2, an OOM kill takes the whole cgroup (memory.oom.group), as kubelet sets for containers since 1.28."""


def quota_of(millis: int) -> int | None:
    """cfs_quota_us for a CPU limit in millicores; None (no limit) for 0."""
    return max(MIN_QUOTA_MICROS, millis * PERIOD_MICROS // 1000) if millis > 0 else None


def container_limits(container: Container) -> Limits:
    """Knobs of a container's cgroup. A missing CPU request counts as the limit, as in Kubernetes."""
    requests, limits = container.resources.requests, container.resources.limits
    cpu_limit = cpu_millis(limits["cpu"]) if "cpu" in limits else 0
    cpu_request = cpu_millis(requests["cpu"]) if "cpu" in requests else cpu_limit
    memory = memory_bytes(limits["memory"]) if "memory" in limits else 0
    return Limits(
        shares=shares_of(cpu_request),
        quota_micros=quota_of(cpu_limit),
        memory_bytes=memory or None,
        whole_group_oom=True,
    )


def pod_limits(pod: Pod) -> Limits:
    """Knobs of a pod's cgroup: sums, and a limit only where every container has one (or the pod itself says so)."""
    requests, limits = requests_of(pod), limits_of(pod)
    return Limits(
        shares=shares_of(requests.get("cpu", 0)),
        quota_micros=quota_of(limits.get("cpu", 0)) if _all_limited(pod, "cpu") else None,
        memory_bytes=(limits.get("memory", 0) or None) if _all_limited(pod, "memory") else None,
    )


def oom_score_adj(pod: Pod, container: Container, capacity_bytes: int) -> int:
    """Whom the kernel's OOM killer prefers when the whole machine is short: BestEffort first, Guaranteed last.

    Source: kubernetes pkg/kubelet/qos/policy.go.
    """
    qos = qos_class(pod)
    if qos != "Burstable":
        return -997 if qos == "Guaranteed" else 1000
    request = container.resources.requests.get("memory", 0)
    share = 1000 * memory_bytes(request) // max(1, capacity_bytes)
    return max(3, min(999, 1000 - share))


def burstable_shares(pods: Iterable[Pod]) -> int:
    """cpu.shares of the Burstable class: the requests of all its pods together."""
    return shares_of(sum(requests_of(pod).get("cpu", 0) for pod in pods if qos_class(pod) == "Burstable"))


def _all_limited(pod: Pod, resource: str) -> bool:
    if pod.spec.resources is not None and resource in pod.spec.resources.limits:
        return True
    containers = [*pod.spec.containers, *pod.spec.init_containers]
    return all(resource in container.resources.limits for container in containers)

"""Policy *batch_limits*: BE containers get weight, CPU quota and memory limit from the batch resources they ask for.

To a kubelet a pod that asks only for batch resources is BestEffort: weight 1 and no limit at all. So

- a container's weight comes from its batch-cpu request by the kubelet's own rule (shares = millis * 1024 / 1000, on v2
  the linear map of shares), unless the pod asks for native CPU, which the kubelet has weighted already. Containers
  below a pod in the idle class keep these weights among themselves;
- a container's quota and memory limit come from its batch limits, the pod's from their sum (init containers as in the
  scheduler's rule), where all containers have one. No limit asked for is no limit set, and not the smallest.

Other limits on the same knob: the arbiter takes the lowest, and the executor never loosens what the kubelet set. A
memory limit below what is in use is the pod's own wish: the kernel reclaims, and kills inside the pod if that fails.

Cgroup leaves are matched to containers by id. The API learns of an id a moment after the container started, so a leaf
that nobody claims (the sandbox is one, too) gets the largest of what the containers without a leaf ask for: of one
container just that. When all are matched, what is left over is the sandbox, and gets nothing.
Source: kubernetes pkg/kubelet/cm/helpers_linux.go; reference/kernel.md 2.2, test-control-plane.md (kubelet tables).
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any, Final

from msgspec import Meta

from agent.capabilities import Knob
from agent.policy.base import Context, Desired, Request
from agent.snapshot import ContainerIdentity, NodeSnapshot, PodIdentity, PodSnapshot
from slacktide.settings import Settings
from slacktide.tier import Tier
from slacktide.weights import kernel_weight

MIN_QUOTA_MILLIS: Final = 10
"""1 ms in a period of 100 ms: less is EINVAL."""

MAX_QUOTA_MILLIS: Final = 100_000_000
"""More CPUs than this no node has: as good as no limit, and the kernel's own bound is not far."""

MIN_MEMORY_BYTES: Final = 1 << 20
"""Nothing lives below it, and the executor takes no less: one pod's slip must not cost the node its whole plan."""

MAX_MEMORY_BYTES: Final = 1 << 60
"""From here on a limit is none: no node has that, and v1 shows "unlimited" as nearly 2^63."""


class BatchLimitsSettings(Settings, frozen=True, kw_only=True):
    """Settings of the batch_limits policy."""

    weights: Annotated[
        bool, Meta(description="weigh containers by their batch-cpu requests", extra={"reloadable": True})
    ] = True
    cpu: Annotated[bool, Meta(description="make quotas of batch-cpu limits", extra={"reloadable": True})] = True
    memory: Annotated[
        bool, Meta(description="make memory limits of batch-memory limits", extra={"reloadable": True})
    ] = True


class BatchLimits:
    """See the module."""

    name = "batch_limits"
    urgent = False
    prompt = True

    def start(self, context: Context) -> None:
        """It remembers nothing."""

    def decide(
        self, snapshot: NodeSnapshot, state: Any, settings: BatchLimitsSettings, context: Context
    ) -> tuple[Desired, Any]:
        """What the BE pods of `snapshot` asked for, as far as this node can set it."""
        wanted = {Knob.WEIGHT: settings.weights, Knob.QUOTA: settings.cpu, Knob.MEMORY_MAX: settings.memory}
        knobs = {knob for knob, on in wanted.items() if on} & context.capabilities.writable
        pods = snapshot.pods_of(Tier.BE)
        requests = tuple(
            request
            for pod in pods
            for request in _of_pod(pod, context.capabilities.cpu_version)
            if request.knob in knobs
        )
        missing = [knob.value for knob, on in wanted.items() if on and knob not in knobs]
        return Desired(requests=requests, reason=_reason(pods, requests, missing)), state


def _of_pod(pod: PodSnapshot, cpu_version: int | None) -> Iterator[Request]:
    """The wishes for one pod and for its container leaves."""
    identity = pod.identity
    whole = identity.batch_limit
    if whole.cpu_millis is not None and whole.cpu_millis <= MAX_QUOTA_MILLIS:
        yield _quota(pod.group, whole.cpu_millis, f"{pod.label}: its containers' batch-cpu limits")
    if whole.memory_bytes is not None and whole.memory_bytes < MAX_MEMORY_BYTES:
        yield _memory(pod.group, whole.memory_bytes, f"{pod.label}: its containers' batch-memory limits")
    matched = {leaf.id for leaf in pod.containers}
    waiting = [container for container in identity.containers if container.id not in matched]
    by_id = {container.id: container for container in identity.containers if container.id}
    for leaf in pod.containers:
        owner = by_id.get(leaf.id)
        claims, name = ([owner], owner.name) if owner is not None else (waiting, _either(waiting))
        yield from _of_leaf(leaf.group, claims, f"{pod.label}: container {name}", identity, cpu_version)


def _of_leaf(
    group: str, claims: Sequence[ContainerIdentity], label: str, identity: PodIdentity, cpu_version: int | None
) -> Iterator[Request]:
    """The wishes for one leaf that belongs to one of `claims`: the largest of theirs, none where one has none."""
    asked = _largest(claims, lambda container: container.batch_request.cpu_millis)
    if asked is not None and not identity.cpu_request_millis:
        value = kernel_weight(asked, v2=cpu_version == 2)
        why = f"{label} asks for {asked}m of batch-cpu: weight {value}"
        yield Request(policy=BatchLimits.name, group=group, knob=Knob.WEIGHT, value=value, reason=why)
    cpu = _largest(claims, lambda container: container.batch_limit.cpu_millis)
    if cpu is not None and cpu <= MAX_QUOTA_MILLIS:
        yield _quota(group, cpu, f"{label} has a batch-cpu limit")
    memory = _largest(claims, lambda container: container.batch_limit.memory_bytes)
    if memory is not None and memory < MAX_MEMORY_BYTES:
        yield _memory(group, memory, f"{label} has a batch-memory limit")


def _largest(claims: Iterable[ContainerIdentity], part: Callable[[ContainerIdentity], int | None]) -> int | None:
    amounts = [part(container) for container in claims]
    known = [amount for amount in amounts if amount is not None]
    return max(known) if known and len(known) == len(amounts) else None


def _either(waiting: Sequence[ContainerIdentity]) -> str:
    names = " or ".join(container.name for container in waiting[:3])
    return f"{names} (not matched yet)"


def _quota(group: str, millis: int, why: str) -> Request:
    value = max(MIN_QUOTA_MILLIS, millis)
    return Request(
        policy=BatchLimits.name, group=group, knob=Knob.QUOTA, value=value, reason=f"{why}: {value}m"
    )  # fmt: skip


def _memory(group: str, limit: int, why: str) -> Request:
    value = max(MIN_MEMORY_BYTES, -(-limit // mmap.PAGESIZE) * mmap.PAGESIZE)
    return Request(
        policy=BatchLimits.name, group=group, knob=Knob.MEMORY_MAX, value=value, reason=f"{why}: {value} bytes"
    )


def _reason(pods: Sequence[PodSnapshot], requests: Sequence[Request], missing: Sequence[str]) -> str:
    if not pods:
        return "no BE pod is here"
    groups = {pod.group for pod in pods}
    cpu = sum(request.knob is Knob.QUOTA and request.group in groups for request in requests)
    memory = sum(request.knob is Knob.MEMORY_MAX and request.group in groups for request in requests)
    text = f"of {len(pods)} BE pods {cpu} are held to a batch-cpu limit and {memory} to a batch-memory limit"
    return f"{text}; not on this node: {', '.join(missing)}" if missing else text

"""PodInfo: what placement needs to know of a pod, computed once when the pod is first seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

from slacktide.errors import QuantityError
from slacktide.objects import Container, Pod, pod_key
from slacktide.quantity import batch_cpu
from slacktide.resources import batch_request, requests_of
from slacktide.settings import ResourceNames
from slacktide.tier import Tier, tier_of

UNSET_CPU_MILLIS: Final = 100
UNSET_MEMORY_BYTES: Final = 200 << 20
LARGEST: Final = 1 << 62
"""Amounts are cut here so that sums of a column stay inside 64 bits."""


class HostPort(NamedTuple):
    """A port of the node that a container asks for; an empty address means every address."""

    ip: str
    protocol: str
    port: int

    def conflicts(self, other: HostPort) -> bool:
        """Whether both cannot be open on one node."""
        if (self.protocol, self.port) != (other.protocol, other.port):
            return False
        return self.ip == other.ip or not self.ip or not other.ip


@dataclass(frozen=True, slots=True)
class PodInfo:
    """A pod as the framework sees it.

    `requests` are effective requests (cpu in millicores, everything else in whole units); `nonzero_*` count 100m and
    200 MiB for each container that states nothing, for scoring; `batch_*` is what it asks of the batch resources.
    `problem` says what about the pod could not be read: such a pod is never placed.
    """

    pod: Pod
    key: str
    uid: str
    tier: Tier
    requests: Mapping[str, int] = field(default_factory=dict)
    nonzero_cpu_millis: int = 0
    nonzero_memory_bytes: int = 0
    batch_cpu_millis: int = 0
    batch_memory_bytes: int = 0
    host_ports: frozenset[HostPort] = frozenset()
    problem: str = ""
    memo: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """What plugins have read out of the pod once, by `PluginName/what`; never changed after it was put there."""

    @property
    def priority(self) -> int:
        """spec.priority; a pod that states none has 0."""
        return self.pod.spec.priority or 0

    def on(self, node_name: str) -> PodInfo:
        """The same pod as it will be once bound to `node_name`."""
        spec = msgspec.structs.replace(self.pod.spec, node_name=node_name)
        return PodInfo(
            msgspec.structs.replace(self.pod, spec=spec),
            self.key,
            self.uid,
            self.tier,
            self.requests,
            self.nonzero_cpu_millis,
            self.nonzero_memory_bytes,
            self.batch_cpu_millis,
            self.batch_memory_bytes,
            self.host_ports,
            self.problem,
            self.memo,
        )


def _sidecar(container: Container) -> bool:
    return container.restart_policy == "Always"


def host_ports(pod: Pod) -> frozenset[HostPort]:
    """Host ports of the containers and sidecars; an init container that ends does not hold its port."""
    running = (*pod.spec.containers, *(c for c in pod.spec.init_containers if _sidecar(c)))
    return frozenset(
        HostPort("" if port.host_ip == "0.0.0.0" else port.host_ip, port.protocol or "TCP", port.host_port)  # noqa: S104  # compared with, nothing binds to it
        for container in running
        for port in container.ports
        if port.host_port > 0
    )


def _with_defaults(container: Container) -> Container:
    given = container.resources.requests
    missing = {
        name: default
        for name, default in (("cpu", f"{UNSET_CPU_MILLIS}m"), ("memory", str(UNSET_MEMORY_BYTES)))
        if name not in given
    }
    if not missing:
        return container
    resources = msgspec.structs.replace(container.resources, requests={**given, **missing})
    return msgspec.structs.replace(container, resources=resources)


def _nonzero_requests(pod: Pod) -> Mapping[str, int]:
    spec = msgspec.structs.replace(
        pod.spec,
        containers=[_with_defaults(c) for c in pod.spec.containers],
        init_containers=[_with_defaults(c) for c in pod.spec.init_containers],
    )
    return requests_of(msgspec.structs.replace(pod, spec=spec))


class PodReader:
    """Makes PodInfo of pods; knows the names of the batch resources."""

    def __init__(self, names: ResourceNames) -> None:
        self._names = names
        self._batch = frozenset({names.cpu, names.memory})

    def read(self, pod: Pod) -> PodInfo:
        """PodInfo of `pod`; requests that cannot be read become its `problem`."""
        tier = tier_of(pod, self._batch)
        key, uid = pod_key(pod), pod.metadata.uid
        try:
            self._check_whole_millis(pod)
            requests = requests_of(pod)
            nonzero = _nonzero_requests(pod)
            batch = batch_request(pod, self._names)
        except QuantityError as error:
            return PodInfo(pod, key, uid, tier, host_ports=host_ports(pod), problem=f"its requests: {error}")
        return PodInfo(
            pod,
            key,
            uid,
            tier,
            requests={name: min(amount, LARGEST) for name, amount in requests.items() if amount},
            nonzero_cpu_millis=min(nonzero.get("cpu", 0), LARGEST),
            nonzero_memory_bytes=min(nonzero.get("memory", 0), LARGEST),
            batch_cpu_millis=min(batch.cpu_millis or 0, LARGEST),
            batch_memory_bytes=min(batch.memory_bytes or 0, LARGEST),
            host_ports=host_ports(pod),
        )

    def _check_whole_millis(self, pod: Pod) -> None:
        """A batch CPU request such as 200m would count as 1 millicore; refused rather than misread."""
        for container in (*pod.spec.containers, *pod.spec.init_containers):
            for asked in (container.resources.requests, container.resources.limits):
                if self._names.cpu in asked:
                    batch_cpu(asked[self._names.cpu])

"""NodeInfo: a node with the pods that are on it or assumed there, and their sums."""

from __future__ import annotations

from scheduler_plugins.framework.pod_info import LARGEST, HostPort, PodInfo
from slacktide.errors import QuantityError
from slacktide.objects import Node
from slacktide.resources import node_allocatable, node_capacity


class NodeInfo:
    """One node. `node` is None while pods are known here but the node object is not (or no longer).

    `allocatable` and `capacity` have cpu in millicores, everything else in whole units; what cannot be read counts as
    absent and is named in `problem`. `ports` has how many pods hold each host port. `generation` rises with each
    change.
    """

    __slots__ = (
        "allocatable",
        "capacity",
        "generation",
        "name",
        "node",
        "nonzero_cpu_millis",
        "nonzero_memory_bytes",
        "pods",
        "ports",
        "problem",
        "requested",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.node: Node | None = None
        self.pods: dict[str, PodInfo] = {}
        self.requested: dict[str, int] = {}
        self.nonzero_cpu_millis = 0
        self.nonzero_memory_bytes = 0
        self.ports: dict[HostPort, int] = {}
        self.allocatable: dict[str, int] = {}
        self.capacity: dict[str, int] = {}
        self.problem = ""
        self.generation = 0

    @classmethod
    def of(cls, node: Node) -> NodeInfo:
        """The node with no pods on it, for questions about an empty node."""
        info = cls(node.metadata.name)
        info.set_node(node)
        return info

    def set_node(self, node: Node | None) -> None:
        """Take over the node object, or drop it."""
        self.node = node
        self.allocatable, self.capacity, self.problem = {}, {}, ""
        if node is None:
            return
        try:
            self.allocatable = {name: min(v, LARGEST) for name, v in node_allocatable(node).items()}
            self.capacity = {name: min(v, LARGEST) for name, v in node_capacity(node).items()}
        except QuantityError as error:
            self.problem = str(error)

    def add_pod(self, pod: PodInfo) -> None:
        """Charge `pod` to the node; a pod that is already here is replaced."""
        if pod.uid in self.pods:
            self.remove_pod(pod.uid)
        self.pods[pod.uid] = pod
        for name, amount in pod.requests.items():
            self.requested[name] = self.requested.get(name, 0) + amount
        self.nonzero_cpu_millis += pod.nonzero_cpu_millis
        self.nonzero_memory_bytes += pod.nonzero_memory_bytes
        for port in pod.host_ports:
            self.ports[port] = self.ports.get(port, 0) + 1

    def remove_pod(self, uid: str) -> PodInfo | None:
        """Take the pod off the node; None if it is not here."""
        pod = self.pods.pop(uid, None)
        if pod is None:
            return None
        for name, amount in pod.requests.items():
            left = self.requested[name] - amount
            if left:
                self.requested[name] = left
            else:
                del self.requested[name]
        self.nonzero_cpu_millis -= pod.nonzero_cpu_millis
        self.nonzero_memory_bytes -= pod.nonzero_memory_bytes
        for port in pod.host_ports:
            if self.ports[port] > 1:
                self.ports[port] -= 1
            else:
                del self.ports[port]
        return pod

    def consistent(self) -> bool:
        """Whether the sums are those of the pods; anything else is a bug."""
        fresh = NodeInfo(self.name)
        for pod in self.pods.values():
            fresh.add_pod(pod)
        return (
            fresh.requested == self.requested
            and fresh.ports == self.ports
            and fresh.nonzero_cpu_millis == self.nonzero_cpu_millis
            and fresh.nonzero_memory_bytes == self.nonzero_memory_bytes
        )

    def clone(self) -> NodeInfo:
        """A copy that further changes do not touch."""
        # Made for each changed node of each cycle, so without the empty fields that the constructor would make.
        copy = NodeInfo.__new__(NodeInfo)
        copy.name = self.name
        copy.node = self.node
        copy.pods = self.pods.copy()
        copy.requested = self.requested.copy()
        copy.nonzero_cpu_millis = self.nonzero_cpu_millis
        copy.nonzero_memory_bytes = self.nonzero_memory_bytes
        copy.ports = self.ports.copy()
        copy.allocatable = self.allocatable
        copy.capacity = self.capacity
        copy.problem = self.problem
        copy.generation = self.generation
        return copy

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the node object."""
        return self.node.metadata.labels if self.node is not None else {}

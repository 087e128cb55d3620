"""NodeInfo: a node with the pods that are on it or assumed there, and their sums."""

from __future__ import annotations

from collections import Counter

from scheduler_plugins.framework.pod_info import LARGEST, HostPort, PodInfo
from slacktide.errors import QuantityError
from slacktide.objects import Node
from slacktide.resources import node_allocatable, node_capacity


class NodeInfo:
    """One node. `node` is None while pods are known here but the node object is not (or no longer).

    `allocatable` and `capacity` have cpu in millicores, everything else in whole units; what cannot be read counts as
    absent and is named in `problem`. `generation` rises with each change.
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
        self.ports: Counter[HostPort] = Counter()
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
        self.ports.update(pod.host_ports)

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
        self.ports -= Counter(pod.host_ports)
        return pod

    def clone(self) -> NodeInfo:
        """A copy that further changes do not touch."""
        copy = NodeInfo(self.name)
        copy.node = self.node
        copy.pods = dict(self.pods)
        copy.requested = dict(self.requested)
        copy.nonzero_cpu_millis = self.nonzero_cpu_millis
        copy.nonzero_memory_bytes = self.nonzero_memory_bytes
        copy.ports = Counter(self.ports)
        copy.allocatable = self.allocatable
        copy.capacity = self.capacity
        copy.problem = self.problem
        copy.generation = self.generation
        return copy

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the node object."""
        return self.node.metadata.labels if self.node is not None else {}

"""The API server of a simulation: pods and nodes in memory, told to the scheduler's handlers at once.

It does to them what a server, and the kubelet behind it, would: a binding is refused where the pod has a node, a bound
pod runs at once, and one that is deleted stays for its grace period.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, Protocol

import msgspec

from scheduler_plugins.simulation.clock import Clock, Timeline
from slacktide.cluster.errors import Conflict, NotFound
from slacktide.cluster.kinds import Kind
from slacktide.objects import Node, Pod, PodCondition, is_terminating

GRACE_SECONDS: Final = 30
"""How long a pod takes to end that does not say."""

Key = tuple[str, str]


class Handlers(Protocol):
    """Who is told of changes."""

    def pod_added(self, pod: Pod) -> None:
        """A pod appeared."""
        ...

    def pod_updated(self, old: Pod, new: Pod) -> None:
        """A pod changed."""
        ...

    def pod_deleted(self, pod: Pod) -> None:
        """A pod is gone."""
        ...

    def node_added(self, node: Node) -> None:
        """A node appeared."""
        ...

    def node_updated(self, old: Node, new: Node) -> None:
        """A node changed."""
        ...


class MemoryApi:
    """The calls of `slacktide.cluster.Client` that the scheduler makes, and what the world does beside it.

    `bound(pod)` is called after each binding.
    """

    def __init__(self, clock: Clock, timeline: Timeline, bound: Callable[[Pod], None]) -> None:
        self._clock = clock
        self._timeline = timeline
        self._bound = bound
        self._handlers: Handlers | None = None
        self._pods: dict[Key, Pod] = {}
        self._nodes: dict[str, Node] = {}
        self._version = 0

    @property
    def pods(self) -> Mapping[Key, Pod]:
        """All pods by (namespace, name)."""
        return self._pods

    @property
    def nodes(self) -> Mapping[str, Node]:
        """All nodes by name."""
        return self._nodes

    def tell(self, handlers: Handlers) -> None:
        """Tell `handlers` of everything there is, and from now on of every change."""
        self._handlers = handlers
        for node in self._nodes.values():
            handlers.node_added(node)
        for pod in tuple(self._pods.values()):
            handlers.pod_added(pod)

    def lookup(self, namespace: str, name: str) -> Pod | None:
        """As an informer has it: None for a pod that is not there."""
        return self._pods.get((namespace, name))

    # What clients call.

    def bind(self, pod: Pod, node_name: str) -> None:
        """Raises NotFound, or Conflict where the pod is another or has a node."""
        current = self._known(pod.metadata.name, pod.metadata.namespace)
        if current.metadata.uid != pod.metadata.uid or current.spec.node_name:
            held = current.spec.node_name
            raise Conflict(409, "Conflict", f"pod {pod.metadata.name} is already assigned to node {held!r}")
        now = self._stamp()
        condition = PodCondition(type="PodScheduled", status="True", last_transition_time=now)
        spec = msgspec.structs.replace(current.spec, node_name=node_name)
        status = msgspec.structs.replace(
            current.status, phase="Running", start_time=now, conditions=_with(current.status.conditions, condition)
        )
        self._bound(self.put(msgspec.structs.replace(current, spec=spec, status=status)))

    def get(self, kind: Kind[Pod], name: str, namespace: str | None = None) -> Pod:  # noqa: ARG002  # only pods are read
        """One pod. Raises NotFound."""
        return self._known(name, namespace)

    def patch(
        self,
        kind: Kind[Pod],  # noqa: ARG002  # only pods are patched
        name: str,
        namespace: str | None,
        body: dict[str, Any],
        subresource: str | None = None,  # noqa: ARG002  # only their status is
        patch_type: Literal["merge", "strategic", "json"] = "merge",  # noqa: ARG002  # of the two fields below
    ) -> Pod:
        """Conditions by type, and the nomination. Raises NotFound, or Conflict for another uid."""
        current = self._known(name, namespace)
        _same(current, body.get("metadata", {}).get("uid"))
        stated = body.get("status", {})
        conditions = current.status.conditions
        for condition in stated.get("conditions", ()):
            conditions = _with(conditions, msgspec.convert(condition, PodCondition))
        nominated = stated.get("nominatedNodeName", current.status.nominated_node_name) or ""
        status = msgspec.structs.replace(current.status, conditions=conditions, nominated_node_name=nominated)
        return self.put(msgspec.structs.replace(current, status=status))

    def delete(
        self,
        kind: Kind[Any],  # noqa: ARG002  # only pods are deleted
        name: str,
        namespace: str | None = None,
        uid: str | None = None,
    ) -> None:
        """A pod on a node ends after its grace period. Raises NotFound, or Conflict for another uid."""
        current = self._known(name, namespace)
        _same(current, uid)
        if not current.spec.node_name:
            self.remove(current)
        elif not is_terminating(current):
            grace = current.spec.termination_grace_period_seconds
            metadata = msgspec.structs.replace(current.metadata, deletion_timestamp=self._stamp())
            ending = self.put(msgspec.structs.replace(current, metadata=metadata))
            seconds = GRACE_SECONDS if grace is None else grace
            self._timeline.at(self._clock.now + seconds, lambda: self.remove(ending))

    # What the world does.

    def put(self, pod: Pod) -> Pod:
        """A pod appears or changes; returned with its version."""
        self._version += 1
        metadata = msgspec.structs.replace(pod.metadata, resource_version=str(self._version))
        pod = msgspec.structs.replace(pod, metadata=metadata)
        key = (pod.metadata.namespace, pod.metadata.name)
        old = self._pods.get(key)
        self._pods[key] = pod
        if self._handlers is not None:
            if old is None:
                self._handlers.pod_added(pod)
            else:
                self._handlers.pod_updated(old, pod)
        return pod

    def remove(self, pod: Pod) -> bool:
        """A pod is gone; False where it was already, or another has its name."""
        key = (pod.metadata.namespace, pod.metadata.name)
        current = self._pods.get(key)
        if current is None or current.metadata.uid != pod.metadata.uid:
            return False
        del self._pods[key]
        if self._handlers is not None:
            self._handlers.pod_deleted(current)
        return True

    def put_node(self, node: Node) -> None:
        """A node appears or changes."""
        name = node.metadata.name
        old = self._nodes.get(name)
        self._nodes[name] = node
        if self._handlers is not None:
            if old is None:
                self._handlers.node_added(node)
            else:
                self._handlers.node_updated(old, node)

    def _known(self, name: str, namespace: str | None) -> Pod:
        try:
            return self._pods[(namespace or "", name)]
        except KeyError:
            raise NotFound(404, "NotFound", f"pods {name!r} not found") from None

    def _stamp(self) -> str:
        return datetime.fromtimestamp(self._clock.wall(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _with(conditions: list[PodCondition], new: PodCondition) -> list[PodCondition]:
    return [*(one for one in conditions if one.type != new.type), new]


def _same(current: Pod, uid: str | None) -> None:
    if uid is not None and uid != current.metadata.uid:
        raise Conflict(409, "Conflict", f"Precondition failed: UID in precondition: {uid}")

"""An API server in memory: pods and nodes with versions, watches as direct calls, binding with the server's rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from scheduler_plugins.framework.event_names import event_resource
from scheduler_plugins.framework.events import Action, ClusterEvent
from slacktide.cluster import PODS, Kind
from slacktide.cluster.errors import Conflict, NotFound
from slacktide.objects import Node, Pod, PodCondition


class Api:
    """What the scheduler asks of the API. Watch events are delivered at once, or held until `deliver`."""

    def __init__(self) -> None:
        self.pods: dict[tuple[str, str], Pod] = {}
        self.nodes: dict[str, Node] = {}
        self.binds: list[tuple[str, str]] = []
        self.patches: list[dict[str, Any]] = []
        self.deletions: list[str] = []
        self.before_bind: Callable[[Pod, str], None] = lambda pod, node: None
        self.after_bind: Callable[[Pod, str], None] = lambda pod, node: None
        self.handlers: Any = None
        self.hold = False
        self.happened: Callable[[ClusterEvent, Any, Any], None] = lambda event, old, new: None
        self._objects: dict[str, dict[tuple[str, str], Any]] = {}
        self._seen: dict[tuple[str, str], Pod] = {}
        self._held: list[Callable[[], None]] = []
        self._version = 0

    # What clients call.

    def bind(self, pod: Pod, node_name: str) -> None:
        self.before_bind(pod, node_name)
        current = self.get(PODS, pod.metadata.name, pod.metadata.namespace)
        if current.metadata.uid != pod.metadata.uid or current.spec.node_name:
            raise Conflict(
                409, "Conflict", f"pod {pod.metadata.name} is already assigned to {current.spec.node_name!r}"
            )
        self.binds.append((pod.metadata.uid, node_name))
        self.assign(pod.metadata.name, node_name)
        self.after_bind(pod, node_name)

    def get(self, kind: Any, name: str, namespace: str | None = None) -> Pod:
        try:
            return self.pods[(namespace or "", name)]
        except KeyError:
            raise NotFound(404, "NotFound", f'pods "{name}" not found') from None

    def patch(
        self,
        kind: Any,
        name: str,
        namespace: str | None,
        body: dict[str, Any],
        subresource: str | None = None,
        patch_type: str = "merge",
    ) -> Pod:
        assert (subresource, patch_type) == ("status", "strategic")
        current = self.get(kind, name, namespace)
        self._check_uid(current, body.get("metadata", {}).get("uid"))
        version = body.get("metadata", {}).get("resourceVersion", current.metadata.resource_version)
        if version != current.metadata.resource_version:
            raise Conflict(409, "Conflict", "the object has been modified; please apply your changes to the latest")
        self.patches.append(body)
        conditions = [msgspec.convert(c, PodCondition) for c in body["status"].get("conditions", [])]
        kept = [c for c in current.status.conditions if c.type not in {new.type for new in conditions}]
        nominated = body["status"].get("nominatedNodeName", current.status.nominated_node_name) or ""
        status = msgspec.structs.replace(current.status, conditions=kept + conditions, nominated_node_name=nominated)
        return self.put(msgspec.structs.replace(current, status=status))

    def delete(self, kind: Any, name: str, namespace: str | None = None, uid: str | None = None) -> None:
        self._check_uid(self.get(kind, name, namespace), uid)
        self.deletions.append(name)
        self.remove(name)

    @staticmethod
    def _check_uid(current: Pod, uid: str | None) -> None:
        if uid is not None and uid != current.metadata.uid:
            raise Conflict(409, "Conflict", f"Precondition failed: UID in precondition: {uid}")

    # What the world does.

    def put(self, pod: Pod) -> Pod:
        self._version += 1
        metadata = msgspec.structs.replace(pod.metadata, resource_version=str(self._version))
        pod = msgspec.structs.replace(pod, metadata=metadata)
        key = (pod.metadata.namespace, pod.metadata.name)
        self.pods[key] = pod
        self._tell(lambda: self._saw(key, pod))
        return pod

    def assign(self, name: str, node_name: str) -> None:
        pod = self.pods[("default", name)]
        self.put(msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=node_name)))

    def finish(self, name: str, phase: str = "Succeeded") -> None:
        pod = self.pods[("default", name)]
        self.put(msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, phase=phase)))

    def remove(self, name: str) -> None:
        key = ("default", name)
        del self.pods[key]
        self._tell(lambda: self._saw(key, None))

    def put_node(self, node: Node) -> None:
        old = self.nodes.get(node.metadata.name)
        self.nodes[node.metadata.name] = node
        if old is None:
            self._tell(lambda: self.handlers.node_added(node))
        else:
            self._tell(lambda: self.handlers.node_updated(old, node))

    def put_object(self, kind: Kind[Any], item: Any) -> None:
        """An object beside pods and nodes appeared or changed."""
        objects = self._objects.setdefault(event_resource(kind), {})
        key = (item.metadata.namespace, item.metadata.name)
        old, objects[key] = objects.get(key), item
        action = Action.ADD if old is None else Action.UPDATE_OTHER
        self._tell(lambda: self.happened(ClusterEvent(event_resource(kind), action), old, item))

    # The scheduler's informers; see `interfaces.ObjectStore`.

    def all(self, kind: Kind[Any]) -> list[Any]:
        if kind == PODS:
            return list(self._seen.values())
        return list(self._objects.get(event_resource(kind), {}).values())

    def object(self, kind: Kind[Any], namespace: str, name: str) -> Any:
        found = (one for one in self.all(kind) if (one.metadata.namespace, one.metadata.name) == (namespace, name))
        return next(found, None)

    def indexed(self, kind: Kind[Any], index: Any, value: Any) -> list[Any]:
        found = (index.read(one) for one in self.all(kind))
        return [read[1] for read in found if read is not None and read[0] == value]

    def lookup(self, namespace: str, name: str) -> Pod | None:
        return self._seen.get((namespace, name))

    def list_all(self) -> None:
        """What a scheduler sees that has just started."""
        self._seen.clear()
        for node in self.nodes.values():
            self.handlers.node_added(node)
        for key, pod in self.pods.items():
            self._saw(key, pod)

    def deliver(self) -> None:
        held, self._held = self._held, []
        for call in held:
            call()

    def _saw(self, key: tuple[str, str], pod: Pod | None) -> None:
        old = self._seen.get(key)
        if pod is None:
            self._seen.pop(key, None)
            if old is not None:
                self.handlers.pod_deleted(old)
            return
        self._seen[key] = pod
        if old is not None and old.metadata.uid != pod.metadata.uid:
            self.handlers.pod_deleted(old)
            old = None
        if old is None:
            self.handlers.pod_added(pod)
        else:
            self.handlers.pod_updated(old, pod)

    def _tell(self, call: Callable[[], None]) -> None:
        if self.handlers is None:
            return
        if self.hold:
            self._held.append(call)
        else:
            call()

"""The kinds of objects that the client knows, and where the API keeps them.

A kind outside this list is one more `Kind(...)` in the package that needs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar
from urllib.parse import quote

import msgspec

from slacktide.objects import Event, Lease, Node, ObjectMeta, Pod, View


class HasMetadata(Protocol):
    """What every decoded object has in common."""

    @property
    def metadata(self) -> ObjectMeta:
        """Name, namespace, uid, resourceVersion, labels, annotations."""
        ...  # a protocol member has no body


T = TypeVar("T", bound=HasMetadata)


@dataclass(frozen=True)
class Kind(Generic[T]):
    """One kind: its names in paths and bodies, and the view that its JSON is decoded into."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool
    view: type[T]

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """The URL path of one object, one namespace (no name) or all namespaces (neither).

        Raises ValueError where a name needs a namespace or a cluster-wide kind is given one.
        """
        if namespace and not self.namespaced:
            raise ValueError(f"{self.kind} lives in no namespace, got {namespace!r}")
        if name is not None and self.namespaced and not namespace:
            raise ValueError(f"{self.kind} {name!r} needs a namespace")
        if name == "":
            raise ValueError(f"the name of a {self.kind} is empty")
        parts = ["api" if "/" not in self.api_version else "apis", self.api_version]
        if namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        parts += [quote(part, safe="") for part in (name, subresource) if part is not None]
        return "/" + "/".join(parts)


class LabelSelector(View, frozen=True):
    """A label selector: both parts must hold; an empty one selects everything."""

    match_labels: dict[str, str] = msgspec.field(default_factory=dict)
    match_expressions: list[dict[str, Any]] = msgspec.field(default_factory=list)


class PodDisruptionBudgetSpec(View, frozen=True):
    """spec of a disruption budget; the two limits are a count or a percentage as text."""

    min_available: int | str | None = None
    max_unavailable: int | str | None = None
    selector: LabelSelector | None = None
    unhealthy_pod_eviction_policy: str | None = None


class PodDisruptionBudgetStatus(View, frozen=True):
    """status of a disruption budget as its controller last saw it."""

    observed_generation: int = 0
    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0
    expected_pods: int = 0
    disrupted_pods: dict[str, str] = msgspec.field(default_factory=dict)


class PodDisruptionBudget(View, frozen=True):
    """A disruption budget (policy/v1)."""

    api_version: str = "policy/v1"
    kind: str = "PodDisruptionBudget"
    metadata: ObjectMeta = ObjectMeta()
    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()


class NamespaceStatus(View, frozen=True):
    """status of a namespace; `phase` is Active or Terminating."""

    phase: str = ""


class Namespace(View, frozen=True):
    """A namespace (core/v1)."""

    api_version: str = "v1"
    kind: str = "Namespace"
    metadata: ObjectMeta = ObjectMeta()
    status: NamespaceStatus = NamespaceStatus()


PODS: Final = Kind("v1", "Pod", "pods", True, Pod)
NODES: Final = Kind("v1", "Node", "nodes", False, Node)
EVENTS: Final = Kind("v1", "Event", "events", True, Event)
NAMESPACES: Final = Kind("v1", "Namespace", "namespaces", False, Namespace)
LEASES: Final = Kind("coordination.k8s.io/v1", "Lease", "leases", True, Lease)
PDBS: Final = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", True, PodDisruptionBudget)

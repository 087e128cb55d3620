"""The kinds that are served: names, scope, verbs, and how writes to them behave.

Source: kube-apiserver registries (AllowCreateOnUpdate, AllowUnconditionalUpdate, short names, categories).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from standalone.api.errors import Target


@dataclass(frozen=True)
class Kind:
    """One kind of object.

    `resource` is the plural in paths; `create_on_update`: PUT makes what is missing; `unconditional`: PUT without a
    resourceVersion is allowed; `generation`: metadata.generation counts changes of spec; `returns_deleted`: DELETE
    answers with the object instead of a Status.
    """

    group: str
    version: str
    resource: str
    singular: str
    kind: str
    namespaced: bool
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    has_status: bool = False
    create_on_update: bool = False
    unconditional: bool = True
    generation: bool = False
    returns_deleted: bool = False

    @property
    def api_version(self) -> str:
        """`v1` or `group/version`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def list_kind(self) -> str:
        """Kind of a list of these."""
        return f"{self.kind}List"

    def target(self, name: str = "") -> Target:
        """As messages about the resource name it (`pods "x" not found`)."""
        return Target(self.group, self.resource, name)

    def subject(self, name: str = "") -> Target:
        """As messages about the content name it (`Pod "x" is invalid`)."""
        return Target(self.group, self.kind, name)


PODS: Final = Kind(
    "", "v1", "pods", "pod", "Pod", True, ("po",), ("all",), has_status=True, generation=True, returns_deleted=True
)
NODES: Final = Kind("", "v1", "nodes", "node", "Node", False, ("no",), has_status=True)
EVENTS: Final = Kind("", "v1", "events", "event", "Event", True, ("ev",), create_on_update=True)
NAMESPACES: Final = Kind("", "v1", "namespaces", "namespace", "Namespace", False, ("ns",), has_status=True)
LEASES: Final = Kind(
    "coordination.k8s.io", "v1", "leases", "lease", "Lease", True, create_on_update=True, unconditional=False
)
PDBS: Final = Kind(
    "policy",
    "v1",
    "poddisruptionbudgets",
    "poddisruptionbudget",
    "PodDisruptionBudget",
    True,
    ("pdb",),
    has_status=True,
    unconditional=False,
    generation=True,
)
PRIORITY_CLASSES: Final = Kind(
    "scheduling.k8s.io", "v1", "priorityclasses", "priorityclass", "PriorityClass", False, ("pc",), generation=True
)

KINDS: Final = (PODS, NODES, EVENTS, NAMESPACES, LEASES, PDBS, PRIORITY_CLASSES)
BY_RESOURCE: Final = {kind.resource: kind for kind in KINDS}
"""Plurals are unique over all groups that are served, so the plural alone is the storage key."""

BY_PATH: Final = {(kind.group, kind.version, kind.resource): kind for kind in KINDS}
GROUPS: Final = ("authorization.k8s.io", "coordination.k8s.io", "policy", "scheduling.k8s.io")

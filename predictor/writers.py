"""Who wrote the batch resources that stand in a node's status: the API server keeps that in managedFields.

Read when it matters only (something stands there that is not ours), for one node at a time: kept for every node it
would be most of what the cache of nodes holds.
Source: Kubernetes API reference, ManagedFieldsEntry; a plain patch takes over the fields whose values it changes.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import msgspec

from slacktide.cluster.kinds import NODES, Kind
from slacktide.objects import ObjectMeta, View
from slacktide.settings import ResourceNames

OURS: Final = "slacktide-predictor"
_NOT_WRITERS: Final = frozenset({OURS, "kubelet"})
"""The kubelet copies what stands in capacity to allocatable, and so comes to own what it did not think of."""


class _StatusFields(msgspec.Struct, frozen=True, kw_only=True):
    capacity: dict[str, Any] = msgspec.field(default_factory=dict, name="f:capacity")
    allocatable: dict[str, Any] = msgspec.field(default_factory=dict, name="f:allocatable")


class _Fields(msgspec.Struct, frozen=True, kw_only=True):
    status: _StatusFields = msgspec.field(default_factory=_StatusFields, name="f:status")


class ManagedFields(View, frozen=True):
    """Fields that one manager set last."""

    manager: str = ""
    time: str = ""
    fields: _Fields = msgspec.field(default_factory=_Fields, name="fieldsV1")


class OwnedMeta(ObjectMeta, frozen=True):
    """metadata with who set which field."""

    managed_fields: tuple[ManagedFields, ...] = ()


class OwnedNode(View, frozen=True):
    """A node as far as the ownership of its status goes."""

    metadata: OwnedMeta = OwnedMeta()


OWNED_NODES: Final = Kind(NODES.api_version, NODES.kind, NODES.plural, NODES.namespaced, OwnedNode)


class Lister(Protocol):
    """The part of the API client that is used."""

    def list(self, kind: Kind[OwnedNode], *, field_selector: str) -> Any:
        """Objects that a field selector chooses."""
        ...


def writer_of(node: OwnedNode, names: ResourceNames) -> str:
    """Manager that set the batch resources of `node` last; empty when only we did, or nobody."""
    wanted = {f"f:{names.cpu}", f"f:{names.memory}"}
    found = [
        (entry.time, entry.manager)
        for entry in node.metadata.managed_fields
        if entry.manager not in _NOT_WRITERS
        and wanted & (entry.fields.status.capacity.keys() | entry.fields.status.allocatable.keys())
    ]
    return max(found)[1] if found else ""


def find_writer(client: Lister, name: str, names: ResourceNames) -> str:
    """`writer_of` the node of that name now. Raises ClusterError.

    Listed and not got: the right to list is what the cache of nodes needs anyway.
    """
    nodes = client.list(OWNED_NODES, field_selector=f"metadata.name={name}").items
    return writer_of(nodes[0], names) if nodes else ""

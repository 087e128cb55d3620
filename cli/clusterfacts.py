"""What `slacktide doctor --cluster` looks at, read from the API server with the rights of whoever asks.

Nothing is changed, and a read that fails costs one entry of `missing` and never the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from predictor.writers import OwnedMeta
from slacktide.cluster import LEASES, PODS, Client
from slacktide.cluster.errors import ClusterError, NotFound
from slacktide.cluster.kinds import NAMESPACES, NODES, Kind, Namespace
from slacktide.cluster.permissions import Permission
from slacktide.names import NODE_LEASE_NAMESPACE, SYSTEM_NAMESPACE
from slacktide.objects import Lease, Node, ObjectMeta, Pod, View, epoch_seconds

_T = TypeVar("_T")
_GATE: Final = re.compile(r'^kubernetes_feature_enabled\{name="(\w+)",stage="(\w*)"\} ([01])$', re.MULTILINE)


class CheckedNode(Node, frozen=True):
    """A node, and who set which of its fields."""

    metadata: OwnedMeta = OwnedMeta()


class Named(View, frozen=True):
    """Any object of which only the name and labels matter."""

    metadata: ObjectMeta = ObjectMeta()


_CHECKED_NODES: Final = Kind(NODES.api_version, NODES.kind, NODES.plural, NODES.namespaced, CheckedNode)
_GROUP: Final = "admissionregistration.k8s.io/v1"
POLICIES: Final = {
    "validating policies": Kind(_GROUP, "ValidatingAdmissionPolicy", "validatingadmissionpolicies", False, Named),
    "validating bindings": Kind(
        _GROUP, "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", False, Named
    ),
    "mutating policies": Kind(_GROUP, "MutatingAdmissionPolicy", "mutatingadmissionpolicies", False, Named),
    "mutating bindings": Kind(
        _GROUP, "MutatingAdmissionPolicyBinding", "mutatingadmissionpolicybindings", False, Named
    ),
}
"""Kinds of admission policies that Slacktide brings."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What was read. None is what could not be; `missing` says why, by the name of the fact.

    now       seconds since the epoch by the clock of the API server; here is that of this machine at the same moment
    policies  names of our admission policies by kind; a kind that the server does not have is absent
    gates     feature gates of the API server
    kubelets  settings of the kubelets that were asked, by node
    denied    by account, the permissions of our components that it lacks
    """

    namespace: str
    version: str | None = None
    now: float | None = None
    here: float = 0.0
    nodes: tuple[CheckedNode, ...] | None = None
    pods: tuple[Pod, ...] | None = None
    namespaces: tuple[Namespace, ...] | None = None
    node_leases: tuple[Lease, ...] | None = None
    leader_leases: tuple[Lease, ...] | None = None
    policies: Mapping[str, tuple[str, ...]] | None = None
    gates: Mapping[str, bool] | None = None
    kubelets: Mapping[str, Mapping[str, Any]] = {}
    denied: Mapping[str, tuple[Permission, ...]] | None = None
    missing: Mapping[str, str] = {}


class _Created(msgspec.Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


class _Review(msgspec.Struct, frozen=True):
    class Status(msgspec.Struct, frozen=True):
        allowed: bool = False

    status: Status = Status()


class _Configz(msgspec.Struct, frozen=True):
    kubeletconfig: dict[str, Any] = {}


class Gatherer:
    """Reads the facts of one cluster; `wall` is the clock of this machine, seconds since the epoch."""

    def __init__(self, client: Client, namespace: str, wall: Callable[[], float]) -> None:
        self._client = client
        self._namespace = namespace
        self._wall = wall
        self._missing: dict[str, str] = {}

    def facts(self, wanted: Mapping[str, Sequence[Permission]], kubelets: int) -> Facts:
        """Everything. `wanted` are the permissions to ask for by component; of so many kubelets settings are read.

        Raises ClusterError when the server does not answer at all.
        """
        version = self._client.version().git_version
        now, here = self._try("clock", self._server_time) or (None, self._wall())
        nodes = self._try("nodes", lambda: self._client.list(_CHECKED_NODES).items)
        return Facts(
            namespace=self._namespace,
            version=version,
            now=now,
            here=here,
            nodes=nodes,
            pods=self._try("pods", lambda: self._client.list(PODS).items),
            namespaces=self._try("namespaces", lambda: self._client.list(NAMESPACES).items),
            node_leases=self._try("node leases", lambda: self._client.list(LEASES, NODE_LEASE_NAMESPACE).items),
            leader_leases=self._try("leader leases", lambda: self._client.list(LEASES, SYSTEM_NAMESPACE).items),
            policies=self._try("admission policies", self._policies),
            gates=self._try("feature gates", self._gates),
            kubelets=self._kubelets(nodes or (), kubelets),
            denied=self._try("permissions", lambda: self._denied(wanted)),
            missing=self._missing,
        )

    def of_node(self, name: str) -> Facts | None:
        """What is about node `name`: itself, its pods, its lease, its kubelet; None where there is no such node.

        Raises ClusterError when the server does not answer, or keeps the node from us.
        """
        version = self._client.version().git_version
        now, here = self._try("clock", self._server_time) or (None, self._wall())
        try:
            node = self._client.get(_CHECKED_NODES, name)
        except NotFound:
            return None
        on_it = f"spec.nodeName={name}"
        lease = self._try("node leases", lambda: self._client.get(LEASES, name, NODE_LEASE_NAMESPACE))
        return Facts(
            namespace=self._namespace,
            version=version,
            now=now,
            here=here,
            nodes=(node,),
            pods=self._try("pods", lambda: self._client.list(PODS, field_selector=on_it).items),
            node_leases=None if lease is None else (lease,),
            kubelets=self._kubelets((node,), 1),
            missing=self._missing,
        )

    def _try(self, name: str, read: Callable[[], _T]) -> _T | None:
        try:
            return read()
        except (ClusterError, msgspec.MsgspecError) as error:
            self._missing[name] = str(error)
            return None

    def _server_time(self) -> tuple[float | None, float]:
        """The server's clock and ours, at the same moment: it stamps what it creates, in whole seconds."""
        path, kind = "/apis/authentication.k8s.io/v1/selfsubjectreviews", "SelfSubjectReview"
        before = self._wall()
        answer = self._post(path, {"apiVersion": "authentication.k8s.io/v1", "kind": kind}, _Created)
        return epoch_seconds(answer.metadata.creation_timestamp), (before + self._wall()) / 2

    def _policies(self) -> dict[str, tuple[str, ...]]:
        found = {}
        for name, kind in POLICIES.items():
            # MutatingAdmissionPolicies of 1.34 and 1.35 are of a beta version.
            for version in (kind, replace(kind, api_version=f"{kind.api_version}beta1")):
                try:
                    listed = self._client.list(version, label_selector="app.kubernetes.io/name=slacktide").items
                except NotFound:
                    continue
                found[name] = tuple(sorted(one.metadata.name for one in listed))
                break
        return found

    def _gates(self) -> dict[str, bool]:
        text = self._client.request("GET", "/metrics").decode("utf-8", "replace")
        return {name: value == "1" for name, _, value in _GATE.findall(text)}

    def _kubelets(self, nodes: Iterable[CheckedNode], most: int) -> dict[str, Mapping[str, Any]]:
        """Settings of some kubelets, as many as possible of different versions and systems among the first."""
        ordered: dict[tuple[str, str], list[str]] = {}
        for node in nodes:
            info = node.status.node_info
            ordered.setdefault((info.get("kubeletVersion", ""), info.get("osImage", "")), []).append(node.metadata.name)
        turns = max((len(names) for names in ordered.values()), default=0)
        chosen = [names[turn] for turn in range(turns) for names in ordered.values() if turn < len(names)]
        found: dict[str, Mapping[str, Any]] = {}
        for name in chosen[:most]:
            settings = self._try(f"kubelet {name}", partial(self._configz, name))
            if settings is not None:
                found[name] = settings
        return found

    def _configz(self, node: str) -> Mapping[str, Any]:
        body = self._client.request("GET", f"/api/v1/nodes/{node}/proxy/configz")
        return msgspec.json.decode(body, type=_Configz).kubeletconfig

    def _denied(self, wanted: Mapping[str, Sequence[Permission]]) -> dict[str, tuple[Permission, ...]]:
        found = {}
        for component, permissions in wanted.items():
            account = f"system:serviceaccount:{self._namespace}:slacktide-{component}"
            found[component] = tuple(one for one in permissions if not self._may(account, one))
        return found

    def _may(self, account: str, one: Permission) -> bool:
        attributes = {
            "verb": one.verb,
            "group": one.group,
            "resource": one.resource,
            "subresource": one.subresource,
            "namespace": one.namespace,
            "name": one.name,
        }
        groups = ["system:authenticated", "system:serviceaccounts", f"system:serviceaccounts:{self._namespace}"]
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": account,
                "groups": groups,
                "resourceAttributes": {name: text for name, text in attributes.items() if text},
            },
        }
        return self._post("/apis/authorization.k8s.io/v1/subjectaccessreviews", body, _Review).status.allowed

    def _post(self, path: str, body: dict[str, Any], answer: type[_T]) -> _T:
        return msgspec.json.decode(self._client.request("POST", path, body=msgspec.json.encode(body)), type=answer)


def own_rights(client: Client, wanted: Sequence[Permission]) -> tuple[Permission, ...]:
    """Which of `wanted` the caller lacks (SelfSubjectAccessReview). Raises ClusterError."""
    lacking = []
    for one in wanted:
        attributes = {"verb": one.verb, "group": one.group, "resource": one.resource, "subresource": one.subresource}
        spec = {"resourceAttributes": {name: text for name, text in attributes.items() if text}}
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": spec}
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        answer = client.request("POST", path, body=msgspec.json.encode(body))
        if not msgspec.json.decode(answer, type=_Review).status.allowed:
            lacking.append(one)
    return tuple(lacking)

"""Discovery: which groups, versions and resources are served, in the old and the aggregated form, and the version."""

from __future__ import annotations

import platform
from typing import Any, Final

from standalone.api.kinds import GROUPS, KINDS, PODS, Kind
from standalone.api.negotiation import DISCOVERY_GROUP, Form

KUBERNETES_MINOR: Final = 33
"""The Kubernetes minor version whose behaviour is followed."""

_ROOTS: Final = (
    "/api",
    "/api/v1",
    "/apis",
    *(f"/apis/{group}/v1" for group in GROUPS),
    "/healthz",
    "/livez",
    "/openapi/v3",
    "/readyz",
    "/version",
)
_VERBS: Final = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
_REVIEWS: Final = "authorization.k8s.io"
"""Has one resource, which is asked and never stored."""

_STATUS_VERBS: Final = ("get", "patch", "update")


def version() -> dict[str, str]:
    """The body of /version; the suffix tells that this is no kube-apiserver."""
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return {
        "major": "1",
        "minor": str(KUBERNETES_MINOR),
        "gitVersion": f"v1.{KUBERNETES_MINOR}.0+slacktide",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "",
        "platform": f"linux/{machine}",
    }


def document(path: str, form: Form) -> dict[str, Any] | None:
    """The discovery document at a path, or None when there is none."""
    parts = path.strip("/").split("/")
    match parts:
        case [""]:
            return {"paths": list(_ROOTS)}
        case ["api"]:
            return _aggregated(("",)) if form is Form.DISCOVERY else _core_versions()
        case ["apis"]:
            return _aggregated(GROUPS) if form is Form.DISCOVERY else _group_list()
        case ["api", "v1"]:
            return _resource_list("", "v1")
        case ["apis", group] if group in GROUPS:
            return {"kind": "APIGroup", "apiVersion": "v1", **_group(group)}
        case ["apis", group, "v1"] if group in GROUPS:
            return _resource_list(group, "v1")
    return None


def _core_versions() -> dict[str, Any]:
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def _group(name: str) -> dict[str, Any]:
    shown = {"groupVersion": f"{name}/v1", "version": "v1"}
    return {"name": name, "versions": [shown], "preferredVersion": shown}


def _group_list() -> dict[str, Any]:
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(name) for name in GROUPS]}


def _subresources(kind: Kind) -> list[tuple[str, str, str, str, tuple[str, ...]]]:
    """(name, kind, group, version, verbs) of each subresource; group and version "" are the kind's own."""
    found: list[tuple[str, str, str, str, tuple[str, ...]]] = []
    if kind is PODS:
        found = [
            ("binding", "Binding", "", "", ("create",)),
            ("eviction", "Eviction", "policy", "v1", ("create",)),
            ("log", "Pod", "", "", ("get",)),
        ]
    return [*found, ("status", kind.kind, "", "", _STATUS_VERBS)] if kind.has_status else found


def _resource_list(group: str, version_: str) -> dict[str, Any]:
    resources: list[dict[str, Any]] = []
    for kind in KINDS:
        if (kind.group, kind.version) != (group, version_):
            continue
        entry: dict[str, Any] = {
            "name": kind.resource,
            "singularName": kind.singular,
            "namespaced": kind.namespaced,
            "kind": kind.kind,
            "verbs": list(_verbs(kind)),
        }
        if kind.short_names:
            entry["shortNames"] = list(kind.short_names)
        if kind.categories:
            entry["categories"] = list(kind.categories)
        resources.append(entry)
        for name, kind_name, other_group, other_version, verbs in _subresources(kind):
            part = {
                "name": f"{kind.resource}/{name}",
                "singularName": "",
                "namespaced": kind.namespaced,
                "kind": kind_name,
                "verbs": list(verbs),
            }
            resources.append(part | ({"group": other_group, "version": other_version} if other_group else {}))
    if group == _REVIEWS:
        review = {"name": "selfsubjectaccessreviews", "singularName": "selfsubjectaccessreview", "namespaced": False}
        resources.append({**review, "kind": "SelfSubjectAccessReview", "verbs": ["create"]})
    if not group:
        binding = {"name": "bindings", "singularName": "binding", "namespaced": True, "kind": "Binding"}
        resources.append({**binding, "verbs": ["create"]})
    group_version = f"{group}/{version_}" if group else version_
    head = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version}
    return {**head, "resources": resources}


def _verbs(kind: Kind) -> tuple[str, ...]:
    if kind.resource == "namespaces":
        return tuple(verb for verb in _VERBS if verb != "deletecollection")
    return _VERBS


def _aggregated(groups: tuple[str, ...]) -> dict[str, Any]:
    items = [
        {
            "metadata": {"name": group, "creationTimestamp": None} if group else {"creationTimestamp": None},
            "versions": [{"version": "v1", "resources": _aggregated_resources(group), "freshness": "Current"}],
        }
        for group in groups
    ]
    head = {"kind": "APIGroupDiscoveryList", "apiVersion": f"{DISCOVERY_GROUP}/v2"}
    return {**head, "metadata": {}, "items": items}


def _aggregated_resources(group: str) -> list[dict[str, Any]]:
    found = []
    for kind in KINDS:
        if kind.group != group:
            continue
        entry: dict[str, Any] = {
            "resource": kind.resource,
            "responseKind": _response_kind(kind.group, kind.version, kind.kind),
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "singularResource": kind.singular,
            "verbs": list(_verbs(kind)),
        }
        if kind.short_names:
            entry["shortNames"] = list(kind.short_names)
        if kind.categories:
            entry["categories"] = list(kind.categories)
        parts = [
            {
                "subresource": name,
                "responseKind": _response_kind(other or kind.group, other_version or kind.version, kind_name),
                "verbs": list(verbs),
            }
            for name, kind_name, other, other_version, verbs in _subresources(kind)
        ]
        found.append(entry | ({"subresources": parts} if parts else {}))
    if group == _REVIEWS:
        found.append(
            {
                "resource": "selfsubjectaccessreviews",
                "responseKind": _response_kind(group, "v1", "SelfSubjectAccessReview"),
                "scope": "Cluster",
                "singularResource": "selfsubjectaccessreview",
                "verbs": ["create"],
            }
        )
    return found


def _response_kind(group: str, version_: str, kind: str) -> dict[str, str]:
    return {"group": group, "version": version_, "kind": kind}

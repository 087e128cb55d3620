"""A small OpenAPI v3 document: enough for kubectl to see that writes take `fieldValidation` and `dryRun`.

It lists the paths that are served with their verbs. It describes no fields: kubectl then computes strategic merge
patches from the types that it has built in, which are the ones served here.
"""

from __future__ import annotations

from typing import Any, Final

from standalone.api.discovery import version
from standalone.api.kinds import GROUPS, KINDS, Kind

_PATCHES: Final = ("application/json-patch+json", "application/merge-patch+json")


def document(path: str) -> dict[str, Any] | None:
    """The index at /openapi/v3, or the document of one group below it; None when it is not served."""
    roots = {"api/v1": "", **{f"apis/{group}/v1": group for group in GROUPS}}
    name = path.removeprefix("/openapi/v3").strip("/")
    if not name:
        return {"paths": {root: {"serverRelativeURL": f"/openapi/v3/{root}"} for root in roots}}
    if name not in roots:
        return None
    paths: dict[str, Any] = {}
    for kind in KINDS:
        if kind.group == roots[name]:
            paths |= _paths(kind, f"/{name}")
    info = {"title": "Slacktide embedded API server", "version": version()["gitVersion"]}
    return {"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": {}}}


def _paths(kind: Kind, root: str) -> dict[str, Any]:
    base = f"{root}/namespaces/{{namespace}}" if kind.namespaced else root
    collection, one = f"{base}/{kind.resource}", f"{base}/{kind.resource}/{{name}}"
    found = {
        collection: {
            "get": _operation(kind, "list", ()),
            "post": _operation(kind, "post", ("dryRun", "fieldManager", "fieldValidation")),
            "delete": _operation(kind, "deletecollection", ("dryRun",)),
        },
        one: _one(kind),
    }
    return found | ({f"{one}/status": _status(kind)} if kind.has_status else {})


def _one(kind: Kind) -> dict[str, Any]:
    return {**_status(kind), "delete": _operation(kind, "delete", ("dryRun", "gracePeriodSeconds"))}


def _status(kind: Kind) -> dict[str, Any]:
    writing = ("dryRun", "fieldManager", "fieldValidation")
    patch = _operation(kind, "patch", writing)
    patch["requestBody"] = {"content": {name: {"schema": {"type": "object"}} for name in _PATCHES}}
    return {"get": _operation(kind, "get", ()), "put": _operation(kind, "put", writing), "patch": patch}


def _operation(kind: Kind, action: str, parameters: tuple[str, ...]) -> dict[str, Any]:
    return {
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": {"group": kind.group, "version": kind.version, "kind": kind.kind},
        "parameters": [{"name": name, "in": "query", "schema": {"type": "string"}} for name in parameters],
        "responses": {"200": {"description": "OK"}},
    }

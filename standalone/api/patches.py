"""The patch languages of the API, as pure functions on decoded JSON; inputs are never changed.

`merge` is RFC 7386, `json_patch` RFC 6902, `strategic` the Kubernetes strategic merge patch: lists whose items have a
merge key are merged item by item, with the directives $patch, $retainKeys, $deleteFromPrimitiveList and
$setElementOrder. Source: apimachinery pkg/util/strategicpatch, core/v1 struct tags (patchStrategy, patchMergeKey).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Final

PRIMITIVE: Final = ""
"""Merge key of a list of plain values that is merged as a set."""

_ANY_CONTAINER: Final = ("spec.containers", "spec.initContainers", "spec.ephemeralContainers")

MERGE_KEYS: Final[Mapping[str, str]] = {
    "metadata.ownerReferences": "uid",
    "metadata.finalizers": PRIMITIVE,
    "status.conditions": "type",
    "status.addresses": "type",
    "status.podIPs": "ip",
    "status.hostIPs": "ip",
    "spec.podCIDRs": PRIMITIVE,
    "spec.containers": "name",
    "spec.initContainers": "name",
    "spec.ephemeralContainers": "name",
    "spec.volumes": "name",
    "spec.imagePullSecrets": "name",
    "spec.hostAliases": "ip",
    "spec.topologySpreadConstraints": "topologyKey",
    "spec.schedulingGates": "name",
    "spec.resourceClaims": "name",
} | {
    f"{container}.{field}": key
    for container in _ANY_CONTAINER
    for field, key in {
        "env": "name",
        "ports": "containerPort",
        "volumeMounts": "mountPath",
        "volumeDevices": "devicePath",
    }.items()
}
"""Merge key of each list that is merged, by its path with list positions left out. A list that is not here is
replaced as a whole (tolerations, taints, args, command, containerStatuses are such lists in core/v1)."""


class PatchError(ValueError):
    """A patch that cannot be read or does not fit the object; the text says where."""


class PatchConflict(PatchError):
    """A JSON patch `test` that does not hold, or a path that is not there (answered as 422)."""


def merge(target: Any, patch: Any) -> Any:
    """`target` after a JSON merge patch: null removes, objects merge, everything else replaces."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def strategic(target: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """`target` after a strategic merge patch; raises PatchError for a list item without its merge key."""
    merged = _strategic_map(target, patch, "")
    return merged if merged is not None else {}


def _strategic_map(target: Mapping[str, Any], patch: Mapping[str, Any], path: str) -> dict[str, Any] | None:
    directive = patch.get("$patch")
    plain = {key: value for key, value in patch.items() if not key.startswith("$")}
    if directive == "delete":
        return None
    if directive == "replace":
        return copy.deepcopy(plain)
    if directive not in {None, "merge"}:
        raise PatchError(f"{path or 'patch'}: unknown $patch directive {directive!r}")
    result = dict(target)
    retained = patch.get("$retainKeys")
    if isinstance(retained, list):
        result = {key: value for key, value in result.items() if key in retained}
    for key, value in patch.items():
        if key.startswith("$deleteFromPrimitiveList/"):
            name = key.partition("/")[2]
            result[name] = [item for item in result.get(name) or [] if item not in value]
    for key, value in plain.items():
        _strategic_field(result, key, value, f"{path}.{key}" if path else key)
    _order(result, patch, path)
    return result


def _strategic_field(result: dict[str, Any], key: str, value: Any, path: str) -> None:
    current = result.get(key)
    if value is None:
        result.pop(key, None)
    elif isinstance(value, dict):
        merged = _strategic_map(current if isinstance(current, dict) else {}, value, path)
        if merged is None:
            result.pop(key, None)
        else:
            result[key] = merged
    elif isinstance(value, list):
        result[key] = _strategic_list(current if isinstance(current, list) else [], value, path)
    else:
        result[key] = value


def _strategic_list(current: list[Any], patch: list[Any], path: str) -> list[Any]:
    key = MERGE_KEYS.get(path)
    items = [item for item in patch if item != {"$patch": "replace"}]
    if key is None or len(items) != len(patch):
        return copy.deepcopy(items)
    if key == PRIMITIVE:
        return current + [item for item in items if item not in current]
    result = list(current)
    for item in items:
        if not isinstance(item, dict) or key not in item:
            raise PatchError(f"{path}: map does not contain declared merge key: {key}")
        _merge_item(result, item, key, path)
    return result


def _merge_item(result: list[Any], item: dict[str, Any], key: str, path: str) -> None:
    at = [i for i, old in enumerate(result) if isinstance(old, dict) and old.get(key) == item[key]]
    if item.get("$patch") == "delete":
        for index in reversed(at):
            del result[index]
        return
    merged = _strategic_map(result[at[0]] if at else {}, item, path)
    if at:
        result[at[0]] = merged
    else:
        result.append(merged)


def _order(result: dict[str, Any], patch: Mapping[str, Any], path: str) -> None:
    """Apply $setElementOrder: listed items in the asked order, the others where they stood."""
    for directive, wanted in patch.items():
        if not directive.startswith("$setElementOrder/"):
            continue
        name = directive.partition("/")[2]
        key = MERGE_KEYS.get(f"{path}.{name}" if path else name)
        items = result.get(name)
        if isinstance(items, list) and key is not None:
            result[name] = _ordered(items, wanted, key)


def _identity(item: Any, key: str) -> Any:
    return item.get(key) if key and isinstance(item, dict) else item


def _ordered(items: list[Any], wanted: Sequence[Any], key: str) -> list[Any]:
    rank = {str(_identity(value, key)): position for position, value in enumerate(wanted)}
    listed = [item for item in items if str(_identity(item, key)) in rank]
    listed.sort(key=lambda item: rank[str(_identity(item, key))])
    following = iter(listed)
    return [next(following) if str(_identity(item, key)) in rank else item for item in items]


def json_patch(target: Any, operations: Any) -> Any:
    """`target` after RFC 6902 operations; all or nothing. PatchError: malformed; PatchConflict: does not fit."""
    if not isinstance(operations, list):
        raise PatchError("a JSON patch is a list of operations")
    result = copy.deepcopy(target)
    for number, operation in enumerate(operations):
        if not isinstance(operation, dict) or not isinstance(operation.get("path"), str):
            raise PatchError(f"operation {number} has no path")
        result = _apply(result, operation, f"operation {number} ({operation.get('op')} {operation['path']})")
    return result


def _apply(document: Any, operation: dict[str, Any], where: str) -> Any:
    path = _pointer(operation["path"], where)
    match operation.get("op"):
        case "add":
            return _add(document, path, _value(operation, where), where)
        case "remove":
            return _remove(document, path, where)
        case "replace":
            value = _value(operation, where)
            return value if not path else _add(_remove(document, path, where), path, value, where)
        case "test":
            if not _equal(_read(document, path, where), _value(operation, where)):
                raise PatchConflict(f"{where}: test failed")
            return document
        case "move" | "copy" as name:
            return _transfer(document, path, operation, name, where)
    raise PatchConflict(f"{where}: unknown operation")


def _transfer(document: Any, path: list[str], operation: dict[str, Any], name: str, where: str) -> Any:
    if not isinstance(operation.get("from"), str):
        raise PatchError(f"{where}: no from")
    source = _pointer(operation["from"], where)
    if name == "move" and path[: len(source)] == source and path != source:
        raise PatchError(f"{where}: an object cannot move into itself")
    value = copy.deepcopy(_read(document, source, where))
    if name == "move":
        document = _remove(document, source, where)
    return _add(document, path, value, where)


def _value(operation: dict[str, Any], where: str) -> Any:
    if "value" not in operation:
        raise PatchError(f"{where}: no value")
    return copy.deepcopy(operation["value"])


def _equal(one: Any, other: Any) -> bool:
    """JSON equality: true is not 1, 1 is 1.0."""
    if isinstance(one, bool) is not isinstance(other, bool):
        return False
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)


def _pointer(text: str, where: str) -> list[str]:
    if text and not text.startswith("/"):
        raise PatchError(f"{where}: a path starts with '/'")
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


def _position(parent: list[Any], step: str, where: str, *, adding: bool) -> int:
    if step == "-" and adding:
        return len(parent)
    if not (step.isascii() and step.isdigit()) or (len(step) > 1 and step[0] == "0"):
        raise PatchConflict(f"{where}: {step!r} is no list position")
    position = int(step)
    if position >= len(parent) + (1 if adding else 0):
        raise PatchConflict(f"{where}: the list has no position {position}")
    return position


def _read(document: Any, path: list[str], where: str) -> Any:
    for token in path:
        if isinstance(document, dict) and token in document:
            document = document[token]
        elif isinstance(document, list):
            document = document[_position(document, token, where, adding=False)]
        else:
            raise PatchConflict(f"{where}: nothing at {token!r}")
    return document


def _add(document: Any, path: list[str], value: Any, where: str) -> Any:
    if not path:
        return value
    parent = _read(document, path[:-1], where)
    if isinstance(parent, dict):
        parent[path[-1]] = value
    elif isinstance(parent, list):
        parent.insert(_position(parent, path[-1], where, adding=True), value)
    else:
        raise PatchConflict(f"{where}: the parent is neither object nor list")
    return document


def _remove(document: Any, path: list[str], where: str) -> Any:
    if not path:
        return None
    parent = _read(document, path[:-1], where)
    if isinstance(parent, dict) and path[-1] in parent:
        del parent[path[-1]]
    elif isinstance(parent, list):
        del parent[_position(parent, path[-1], where, adding=False)]
    else:
        raise PatchConflict(f"{where}: nothing at {path[-1]!r}")
    return document

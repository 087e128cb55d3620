"""Decisions that create, change and delete objects, on a transaction: no I/O, clock and chance injected.

Source: apiserver pkg/registry/rest (BeforeCreate, BeforeUpdate, BeforeDelete) and the strategies of each kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from slacktide.errors import QuantityError
from slacktide.objects import Pod
from slacktide.resources import qos_class
from standalone.api import admission, defaults, errors, shapes, validation
from standalone.api.kinds import NODES, PODS, Kind
from standalone.api.records import Key, Record
from standalone.api.store import Transaction
from standalone.api.times import format_time, parse_time

Json = dict[str, Any]

_SYSTEM_FIELDS: Final = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink")
_MAX_PREFIX: Final = 58
_ATTEMPTS: Final = 8


@dataclass(frozen=True)
class World:
    """What decisions take from outside: the wall clock, fresh uids, and the tail of generated names (5 characters)."""

    now: Callable[[], datetime]
    new_uid: Callable[[], str]
    name_tail: Callable[[], str]

    def now_text(self) -> str:
        """The time as metadata carries it."""
        return format_time(self.now())


@dataclass(frozen=True)
class DeleteOptions:
    """What a DELETE may ask for; None where it says nothing. Seconds."""

    grace_period_seconds: int | None = None
    uid: str | None = None
    resource_version: str | None = None
    dry_run: bool = False


def decode_body(kind: Kind, body: Mapping[str, Any]) -> Json:
    """The object of a request body without kind, apiVersion and nulls; ApiError when it is of another kind."""
    found, version = body.get("kind") or kind.kind, body.get("apiVersion") or kind.api_version
    if found != kind.kind or version != kind.api_version:
        raise errors.bad_request(
            f'{found} in version "{version}" cannot be handled as a {kind.kind}: wrong kind or version'
        )
    obj: Json = defaults.without_nulls({key: value for key, value in body.items() if key not in {"kind", "apiVersion"}})
    metadata = obj.setdefault("metadata", {})
    if isinstance(metadata, dict):
        metadata.pop("managedFields", None)
    return obj


def check_shape(kind: Kind, obj: Json) -> None:
    """ApiError 400 when a value has the wrong JSON type, 422 when a required one is missing."""
    causes, wrong = shapes.check(kind, obj)
    if wrong is not None:
        raise errors.bad_request(f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: {wrong}')
    if causes:
        raise errors.invalid(kind.subject(obj["metadata"].get("name", "")), causes)


def _canonical(kind: Kind, obj: Json) -> None:
    try:
        defaults.canonical_quantities(kind, obj)
    except QuantityError as problem:
        text = (
            f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: quantities must match the '
            f"regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$': {problem}"
        )
        raise errors.bad_request(text) from problem


def create(transaction: Transaction, world: World, kind: Kind, namespace: str, obj: Json) -> Record:
    """Create a decoded object; ApiError 400, 403, 404 (namespace), 409 or 422."""
    check_shape(kind, obj)
    metadata = obj["metadata"]
    _same_namespace(kind, metadata, namespace)
    if metadata.pop("resourceVersion", ""):
        raise errors.ApiError(500, "", "resourceVersion should not be set on objects to be created")
    for name in _SYSTEM_FIELDS:
        metadata.pop(name, None)
    admission.namespace_is_open(transaction, kind, namespace, metadata.get("name", ""))
    if not metadata.get("name") and metadata.get("generateName"):
        metadata["name"] = _generated(transaction, world, kind, namespace, metadata["generateName"])
    _prepare_new(transaction, world, kind, obj)
    causes = validation.new(kind, obj)
    if causes:
        raise errors.invalid(kind.subject(metadata.get("name", "")), causes)
    key = Key(kind.resource, namespace, metadata["name"])
    if transaction.get(key) is not None:
        raise errors.already_exists(kind.target(metadata["name"]))
    return transaction.put(key, obj)


def _same_namespace(kind: Kind, metadata: Json, namespace: str) -> None:
    if not kind.namespaced:
        metadata.pop("namespace", None)
        return
    if metadata.setdefault("namespace", namespace) != namespace:
        raise errors.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )


def _generated(transaction: Transaction, world: World, kind: Kind, namespace: str, prefix: str) -> str:
    for _ in range(_ATTEMPTS):
        name = prefix[:_MAX_PREFIX] + world.name_tail()
        if transaction.get(Key(kind.resource, namespace, name)) is None:
            return name
    raise errors.already_exists(kind.target(name))


def _prepare_new(transaction: Transaction, world: World, kind: Kind, obj: Json) -> None:
    metadata = obj["metadata"]
    metadata["uid"] = world.new_uid()
    metadata["creationTimestamp"] = world.now_text()
    metadata.pop("generation", None)
    if kind.generation:
        metadata["generation"] = 1
    if kind.has_status and kind is not NODES:
        obj["status"] = {}
    defaults.apply(kind, obj)
    _canonical(kind, obj)
    if kind is PODS:
        admission.priority(transaction, obj)
        obj["status"] = _first_status(obj)


def _first_status(pod: Json) -> Json:
    status: Json = {"phase": "Pending", "qosClass": qos_class(msgspec.convert(pod, Pod))}
    if pod["spec"].get("schedulingGates"):
        gated = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
        }
        status["conditions"] = [gated]
    return status


def update(transaction: Transaction, kind: Kind, old: Record, obj: Json, *, status: bool) -> Record:
    """Replace `old` by a decoded object, through the object itself or its status; ApiError 400, 409 or 422."""
    before = old.object()
    check_shape(kind, obj)
    metadata = obj["metadata"]
    _preconditions(kind, before, metadata)
    for name in _SYSTEM_FIELDS:
        if not metadata.get(name) and before["metadata"].get(name) is not None:
            metadata[name] = before["metadata"][name]
    metadata.pop("generation", None)
    if "generation" in before["metadata"]:
        metadata["generation"] = before["metadata"]["generation"]
    _keep_other_half(kind, obj, before, status=status)
    defaults.apply(kind, obj)
    _canonical(kind, obj)
    if kind is PODS and not status:
        admission.unchanged_priority(obj, before)
    causes = validation.change(kind, obj, before)
    if causes:
        raise errors.invalid(kind.subject(old.key.name), causes)
    if kind.generation and obj.get("spec") != before.get("spec"):
        metadata["generation"] = before["metadata"].get("generation", 0) + 1
    new = transaction.put(old.key, obj)
    if (
        metadata.get("deletionTimestamp")
        and not metadata.get("finalizers")
        and not metadata.get("deletionGracePeriodSeconds")
    ):
        return transaction.delete(old.key)
    return new


def _preconditions(kind: Kind, before: Json, metadata: Json) -> None:
    name = before["metadata"]["name"]
    if metadata.get("name", name) != name:
        raise errors.bad_request(
            f"the name of the object ({metadata['name']}) does not match the name on the URL ({name})"
        )
    metadata["name"] = name
    _same_namespace(kind, metadata, before["metadata"].get("namespace", ""))
    uid = metadata.get("uid")
    if uid and uid != before["metadata"]["uid"]:
        # Twice, as from a real server: the check of metadata and that of the object both say so.
        cause = errors.invalid_value("metadata.uid", uid, "field is immutable")
        raise errors.invalid(kind.subject(name), [cause, cause])
    version = metadata.get("resourceVersion")
    if version and version != before["metadata"]["resourceVersion"]:
        raise errors.conflict(kind.target(name))


def _keep_other_half(kind: Kind, obj: Json, before: Json, *, status: bool) -> None:
    """A write of the object leaves status alone; a write of status leaves spec and owners alone.

    Labels and annotations may be written through status too: that is how a kubelet does it.
    """
    if not kind.has_status:
        return
    if not status:
        obj["status"] = before.get("status", {})
        return
    obj["spec"] = before.get("spec", {})
    owners = before["metadata"].get("ownerReferences")
    obj["metadata"].pop("ownerReferences", None)
    if owners:
        obj["metadata"]["ownerReferences"] = owners
    if kind is PODS:
        obj.setdefault("status", {}).setdefault("qosClass", before.get("status", {}).get("qosClass", ""))


def delete(
    transaction: Transaction, world: World, kind: Kind, record: Record, options: DeleteOptions
) -> tuple[Record, bool]:
    """Delete an object, or mark it as being deleted; its state afterwards, and whether it is gone. ApiError 409.

    A pod that goes at once is marked first too, so that watchers see both changes, as those of a real server do.
    """
    obj = record.object()
    metadata = obj["metadata"]
    marked = metadata.get("deletionTimestamp") and not metadata.get("deletionGracePeriodSeconds")
    check_delete(kind, metadata, options)
    grace = _grace(kind, obj, options)
    if metadata.get("deletionTimestamp"):
        held = metadata.get("deletionGracePeriodSeconds") or 0
        if held and (options.grace_period_seconds is None or grace >= held):
            return record, False
        if held:
            ends = (parse_time(metadata["deletionTimestamp"]) or world.now()) + timedelta(seconds=grace - held)
            metadata["deletionTimestamp"] = format_time(ends)
    else:
        metadata["deletionTimestamp"] = format_time(world.now() + timedelta(seconds=grace))
        if kind.generation and "generation" in metadata:
            metadata["generation"] += 1
    metadata["deletionGracePeriodSeconds"] = grace
    if grace or metadata.get("finalizers"):
        return transaction.put(record.key, obj), False
    if kind is PODS and not marked:
        marked_pod = transaction.put(record.key, obj)
        transaction.delete(record.key)
        return marked_pod, True
    return transaction.delete(record.key), True


def check_delete(kind: Kind, metadata: Json, options: DeleteOptions) -> None:
    """ApiError 409 when uid or version of the object are not those asked for."""
    target = kind.subject(metadata["name"])
    if options.uid is not None and options.uid != metadata["uid"]:
        why = (
            f"the UID in the precondition ({options.uid}) does not match the UID in record ({metadata['uid']}). "
            "The object might have been deleted and then recreated"
        )
        raise errors.conflict(target, why)
    if options.resource_version is not None and options.resource_version != metadata["resourceVersion"]:
        why = (
            f"the ResourceVersion in the precondition ({options.resource_version}) does not match the ResourceVersion "
            f"in record ({metadata['resourceVersion']}). The object might have been modified"
        )
        raise errors.conflict(target, why)


def _grace(kind: Kind, obj: Json, options: DeleteOptions) -> int:
    """Seconds that the object stays after it is deleted; only pods that a node holds have any."""
    if kind is not PODS:
        return 0
    if not obj["spec"].get("nodeName") or obj.get("status", {}).get("phase") in {"Succeeded", "Failed"}:
        return 0
    asked = options.grace_period_seconds
    grace = int(obj["spec"].get("terminationGracePeriodSeconds", 30)) if asked is None else asked
    return 1 if grace < 0 else grace

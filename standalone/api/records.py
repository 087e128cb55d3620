"""What the store keeps: one version of an object, and one change of it."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final, NamedTuple

import msgspec

from standalone.api.kinds import BY_RESOURCE, Kind
from standalone.api.selectors import Attributes, attributes

ADDED: Final = "ADDED"
MODIFIED: Final = "MODIFIED"
DELETED: Final = "DELETED"

_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder()


class Key(NamedTuple):
    """Where an object is: plural of its kind, namespace ("" for cluster-wide kinds), name. Sorts as lists do."""

    resource: str
    namespace: str
    name: str


class Record:
    """One version of an object: immutable JSON without kind and apiVersion, as etcd-backed lists show items."""

    def __init__(self, key: Key, version: int, body: bytes) -> None:
        self.key = key
        self.version = version
        self.body = body

    @property
    def kind(self) -> Kind:
        """Kind of the object."""
        return BY_RESOURCE[self.key.resource]

    def object(self) -> dict[str, Any]:
        """A fresh decoded copy, without kind and apiVersion."""
        return _DECODER.decode(self.body)  # type: ignore[no-any-return]  # what is stored is always an object

    @cached_property
    def attributes(self) -> Attributes:
        """What selectors see."""
        return attributes(self.key.resource, self.object())

    def typed(self) -> bytes:
        """JSON with kind and apiVersion, as a single object is answered."""
        return typed(self.kind, self.body)

    def at_version(self, version: int) -> Record:
        """The same content carrying another resourceVersion (deletions show the last state at a new version)."""
        return record(self.key, version, self.object())


def typed(kind: Kind, body: bytes) -> bytes:
    """JSON object `body` with kind and apiVersion put in front."""
    head = f'{{"kind":"{kind.kind}","apiVersion":"{kind.api_version}"'.encode()
    return head + (b"," if body != b"{}" else b"") + body[1:]


def record(key: Key, version: int, obj: dict[str, Any]) -> Record:
    """Record of a decoded object; its metadata.resourceVersion becomes `version`."""
    metadata = {**obj.get("metadata", {}), "resourceVersion": str(version)}
    plain = {name: value for name, value in obj.items() if name not in {"kind", "apiVersion", "metadata"}}
    return Record(key, version, _ENCODER.encode({"metadata": metadata, **plain}))


class Change:
    """One write: `new` is the object after it (for DELETED its last state at the deletion's version)."""

    def __init__(self, type_: str, new: Record, old: Record | None) -> None:
        self.type = type_
        self.new = new
        self.old = old

    @property
    def version(self) -> int:
        """resourceVersion of the change."""
        return self.new.version

    @property
    def key(self) -> Key:
        """Object that changed."""
        return self.new.key

    @cached_property
    def old_now(self) -> Record:
        """The state before, at this change's version: what a watcher is told when an object leaves its selection."""
        if self.old is None:
            raise ValueError("an added object has no state before")
        return self.old.at_version(self.version)

"""How the cache of an informer changes: pure, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic

from slacktide.cluster.kinds import HasMetadata, T

Key = tuple[str, str]
"""Namespace ("" for cluster-wide kinds) and name."""


@dataclass(frozen=True)
class Change(Generic[T]):
    """One difference between two states of a cache: added (old None), deleted (new None) or updated."""

    old: T | None
    new: T | None


def key_of(item: HasMetadata) -> Key:
    """Under which key an object is cached."""
    return (item.metadata.namespace, item.metadata.name)


def changes_of(old: T | None, new: T | None) -> list[Change[T]]:
    """The changes from one state of a key to the next.

    Nothing where the resourceVersion is the same (a watch may repeat what a list had); a delete and an add where
    the uid differs, because the deletion in between was missed.
    """
    if old is None or new is None:
        return [] if old is None and new is None else [Change(old, new)]
    if old.metadata.uid != new.metadata.uid:
        return [Change(old, None), Change(None, new)]
    if old.metadata.resource_version == new.metadata.resource_version:
        return []
    return [Change(old, new)]


def difference(cache: Mapping[Key, T], listed: Mapping[Key, T]) -> list[Change[T]]:
    """The changes that turn a cache into what was listed: first what vanished, then what is new or differs."""
    vanished = [Change(old, None) for key, old in cache.items() if key not in listed]
    return vanished + [change for key, new in listed.items() for change in changes_of(cache.get(key), new)]

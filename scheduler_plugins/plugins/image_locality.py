"""ImageLocality: prefers nodes that have the pod's images, by size and by how many nodes have them.

An image that few nodes have counts less, or all pods of a new workload would pile up on the first node that pulled it.
Image volumes count like containers, in the sum and in the bound (kubernetes #138952).
Source: kubernetes pkg/scheduler/framework/plugins/imagelocality, 1.35.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from typing import Any, Final
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from scheduler_plugins.framework.interfaces import MAX_SCORE, PreScorePlugin, ScorePlugin
from scheduler_plugins.framework.node_info import NodeInfo
from scheduler_plugins.framework.pod_info import LARGEST, PodInfo
from scheduler_plugins.framework.registry import NoArgs, Registry
from scheduler_plugins.framework.reusable import Reusable
from scheduler_plugins.framework.snapshot import Floats, Indices, Interned, Ints, Snapshot
from scheduler_plugins.framework.state import CycleState, StateKey, StateMissing
from scheduler_plugins.framework.status import SKIP, SUCCESS, Status
from scheduler_plugins.plugins.judgements import Judgements
from scheduler_plugins.plugins.rows import index_of
from slacktide.objects import ContainerImage, Pod

_COLUMN: Final = "ImageLocality/images"
_MEMO: Final = "ImageLocality/names"
_SIZES: Final = StateKey[dict[str, Ints]]("ImageLocality/sizes")
"""Bytes of each image of the pod, by the number of a node's value in the column."""
_MIB: Final = 1 << 20
_LEAST_BYTES: Final = 23 * _MIB
_MOST_BYTES_AN_IMAGE: Final = 1000 * _MIB
_ABSENT: Final = -1


class _Images:
    """Images of one node. One object as long as they stay the same, so that it is told apart by identity alone."""

    __slots__ = ("__weakref__", "_sizes", "listed")

    def __init__(self, listed: list[ContainerImage]) -> None:
        self.listed = listed
        self._sizes: dict[str, int] | None = None

    def size(self, name: str) -> int:
        """Bytes of the image of that name; _ABSENT when the node does not have it."""
        if self._sizes is None:
            self._sizes = {name: image.size_bytes for image in self.listed for name in image.names or ()}
        size = self._sizes.get(name)
        return _ABSENT if size is None else min(max(size, 0), LARGEST)


def image_names(pod: Pod) -> tuple[str, ...]:
    """Images that `pod` needs, one entry a container or image volume, as nodes name them."""
    return tuple(_tagged(image) for image in _images(pod))


def _images(pod: Pod) -> Iterator[str]:
    yield from (container.image for container in (*pod.spec.init_containers, *pod.spec.containers))
    for volume in pod.spec.volumes:
        if source := volume.get("image"):
            yield str(source.get("reference", ""))


def _tagged(image: str) -> str:
    """A name without tag or digest means the tag latest; a colon before the last slash is a port."""
    return image if image.rfind(":") > image.rfind("/") else f"{image}:latest"


class ImageLocality(PreScorePlugin, ScorePlugin, Reusable):
    """Looks an image up once on every node, and keeps what it found."""

    name = "ImageLocality"

    def __init__(self) -> None:
        self._judged = Judgements()
        self._seen: WeakValueDictionary[str, _Images] = WeakValueDictionary()

    def interned(self) -> Sequence[Interned]:
        """What images each node has."""
        return (Interned(_COLUMN, self._read, of_object=True),)

    def _read(self, node: NodeInfo) -> _Images | None:
        listed = node.node.status.images if node.node is not None else []
        if not listed:
            return None
        seen = self._seen.get(node.name)
        if seen is None or (seen.listed is not listed and seen.listed != listed):
            seen = self._seen[node.name] = _Images(listed)
        seen.listed = listed
        return seen

    def pre_score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> Status:  # noqa: ARG002  # part of the extension point
        """Skip when no node has any image of the pod."""
        sizes = self._sizes(pod, snapshot)
        state.write(_SIZES, sizes)
        return SUCCESS if any((found >= 0).any() for found in sizes.values()) else SKIP

    def _sizes(self, pod: PodInfo, snapshot: Snapshot) -> dict[str, Ints]:
        values: list[_Images | None] = snapshot.interned(_COLUMN)[1]
        if all(images is None for images in values):
            return {}
        return {name: self._judged.of(_COLUMN, values, name, partial(_size, name), "int64") for name in _names(pod)}

    def reuse_key(self, pod: PodInfo) -> Hashable | None:
        """Images."""
        return _names(pod)

    def reuse_now(self, pod: PodInfo, snapshot: Snapshot) -> Hashable | None:
        """How many nodes have each image: that decides what the image is worth on all of them."""
        numbers = snapshot.interned(_COLUMN)[0]
        return tuple(int(np.count_nonzero(found.take(numbers) >= 0)) for found in self._sizes(pod, snapshot).values())

    def score_nodes(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> NDArray[Any]:
        """0 for little, 100 for as much as the pod can need; 0 to 100 already."""
        try:
            sizes = state.read(_SIZES)
        except StateMissing:
            sizes = self._sizes(pod, snapshot)
        numbers = snapshot.interned(_COLUMN)[0]
        where = index_of(snapshot, rows)
        total, names = np.zeros(len(rows)), _names(pod)
        for name in names if sizes else ():
            found = sizes[name].take(numbers)
            spread = np.count_nonzero(found >= 0) / len(snapshot)
            total += np.floor(np.maximum(found[where], 0) * spread)
        return _scaled(total, len(names))


def _size(name: str, images: _Images | None) -> int:
    return _ABSENT if images is None else images.size(name)


def _names(pod: PodInfo) -> tuple[str, ...]:
    known: tuple[str, ...] | None = pod.memo.get(_MEMO)
    if known is None:
        known = pod.memo[_MEMO] = image_names(pod.pod)
    return known


def _scaled(total: Floats, images: int) -> Floats:
    most = max(_MOST_BYTES_AN_IMAGE * images, _LEAST_BYTES + 1)
    scaled: Floats = np.floor((np.clip(total, _LEAST_BYTES, most) - _LEAST_BYTES) * MAX_SCORE / (most - _LEAST_BYTES))
    return scaled


def register(registry: Registry) -> None:
    """Make the plugin known by its name."""
    registry.register(ImageLocality.name, lambda _args, _handle: ImageLocality(), NoArgs)

"""What a publication looks like on a node: the merge patch that writes it, and what an earlier one left there. Pure.

One merge patch of the status subresource carries both the amounts (capacity and allocatable, because a kubelet
computes the second from the first) and the annotation, so that readers never see one without the other: a status
patch keeps everything but the spec, metadata included (kubelet itself relies on it; kubernetes
pkg/util/node, PatchNodeStatus). The uid in the patch makes it fail on a node that was re-created meanwhile.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from predictor.publish import Publication, Standing
from predictor.settings import PredictorSettings
from slacktide import forecast as wire
from slacktide.errors import QuantityError
from slacktide.forecast import Amount
from slacktide.names import FORECAST_ANNOTATION
from slacktide.objects import Node
from slacktide.quantity import parse
from slacktide.settings import ResourceNames


@dataclasses.dataclass(frozen=True, slots=True)
class Names:
    """Names of the sold resources, and of the mid tier's where it is on."""

    batch: ResourceNames
    mid: ResourceNames | None = None


def names_of(settings: PredictorSettings) -> Names:
    """The names by the settings."""
    mid = settings.mid
    return Names(settings.resources, ResourceNames(cpu=mid.cpu, memory=mid.memory) if mid.enabled else None)


def patch_body(node: Node, publication: Publication, names: Names, with_version: bool = False) -> dict[str, Any]:
    """The merge patch of one publication. A status amount that is not known is left alone.

    with_version: it is refused when the node has changed since it was read.
    """
    amounts = _amounts(names.batch, publication.published)
    if names.mid is not None:
        amounts |= _amounts(names.mid, publication.forecast.mid)
    version = {"resourceVersion": node.metadata.resource_version} if node.metadata.resource_version else {}
    return {
        "metadata": {
            "uid": node.metadata.uid,
            "annotations": {FORECAST_ANNOTATION: wire.encode(publication.forecast)},
            **(version if with_version else {}),
        },
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def _amounts(names: ResourceNames, amount: Amount) -> dict[str, str]:
    pairs = ((names.cpu, amount.cpu_millis), (names.memory, amount.memory_bytes))
    return {name: str(value) for name, value in pairs if value is not None}


def standing_of(node: Node, names: Names) -> Standing | None:
    """What an earlier predictor left on `node`; None when there is nothing.

    An annotation of any age counts, because it says from where a rise has to start. Without one that can be read,
    the status amounts stand for it.
    """
    published = status_amount(node, names.batch)
    try:
        earlier = wire.decode(node.metadata.annotations.get(FORECAST_ANNOTATION, ""))
    except wire.ForecastError:
        if published == Amount():
            return None
        return Standing(offered=published, published=published)
    return Standing(offered=earlier.reclaimable, published=published, closed=earlier.closed, mid=earlier.mid)


def status_amount(node: Node, names: ResourceNames) -> Amount:
    """The sold resources in the node's status; None for one that is absent, unreadable or in one place only."""
    cpu, memory = (_both(node, name) for name in (names.cpu, names.memory))
    return Amount(cpu_millis=cpu, memory_bytes=memory)


def _both(node: Node, name: str) -> int | None:
    try:
        capacity, allocatable = (
            parse(amounts[name]).value() for amounts in (node.status.capacity, node.status.allocatable)
        )
    except (KeyError, QuantityError):
        return None
    return capacity if capacity == allocatable else None

"""Carries publications to the nodes: reads what stands there, decides, patches. The imperative side of publish.py.

One merge patch of the status subresource carries both the amounts (capacity and allocatable, because a kubelet
computes the second from the first) and the annotation, so that readers never see one without the other: a status
patch keeps everything but the spec, metadata included (kubelet itself relies on it; kubernetes
pkg/util/node, PatchNodeStatus). The uid in the patch makes it fail on a node that was re-created meanwhile.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final, Protocol

from predictor.clock import Clock, Instant
from predictor.metrics import Metrics
from predictor.publish import Cause, Decision, Publication, PublishRules, Standing, decide_publication
from slacktide import forecast as wire
from slacktide.cluster import NODES
from slacktide.cluster.errors import ClusterError, NotFound, Unreachable
from slacktide.errors import QuantityError
from slacktide.forecast import Amount, Forecast
from slacktide.names import FORECAST_ANNOTATION
from slacktide.objects import Node
from slacktide.observe import get_logger
from slacktide.quantity import parse
from slacktide.settings import ResourceNames

log = get_logger("predictor.publisher")

_SETTLE_SECONDS: Final = 5.0
"""Our cache of nodes may lag our own patch by this much; only then is a difference somebody else's doing."""


class NodePatcher(Protocol):
    """The part of the API client that is used."""

    def patch(self, kind: Any, name: str, namespace: str | None, body: Any, subresource: str | None = ...) -> object:
        """Merge-patch one object."""
        ...


@dataclasses.dataclass(slots=True)
class _Known:
    uid: str
    standing: Standing | None


class Publisher:
    """Publishes forecasts of nodes. One thread at a time; only the leader may call `publish`."""

    def __init__(self, client: NodePatcher, names: ResourceNames, clock: Clock, metrics: Metrics) -> None:
        self._client = client
        self._names = names
        self._clock = clock
        self._metrics = metrics
        self._known: dict[str, _Known] = {}

    def begin(self) -> None:
        """Leadership begins: what stands is read from the nodes again, since another may have written."""
        self._known.clear()

    def forget(self, name: str) -> None:
        """The node is gone."""
        self._known.pop(name, None)

    def publish(self, node: Node, forecast: Forecast, sold: Amount, rules: PublishRules) -> Amount | None:
        """Publish what is due on `node`; returns what stands in its status now, None when nothing does.

        Raises Unreachable when the API gives no answer; other refusals concern this node alone and are counted.
        """
        known = self._recall(node)
        now = self._clock.now()
        known.standing = self._corrected(known.standing, node, now)
        decision = decide_publication(known.standing, forecast, sold, now, rules)
        if decision.publication is None:
            known.standing = decision.standing
        else:
            self._write(node, known, decision, decision.publication)
        return known.standing.published if known.standing else None

    def _write(self, node: Node, known: _Known, decision: Decision, publication: Publication) -> None:
        name = node.metadata.name
        try:
            self._client.patch(NODES, name, None, patch_body(node, publication, self._names), subresource="status")
        except NotFound:
            self.forget(name)
        except Unreachable:
            self._metrics.publish_failures.inc()
            raise
        except ClusterError as error:
            self._metrics.publish_failures.inc()
            log.warning("publication refused", node=name, cause=publication.cause, error=str(error))
        else:
            known.standing = decision.standing
            self._metrics.publications.labels(publication.cause).inc()
            if publication.cause is not Cause.REFRESH:
                log.info(
                    "published",
                    node=name,
                    cause=publication.cause,
                    cpu_millis=publication.published.cpu_millis,
                    memory_bytes=publication.published.memory_bytes,
                    closed=publication.forecast.closed,
                )

    def _recall(self, node: Node) -> _Known:
        known = self._known.get(node.metadata.name)
        if known is None or known.uid != node.metadata.uid:
            known = _Known(node.metadata.uid, standing_of(node, self._names))
            self._known[node.metadata.name] = known
        return known

    def _corrected(self, standing: Standing | None, node: Node, now: Instant) -> Standing | None:
        """What stands once a foreign write is taken into account: it makes the next publication due at once."""
        if standing is None or standing.written is None or now.monotonic - standing.written < _SETTLE_SECONDS:
            return standing
        found = status_amount(node, self._names)
        if found == standing.published and FORECAST_ANNOTATION in node.metadata.annotations:
            return standing
        log.warning("node was changed by somebody else", node=node.metadata.name, found=str(found))
        return dataclasses.replace(standing, written=None)


def patch_body(node: Node, publication: Publication, names: ResourceNames) -> dict[str, Any]:
    """The merge patch of one publication. A status amount that is not known is left alone."""
    amounts = {
        name: str(value)
        for name, value in (
            (names.cpu, publication.published.cpu_millis),
            (names.memory, publication.published.memory_bytes),
        )
        if value is not None
    }
    return {
        "metadata": {
            "uid": node.metadata.uid,
            "annotations": {FORECAST_ANNOTATION: wire.encode(publication.forecast)},
        },
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def standing_of(node: Node, names: ResourceNames) -> Standing | None:
    """What an earlier predictor left on `node`; None when there is nothing.

    An annotation of any age counts, because it says from where a rise has to start. Without one that can be read,
    the status amounts stand for it.
    """
    published = status_amount(node, names)
    try:
        earlier = wire.decode(node.metadata.annotations.get(FORECAST_ANNOTATION, ""))
    except wire.ForecastError:
        if published == Amount():
            return None
        return Standing(offered=published, published=published)
    return Standing(offered=earlier.reclaimable, published=published, closed=earlier.closed)


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

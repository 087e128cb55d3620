"""Metrics of single nodes: plain values that become series only when somebody asks for them.

A fleet has eleven series a node, and a pass changes many of them. So a pass only notes what it found; a scrape makes
the series, of so many nodes at most. One that is not known has no series, never 0.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Final, NamedTuple

from msgspec import Meta
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry

from slacktide.forecast import Amount
from slacktide.settings import Settings


class MetricsSettings(Settings, frozen=True):
    """What the metrics tell of single nodes."""

    nodes_max: Annotated[
        int,
        Meta(ge=0, le=1_000_000, description="nodes that have metrics of their own; of more, the first known do"),
    ] = 5000


class NodeFigures(NamedTuple):
    """What a pass found of one node. `sample_end` is the end of its newest sample, seconds since the epoch.

    `sold` and `requested` are the requests of BE and of LS pods.
    """

    reclaimable: Amount
    published: Amount
    peak: Amount
    sold: Amount
    requested: Amount
    capacity: Amount
    closed: bool
    sample_end: float | None


_TERMS: Final = ("capacity", "requested", "peak", "reclaimable", "published", "sold")


class _Node:
    __slots__ = ("figures", "skew_seconds")

    def __init__(self) -> None:
        self.figures: NodeFigures | None = None
        self.skew_seconds: float | None = None


Value = tuple[tuple[str, ...], float]
"""The values of a series' labels, and its own."""


class NodeMetrics:
    """Figures by node. Thread-safe: ingest and passes tell, scrapes read."""

    def __init__(self, registry: CollectorRegistry, nodes_max: int) -> None:
        self._lock = threading.Lock()
        self._nodes: dict[str, _Node] = {}
        self._most = nodes_max
        self._at = 0.0
        self._registry = registry

    def add(self, name: str, text: str, labels: tuple[str, ...], read: Callable[[], Iterable[Value]]) -> None:
        """Serve one metric, whose series `read` makes."""
        self._registry.register(_Family(name, text, labels, read))

    def tell(self, node: str, figures: NodeFigures) -> None:
        """What a pass found of a node."""
        with self._lock:
            self._of(node).figures = figures

    def tell_skew(self, node: str, seconds: float) -> None:
        """How far a node's clock is ahead."""
        with self._lock:
            self._of(node).skew_seconds = seconds

    def passed(self, wall: float) -> None:
        """A pass over all nodes was at `wall`, seconds since the epoch: samples are as old as they were then."""
        self._at = wall

    def forget(self, node: str) -> None:
        """The node is gone, and so are its series."""
        with self._lock:
            self._nodes.pop(node, None)

    def skews(self) -> Iterator[Value]:
        """Seconds by which clocks are ahead."""
        return (((name,), skew) for name, node in self._shown() if (skew := node.skew_seconds) is not None)

    def ages(self) -> Iterator[Value]:
        """Ages of the newest samples, in seconds."""
        at = self._at
        return (
            ((name,), at - figures.sample_end) for name, figures in self._judged() if figures.sample_end is not None
        )

    def closed(self) -> Iterator[Value]:
        """1 for a closed node."""
        return (((name,), float(figures.closed)) for name, figures in self._judged())

    def amounts(self, field: str) -> Iterator[Value]:
        """One of the amounts of `NodeFigures`, by resource."""
        for name, figures in self._judged():
            amount: Amount = getattr(figures, field)
            if amount.cpu_millis is not None:
                yield (name, "cpu"), amount.cpu_millis
            if amount.memory_bytes is not None:
                yield (name, "memory"), amount.memory_bytes

    def fleet(self, unit: str) -> Iterator[Value]:
        """Sums over all nodes, also those that are left out, by term; `unit` is a field of an amount."""
        with self._lock:
            known = [node.figures for node in self._nodes.values() if node.figures is not None]
        for term in _TERMS:
            told = [value for figures in known if (value := getattr(getattr(figures, term), unit)) is not None]
            if told:
                yield (term,), float(sum(told))

    def closed_count(self) -> Iterator[Value]:
        """How many nodes of all are closed."""
        with self._lock:
            yield (), float(sum(node.figures.closed for node in self._nodes.values() if node.figures is not None))

    def untold(self) -> Iterator[Value]:
        """How many nodes are left out."""
        yield (), max(0, len(self._nodes) - self._most)

    def _of(self, node: str) -> _Node:
        found = self._nodes.get(node)
        if found is None:
            found = self._nodes[node] = _Node()
        return found

    def _shown(self) -> list[tuple[str, _Node]]:
        with self._lock:
            return list(self._nodes.items())[: self._most]

    def _judged(self) -> Iterator[tuple[str, NodeFigures]]:
        return ((name, figures) for name, node in self._shown() if (figures := node.figures) is not None)


class _Family(Collector):
    """One metric of all nodes. Each is a collector of its own, so that one can be asked for without the others."""

    def __init__(self, name: str, text: str, labels: tuple[str, ...], read: Callable[[], Iterable[Value]]) -> None:
        self._name = name
        self._text = text
        self._labels = labels
        self._read = read

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """The metric without its series."""
        yield GaugeMetricFamily(self._name, self._text, labels=self._labels)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The metric with the series of this moment."""
        family = GaugeMetricFamily(self._name, self._text, labels=self._labels)
        for labels, value in self._read():
            family.add_metric(labels, value)
        yield family

"""Metrics of the extender host; also the observer of its framework."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from scheduler_plugins.framework.cache import Cache
from slacktide.observe import get_logger

_log = get_logger("extender.metrics")

_BUCKETS: Final = [0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0]


class ExtenderMetrics:
    """What one extender process counts. Safe to use from any thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._requests = Counter(
            "slacktide_extender_requests",
            "Requests by verb and outcome: judged, passed (a tier that is not judged), failed, refused (not usable).",
            ["verb", "outcome"],
            registry=registry,
        )
        self._seconds = Histogram(
            "slacktide_extender_request_duration_seconds",
            "From the last byte of a request to the answer, waiting for other requests included.",
            ["verb"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self._cpu_seconds = Counter(
            "slacktide_extender_cpu_seconds",
            "CPU time of the threads that answered, JSON included and HTTP not, by verb.",
            ["verb"],
            registry=registry,
        )
        self._point_seconds = Counter(
            "slacktide_extender_extension_point_seconds",
            "Time of all plugins of an extension point, by its outcome.",
            ["extension_point", "status"],
            registry=registry,
        )
        self._evaluations = Counter(
            "slacktide_extender_plugin_evaluations",
            "How often a plugin was asked.",
            ["plugin", "extension_point"],
            registry=registry,
        )
        self._over_budget = Counter(
            "slacktide_extender_plugin_over_budget",
            "Calls of a plugin that took longer than the time budget.",
            ["plugin", "extension_point"],
            registry=registry,
        )
        self._turned_away = Counter(
            "slacktide_extender_connections_refused",
            "Connections that found all slots taken.",
            registry=registry,
        )
        self._lock = threading.Lock()
        self._connections = 0

    def answered(self, verb: str, outcome: str, seconds: float, cpu_seconds: float) -> None:
        """A request was answered."""
        self._requests.labels(verb, outcome).inc()
        self._seconds.labels(verb).observe(seconds)
        self._cpu_seconds.labels(verb).inc(cpu_seconds)

    def extension_point(self, profile: str, point: str, status: str, seconds: float) -> None:  # noqa: ARG002  # an extender has one profile
        """An extension point ran once."""
        self._point_seconds.labels(point, status).inc(seconds)

    def evaluated(self, profile: str, plugins: Sequence[str], point: str) -> None:  # noqa: ARG002  # an extender has one profile
        """Plugins were asked."""
        for plugin in plugins:
            self._evaluations.labels(plugin, point).inc()

    def plugin_took(self, plugin: str, point: str, status: str, seconds: float) -> None:
        """Told of sampled cycles only, which an extender does not have."""

    def over_budget(self, plugin: str, point: str, seconds: float) -> None:
        """A call of a plugin took longer than the budget."""
        self._over_budget.labels(plugin, point).inc()
        _log.warning("plugin over its time budget", plugin=plugin, point=point, seconds=round(seconds, 3))

    def turned_away(self) -> None:
        """A connection was refused because all slots are taken."""
        self._turned_away.inc()

    def connection(self, change: int) -> None:
        """A connection began (1) or ended (-1)."""
        with self._lock:
            self._connections += change

    def watch(self, cache: Cache) -> None:
        """Read cache and connections at each scrape."""
        self._registry.register(_Sizes(self, cache))

    @property
    def connections(self) -> int:
        """Open connections."""
        return self._connections


class _Sizes(Collector):
    """Gauges that are read, never counted up and down."""

    def __init__(self, metrics: ExtenderMetrics, cache: Cache) -> None:
        self._metrics = metrics
        self._cache = cache

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Names, so that a scrape may ask for these alone."""
        return self._families()

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Current figures."""
        objects, connections = self._families()
        size = self._cache.size()
        for kind, count in (("nodes", size.nodes), ("pods", size.pods), ("assumed_pods", size.assumed_pods)):
            objects.add_metric([kind], count)
        connections.add_metric([], self._metrics.connections)
        return objects, connections

    @staticmethod
    def _families() -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
        return (
            GaugeMetricFamily("slacktide_extender_cache_size", "Objects in the cache.", labels=["type"]),
            GaugeMetricFamily("slacktide_extender_connections", "Open connections.", labels=[]),
        )

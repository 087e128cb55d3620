"""Metrics under kube-scheduler's names and labels, so that its dashboards read ours, and a few of our own.

Names, labels, buckets and meaning are those of 1.35, and from 1.36 the count of pods that only a flush brought back.
Not there are those of what this scheduler does not do: asynchronous API calls, batches of alike pods, resource claims.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from scheduler_plugins.framework.cache import CacheSize
from scheduler_plugins.metric_families import (
    AttemptFamilies,
    BindingFamilies,
    PluginFamilies,
    PreemptionFamilies,
    QueueFamilies,
)
from slacktide.observe import get_logger

_log = get_logger("scheduler.metrics")

_SAY_AGAIN_SECONDS: Final = 60.0
_MOST_ATTEMPTS: Final = 15


class SchedulerMetrics:
    """What one scheduler process counts; also the observer of its framework and its queue."""

    def __init__(self, registry: CollectorRegistry, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._said: dict[tuple[str, str], float] = {}
        self._registry = registry
        self._attempts = AttemptFamilies(registry)
        self._bindings = BindingFamilies(registry)
        self._plugins = PluginFamilies(registry)
        self._queue = QueueFamilies(registry)
        self._preemption = PreemptionFamilies(registry)

    def attempted(self, profile: str, result: str, seconds: float) -> None:
        """An attempt ended; result is scheduled, unschedulable or error."""
        self._attempts.attempts.labels(result, profile).inc()
        self._attempts.seconds.labels(result, profile).observe(seconds)

    def permit_waited(self, result: str, seconds: float) -> None:
        """A pod waited at Permit; result is the name of the code that it got."""
        self._attempts.permit_seconds.labels(result).observe(seconds)

    def found(self, seconds: float) -> None:
        """A node was looked for."""
        self._attempts.algorithm_seconds.observe(seconds)

    def judged(self, profile: str, how: str) -> None:
        """Nodes were judged for a pod; see `framework.kept.Kept` for how."""
        self._attempts.judged.labels(profile, how).inc()

    def scheduled(self, attempts: int, since_ready: float | None, *, flushed: bool = False) -> None:
        """A pod was bound after that many attempts; `flushed` says that only time brought about the last one."""
        self._bindings.attempts.observe(attempts)
        if flushed:
            self._bindings.after_flush.inc()
        if since_ready is not None:
            label = str(attempts) if attempts < _MOST_ATTEMPTS else f"{_MOST_ATTEMPTS}+"
            self._bindings.sli_seconds.labels(label).observe(since_ready)

    def bound(self, outcome: str) -> None:
        """A binding ended."""
        self._bindings.outcomes.labels(outcome).inc()

    def extension_point(self, profile: str, point: str, status: str, seconds: float) -> None:
        """An extension point ran once."""
        self._plugins.point_seconds.observe((point, status, profile), seconds)

    def evaluated(self, profile: str, plugins: Sequence[str], point: str) -> None:
        """Plugins were asked. For the scheduling loop alone, which does so several times a cycle."""
        self._plugins.evaluations.add(plugins, point, profile)

    def plugin_took(self, plugin: str, point: str, status: str, seconds: float) -> None:
        """A call of a sampled cycle took that long."""
        self._plugins.seconds.labels(plugin, point, status).observe(seconds)

    def over_budget(self, plugin: str, point: str, seconds: float) -> None:
        """A call took longer than plugins should; said once a minute for each plugin and point, counted always."""
        self._plugins.over_budget.labels(plugin, point).inc()
        now = self._monotonic()
        if now - self._said.get((plugin, point), -math.inf) < _SAY_AGAIN_SECONDS:
            return
        self._said[plugin, point] = now
        _log.warning("plugin over its time budget", plugin=plugin, extension_point=point, seconds=round(seconds, 3))

    def incoming(self, queue: str, event: str) -> None:
        """A pod entered a queue."""
        self._queue.incoming.labels(queue, event).inc()

    def preemption_attempted(self) -> None:
        """Room was looked for by removing pods."""
        self._preemption.attempts.inc()

    def preempted(self, victims: int) -> None:
        """That many pods were chosen to go."""
        self._preemption.victims.observe(victims)

    def handled(self, event: str, seconds: float) -> None:
        """The queue judged an event."""
        self._queue.event_seconds.labels(event).observe(seconds)

    def hinted(self, plugin: str, event: str, outcome: str, seconds: float) -> None:
        """A queueing hint was asked; outcome is Queue, QueueSkip or Error."""
        self._queue.hint_seconds.labels(plugin, event, outcome).observe(seconds)

    def hint_failed(self, plugin: str, event: str, error: Exception) -> None:
        """A queueing hint raised."""
        self._queue.hint_errors.labels(plugin).inc()
        _log.error("queueing hint failed", plugin=plugin, cluster_event=event, error=repr(error))

    def watch(
        self, queue: QueueFigures, cache: CacheFigures, operations: Mapping[str, Callable[[], int]] | None = None
    ) -> None:
        """Read queue and cache at each scrape, and by name how many of each of `operations` are under way."""
        self._registry.register(_Depths(queue, cache, operations or {}))


class QueueFigures(Protocol):
    """Counts of a queue."""

    def counts(self) -> dict[str, int]:
        """Pods by queue."""
        ...

    def unschedulable_by_plugin(self) -> dict[tuple[str, str], int]:
        """Pods by (the plugin that refused them, their profile)."""
        ...

    def in_flight_counts(self) -> dict[str, int]:
        """Kept events by label."""
        ...


class CacheFigures(Protocol):
    """Counts of a cache."""

    def size(self) -> CacheSize:
        """Nodes, pods, assumed pods."""
        ...


class _Depths(Collector):
    """Gauges that are read, never counted up and down, so that they cannot drift or go below zero."""

    def __init__(self, queue: QueueFigures, cache: CacheFigures, operations: Mapping[str, Callable[[], int]]) -> None:
        self._queue = queue
        self._cache = cache
        self._operations = operations

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Current figures."""
        pending = GaugeMetricFamily("scheduler_pending_pods", "Pods that wait, by queue.", labels=["queue"])
        for queue, count in self._queue.counts().items():
            pending.add_metric([queue], count)
        yield pending
        refused = GaugeMetricFamily(
            "scheduler_unschedulable_pods", "Waiting pods that a plugin refused.", labels=["plugin", "profile"]
        )
        for (plugin, profile), count in self._queue.unschedulable_by_plugin().items():
            refused.add_metric([plugin, profile], count)
        yield refused
        kept = GaugeMetricFamily(
            "scheduler_inflight_events", "Events kept for pods in flight; these count as PodPopped.", labels=["event"]
        )
        for event, count in self._queue.in_flight_counts().items():
            kept.add_metric([event], count)
        yield kept
        size = self._cache.size()
        sizes = GaugeMetricFamily("scheduler_cache_size", "Objects in the scheduler cache.", labels=["type"])
        sizes.add_metric(["nodes"], size.nodes)
        sizes.add_metric(["pods"], size.pods)
        sizes.add_metric(["assumed_pods"], size.assumed_pods)
        yield sizes
        running = GaugeMetricFamily(
            "scheduler_goroutines", "Work under way beside the scheduling loop.", labels=["operation"]
        )
        for operation, count_now in self._operations.items():
            running.add_metric([operation], count_now())
        yield running

"""Metrics under kube-scheduler's names and labels, so that its dashboards read ours, and a few of our own.

Names, labels, buckets and meaning are those of 1.35, and from 1.36 the count of pods that only a flush brought back.
Not there are those of what this scheduler does not do: asynchronous API calls, batches of alike pods, resource claims.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from scheduler_plugins.framework.cache import CacheSize
from scheduler_plugins.plain_metrics import Evaluations, PlainHistogram
from slacktide.observe import get_logger

_log = get_logger("scheduler.metrics")


def _exponential(start: float, factor: float, count: int) -> list[float]:
    return [start * factor**i for i in range(count)]


_ATTEMPT_BUCKETS: Final = _exponential(0.001, 2, 15)
_SLI_BUCKETS: Final = _exponential(0.01, 2, 20)
_POINT_BUCKETS: Final = _exponential(0.0001, 2, 12)
_PLUGIN_BUCKETS: Final = _exponential(0.00001, 1.5, 20)
_SAY_AGAIN_SECONDS: Final = 60.0
_MOST_ATTEMPTS: Final = 15


class SchedulerMetrics:
    """What one scheduler process counts; also the observer of its framework and its queue."""

    def __init__(self, registry: CollectorRegistry, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._said: dict[tuple[str, str], float] = {}
        self._registry = registry
        self._attempts = Counter(
            "scheduler_schedule_attempts",
            "Attempts to schedule pods, by result: scheduled, unschedulable (no node fits) or error.",
            ["result", "profile"],
            registry=registry,
        )
        self._attempt_seconds = Histogram(
            "scheduler_scheduling_attempt_duration_seconds",
            "Time from Pop to the binding or the refusal.",
            ["result", "profile"],
            buckets=_ATTEMPT_BUCKETS,
            registry=registry,
        )
        self._algorithm_seconds = Histogram(
            "scheduler_scheduling_algorithm_duration_seconds",
            "Time to find a node for a pod.",
            buckets=_ATTEMPT_BUCKETS,
            registry=registry,
        )
        self._sli_seconds = Histogram(
            "scheduler_pod_scheduling_sli_duration_seconds",
            "Time from the first attempt's readiness to the binding, by number of attempts.",
            ["attempts"],
            buckets=_SLI_BUCKETS,
            registry=registry,
        )
        self._pod_attempts = Histogram(
            "scheduler_pod_scheduling_attempts",
            "Attempts that a scheduled pod took.",
            buckets=_exponential(1, 2, 5),
            registry=registry,
        )
        self._incoming = Counter(
            "scheduler_queue_incoming_pods",
            "Pods that entered a scheduling queue, by event.",
            ["queue", "event"],
            registry=registry,
        )
        self._point_seconds = PlainHistogram(
            "scheduler_framework_extension_point_duration_seconds",
            "Time of all plugins of one extension point.",
            ["extension_point", "status", "profile"],
            _POINT_BUCKETS,
        )
        registry.register(self._point_seconds)
        self._evaluations = Evaluations("scheduler_plugin_evaluation", "How often a plugin was asked.")
        registry.register(self._evaluations)
        self._plugin_seconds = Histogram(
            "scheduler_plugin_execution_duration_seconds",
            "Time of one call of a plugin, in one cycle of ten.",
            ["plugin", "extension_point", "status"],
            buckets=_PLUGIN_BUCKETS,
            registry=registry,
        )
        self._over_budget = Counter(
            "slacktide_scheduler_plugin_over_budget",
            "Calls of a plugin that took longer than its time budget.",
            ["plugin", "extension_point"],
            registry=registry,
        )
        self._permit_seconds = Histogram(
            "scheduler_permit_wait_duration_seconds",
            "Time that pods waited at Permit, by what came of it.",
            ["result"],
            buckets=_ATTEMPT_BUCKETS,
            registry=registry,
        )
        self._bind_outcomes = Counter(
            "slacktide_scheduler_binds",
            "Bindings by outcome: bound, elsewhere (another scheduler was first), gone, failed.",
            ["outcome"],
            registry=registry,
        )
        self._hint_seconds = Histogram(
            "scheduler_queueing_hint_execution_duration_seconds",
            "Time of one queueing hint.",
            ["plugin", "event", "hint"],
            buckets=_exponential(0.00001, 1.5, 20),
            registry=registry,
        )
        self._event_seconds = Histogram(
            "scheduler_event_handling_duration_seconds",
            "Time in which the queue judged one event: whom it helps, and moving those.",
            ["event"],
            buckets=_POINT_BUCKETS,
            registry=registry,
        )
        self._after_flush = Counter(
            "scheduler_pod_scheduled_after_flush",
            "Pods scheduled in an attempt that only the timeout of the queue brought about: an event was missed.",
            registry=registry,
        )
        self._preemptions = Counter(
            "scheduler_preemption_attempts", "Attempts to make room for a pod by removing others.", registry=registry
        )
        self._victims = Histogram(
            "scheduler_preemption_victims",
            "Pods chosen to make room for one pod.",
            buckets=_exponential(1, 2, 7),
            registry=registry,
        )
        self._hint_errors = Counter(
            "slacktide_scheduler_hint_errors",
            "Queueing hints that raised; the event was taken to help.",
            ["plugin"],
            registry=registry,
        )

    def attempted(self, profile: str, result: str, seconds: float) -> None:
        """An attempt ended; result is scheduled, unschedulable or error."""
        self._attempts.labels(result, profile).inc()
        self._attempt_seconds.labels(result, profile).observe(seconds)

    def permit_waited(self, result: str, seconds: float) -> None:
        """A pod waited at Permit; result is the name of the code that it got."""
        self._permit_seconds.labels(result).observe(seconds)

    def found(self, seconds: float) -> None:
        """A node was looked for."""
        self._algorithm_seconds.observe(seconds)

    def scheduled(self, attempts: int, since_ready: float | None, *, flushed: bool = False) -> None:
        """A pod was bound after that many attempts; `flushed` says that only time brought about the last one."""
        self._pod_attempts.observe(attempts)
        if flushed:
            self._after_flush.inc()
        if since_ready is not None:
            label = str(attempts) if attempts < _MOST_ATTEMPTS else f"{_MOST_ATTEMPTS}+"
            self._sli_seconds.labels(label).observe(since_ready)

    def bound(self, outcome: str) -> None:
        """A binding ended."""
        self._bind_outcomes.labels(outcome).inc()

    def extension_point(self, profile: str, point: str, status: str, seconds: float) -> None:
        """An extension point ran once."""
        self._point_seconds.observe((point, status, profile), seconds)

    def evaluated(self, profile: str, plugins: Sequence[str], point: str) -> None:
        """Plugins were asked. For the scheduling loop alone, which does so several times a cycle."""
        self._evaluations.add(plugins, point, profile)

    def plugin_took(self, plugin: str, point: str, status: str, seconds: float) -> None:
        """A call of a sampled cycle took that long."""
        self._plugin_seconds.labels(plugin, point, status).observe(seconds)

    def over_budget(self, plugin: str, point: str, seconds: float) -> None:
        """A call took longer than plugins should; said once a minute for each plugin and point, counted always."""
        self._over_budget.labels(plugin, point).inc()
        now = self._monotonic()
        if now - self._said.get((plugin, point), -math.inf) < _SAY_AGAIN_SECONDS:
            return
        self._said[plugin, point] = now
        _log.warning("plugin over its time budget", plugin=plugin, extension_point=point, seconds=round(seconds, 3))

    def incoming(self, queue: str, event: str) -> None:
        """A pod entered a queue."""
        self._incoming.labels(queue, event).inc()

    def preemption_attempted(self) -> None:
        """Room was looked for by removing pods."""
        self._preemptions.inc()

    def preempted(self, victims: int) -> None:
        """That many pods were chosen to go."""
        self._victims.observe(victims)

    def handled(self, event: str, seconds: float) -> None:
        """The queue judged an event."""
        self._event_seconds.labels(event).observe(seconds)

    def hinted(self, plugin: str, event: str, outcome: str, seconds: float) -> None:
        """A queueing hint was asked; outcome is Queue, QueueSkip or Error."""
        self._hint_seconds.labels(plugin, event, outcome).observe(seconds)

    def hint_failed(self, plugin: str, event: str, error: Exception) -> None:
        """A queueing hint raised."""
        self._hint_errors.labels(plugin).inc()
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

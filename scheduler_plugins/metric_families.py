"""The counters and histograms of a scheduler, by what they are about: attempts, plugins, queue, preemption.

Names, labels, buckets and meaning are those of kube-scheduler where the name begins with `scheduler_`.
"""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram

from scheduler_plugins.plain_metrics import Evaluations, PlainHistogram


def _exponential(start: float, factor: float, count: int) -> list[float]:
    return [start * factor**i for i in range(count)]


_ATTEMPT_BUCKETS: Final = _exponential(0.001, 2, 15)
_SLI_BUCKETS: Final = _exponential(0.01, 2, 20)
_POINT_BUCKETS: Final = _exponential(0.0001, 2, 12)
_PLUGIN_BUCKETS: Final = _exponential(0.00001, 1.5, 20)


class _Maker:
    """Makes families in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(name, about, labels, registry=self._registry)

    def histogram(self, name: str, about: str, buckets: list[float], *labels: str) -> Histogram:
        return Histogram(name, about, labels, buckets=buckets, registry=self._registry)


class AttemptFamilies:
    """Attempts, from Pop to the binding or the refusal."""

    def __init__(self, registry: CollectorRegistry) -> None:
        make = _Maker(registry)
        self.attempts = make.counter(
            "scheduler_schedule_attempts",
            "Attempts to schedule pods, by result: scheduled, unschedulable (no node fits) or error.",
            "result",
            "profile",
        )
        self.seconds = make.histogram(
            "scheduler_scheduling_attempt_duration_seconds",
            "Time from Pop to the binding or the refusal.",
            _ATTEMPT_BUCKETS,
            "result",
            "profile",
        )
        self.algorithm_seconds = make.histogram(
            "scheduler_scheduling_algorithm_duration_seconds", "Time to find a node for a pod.", _ATTEMPT_BUCKETS
        )
        self.judged = make.counter(
            "slacktide_scheduler_cycles",
            "Cycles by the nodes that were judged: reused (those that changed since a pod like this one),"
            " anew (all, though pods may be like this one), alone (all, a plugin looks beyond single nodes).",
            "profile",
            "judged",
        )
        self.permit_seconds = make.histogram(
            "scheduler_permit_wait_duration_seconds",
            "Time that pods waited at Permit, by what came of it.",
            _ATTEMPT_BUCKETS,
            "result",
        )


class BindingFamilies:
    """Bindings, and how long pods took to get there."""

    def __init__(self, registry: CollectorRegistry) -> None:
        make = _Maker(registry)
        self.outcomes = make.counter(
            "slacktide_scheduler_binds",
            "Bindings by outcome: bound, elsewhere (another scheduler was first), gone, failed.",
            "outcome",
        )
        self.sli_seconds = make.histogram(
            "scheduler_pod_scheduling_sli_duration_seconds",
            "Time from the first attempt's readiness to the binding, by number of attempts.",
            _SLI_BUCKETS,
            "attempts",
        )
        self.attempts = make.histogram(
            "scheduler_pod_scheduling_attempts", "Attempts that a scheduled pod took.", _exponential(1, 2, 5)
        )
        self.after_flush = make.counter(
            "scheduler_pod_scheduled_after_flush",
            "Pods scheduled in an attempt that only the timeout of the queue brought about: an event was missed.",
        )


class PluginFamilies:
    """Calls of plugins, by extension point."""

    def __init__(self, registry: CollectorRegistry) -> None:
        make = _Maker(registry)
        self.point_seconds = PlainHistogram(
            "scheduler_framework_extension_point_duration_seconds",
            "Time of all plugins of one extension point.",
            ["extension_point", "status", "profile"],
            _POINT_BUCKETS,
        )
        registry.register(self.point_seconds)
        self.evaluations = Evaluations("scheduler_plugin_evaluation", "How often a plugin was asked.")
        registry.register(self.evaluations)
        self.seconds = make.histogram(
            "scheduler_plugin_execution_duration_seconds",
            "Time of one call of a plugin, in one cycle of ten.",
            _PLUGIN_BUCKETS,
            "plugin",
            "extension_point",
            "status",
        )
        self.over_budget = make.counter(
            "slacktide_scheduler_plugin_over_budget",
            "Calls of a plugin that took longer than its time budget.",
            "plugin",
            "extension_point",
        )


class QueueFamilies:
    """The queue: pods that enter it, events that it judges, hints that it asks for."""

    def __init__(self, registry: CollectorRegistry) -> None:
        make = _Maker(registry)
        self.incoming = make.counter(
            "scheduler_queue_incoming_pods", "Pods that entered a scheduling queue, by event.", "queue", "event"
        )
        self.event_seconds = make.histogram(
            "scheduler_event_handling_duration_seconds",
            "Time in which the queue judged one event: whom it helps, and moving those.",
            _POINT_BUCKETS,
            "event",
        )
        self.hint_seconds = make.histogram(
            "scheduler_queueing_hint_execution_duration_seconds",
            "Time of one queueing hint.",
            _PLUGIN_BUCKETS,
            "plugin",
            "event",
            "hint",
        )
        self.hint_errors = make.counter(
            "slacktide_scheduler_hint_errors", "Queueing hints that raised; the event was taken to help.", "plugin"
        )


class PreemptionFamilies:
    """Room made by removing pods."""

    def __init__(self, registry: CollectorRegistry) -> None:
        make = _Maker(registry)
        self.attempts = make.counter(
            "scheduler_preemption_attempts", "Attempts to make room for a pod by removing others."
        )
        self.victims = make.histogram(
            "scheduler_preemption_victims", "Pods chosen to make room for one pod.", _exponential(1, 2, 7)
        )

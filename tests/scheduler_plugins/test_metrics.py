"""Metrics have the names, labels and buckets of kube-scheduler 1.35 (section 6), so that its dashboards read ours."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry

from scheduler_plugins.framework.cache import Cache
from scheduler_plugins.framework.queue import SchedulingQueue
from scheduler_plugins.metrics import SchedulerMetrics
from scheduler_plugins.workers import Workers
from tests.patience import PATIENCE
from tests.scheduler_plugins.build import Clock, info
from tests.scheduler_plugins.test_queue import Rules

Use = Callable[[SchedulerMetrics], object]


def exponential(start: float, factor: float, count: int) -> list[float]:
    return [start * factor**i for i in range(count)]


HISTOGRAMS: list[tuple[str, Use, dict[str, str], list[float]]] = [
    (
        "scheduling_attempt_duration_seconds",
        lambda m: m.attempted("p", "error", 1),
        {"result": "error", "profile": "p"},
        exponential(0.001, 2, 15),
    ),
    ("scheduling_algorithm_duration_seconds", lambda m: m.found(1), {}, exponential(0.001, 2, 15)),
    (
        "pod_scheduling_sli_duration_seconds",
        lambda m: m.scheduled(14, 1),
        {"attempts": "14"},
        exponential(0.01, 2, 20),
    ),
    (
        "pod_scheduling_sli_duration_seconds",
        lambda m: m.scheduled(15, 1),
        {"attempts": "15+"},
        exponential(0.01, 2, 20),
    ),
    ("pod_scheduling_attempts", lambda m: m.scheduled(1, None), {}, exponential(1, 2, 5)),
    (
        "framework_extension_point_duration_seconds",
        lambda m: m.extension_point("p", "Filter", "Success", 1),
        {"extension_point": "Filter", "status": "Success", "profile": "p"},
        exponential(0.0001, 2, 12),
    ),
    (
        "plugin_execution_duration_seconds",
        lambda m: m.plugin_took("X", "Filter", "Success", 1),
        {"plugin": "X", "extension_point": "Filter", "status": "Success"},
        exponential(0.00001, 1.5, 20),
    ),
    (
        "permit_wait_duration_seconds",
        lambda m: m.permit_waited("Success", 1),
        {"result": "Success"},
        exponential(0.001, 2, 15),
    ),
    (
        "event_handling_duration_seconds",
        lambda m: m.handled("NodeAdd", 1),
        {"event": "NodeAdd"},
        exponential(0.0001, 2, 12),
    ),
    (
        "queueing_hint_execution_duration_seconds",
        lambda m: m.hinted("X", "NodeAdd", "Queue", 1),
        {"plugin": "X", "event": "NodeAdd", "hint": "Queue"},
        exponential(0.00001, 1.5, 20),
    ),
    ("preemption_victims", lambda m: m.preempted(1), {}, exponential(1, 2, 7)),
]


@pytest.mark.parametrize(("name", "use", "labels", "buckets"), HISTOGRAMS, ids=[row[0] for row in HISTOGRAMS])
def test_histogram_table(name: str, use: Use, labels: dict[str, str], buckets: list[float]) -> None:
    registry = CollectorRegistry()
    use(SchedulerMetrics(registry, "p"))
    assert registry.get_sample_value(f"scheduler_{name}_count", labels) == 1
    found = [
        float(sample.labels["le"])
        for family in registry.collect()
        for sample in family.samples
        if sample.name == f"scheduler_{name}_bucket" and sample.labels.items() >= labels.items()
    ]
    assert found == pytest.approx([*buckets, math.inf])


@pytest.mark.parametrize(
    ("name", "use", "labels"),
    [
        (
            "schedule_attempts_total",
            lambda m: m.attempted("p", "scheduled", 1),
            {"result": "scheduled", "profile": "p"},
        ),
        ("queue_incoming_pods_total", lambda m: m.incoming("active", "X"), {"queue": "active", "event": "X"}),
        (
            "plugin_evaluation_total",
            lambda m: m.evaluated("p", "X", "Score"),
            {"plugin": "X", "extension_point": "Score", "profile": "p"},
        ),
        ("pod_scheduled_after_flush_total", lambda m: m.scheduled(2, 1, flushed=True), {}),
        ("cycles_total", lambda m: m.judged("p", "reused"), {"profile": "p", "judged": "reused"}),
        ("preemption_attempts_total", lambda m: m.preemption_attempted(), {}),
    ],
)
def test_counter_table(name: str, use: Use, labels: dict[str, str]) -> None:
    registry = CollectorRegistry()
    use(SchedulerMetrics(registry, "p"))
    found = [registry.get_sample_value(f"{prefix}scheduler_{name}", labels) for prefix in ("", "slacktide_")]
    assert found in ([1, None], [None, 1])


def test_gauges_are_read_of_queue_and_cache() -> None:
    registry = CollectorRegistry()
    metrics = SchedulerMetrics(registry, "p")
    queue, cache = SchedulingQueue(Rules(), metrics, Clock()), Cache()
    metrics.watch(queue, cache, {"binding": lambda: 3})
    queue.add(info("asleep"))
    queued = queue.pop(0)
    assert registry.get_sample_value("scheduler_inflight_events", {"event": "PodPopped"}) == 1
    assert queued is not None
    queued.unschedulable_plugins.add("No")
    queue.requeue(queued)
    queue.add(info("gated", schedulingGates=[{"name": "wait"}]))
    cache.assume(info("placed"), "n")

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"scheduler_{name}", labels)

    pending = [value("pending_pods", queue=name) for name in ("active", "backoff", "unschedulable", "gated")]
    assert pending == [0, 0, 1, 1]
    profile = queued.info.pod.spec.scheduler_name
    assert value("unschedulable_pods", plugin="No", profile=profile) == 1
    assert [value("cache_size", type=name) for name in ("nodes", "pods", "assumed_pods")] == [0, 1, 1]
    assert value("goroutines", operation="binding") == 3
    queue.delete(info("asleep"))
    assert value("unschedulable_pods", plugin="No", profile=profile) is None


def test_bindings_under_way_count_those_that_wait_for_a_thread() -> None:
    go, done = threading.Event(), threading.Semaphore(0)
    workers = Workers(1, "test")

    def task() -> None:
        go.wait(10 * PATIENCE)
        done.release()

    for _ in range(3):
        workers.submit(task)
    assert workers.under_way() == 3
    workers.start()
    assert workers.under_way() in (2, 3)
    go.set()
    assert all(done.acquire(timeout=10 * PATIENCE) for _ in range(3))

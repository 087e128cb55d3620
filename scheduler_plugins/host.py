"""The scheduler's process: informers, election, scheduling loop and timers, started and stopped together."""

from __future__ import annotations

import os
import random
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry

from scheduler_plugins.binding import ApiBinder
from scheduler_plugins.framework.cache import Cache
from scheduler_plugins.framework.interfaces import Handle
from scheduler_plugins.framework.pod_info import PodReader
from scheduler_plugins.framework.queue import QueueTimes, SchedulingQueue
from scheduler_plugins.framework.registry import Registry
from scheduler_plugins.framework.runtime import Framework, FrameworkObserver
from scheduler_plugins.framework.waiting import WaitingRoom
from scheduler_plugins.handlers import ClusterHandlers
from scheduler_plugins.metrics import SchedulerMetrics
from scheduler_plugins.report import Reporter
from scheduler_plugins.scheduler import Outside, Scheduler
from scheduler_plugins.settings import SchedulerSettings
from scheduler_plugins.workers import Workers
from slacktide import names
from slacktide.cluster import NODES, PODS, Client, ClusterMetrics, EventRecorder, Informer, LeaderElector
from slacktide.errors import SettingsError
from slacktide.observe import Health, get_logger

_log = get_logger("scheduler.host")

_POP_SECONDS: Final = 0.5
_FLUSH_BACKOFF_SECONDS: Final = 1.0
_FLUSH_UNSCHEDULABLE_SECONDS: Final = 30.0
_PERMIT_SECONDS: Final = 0.25
_STOP_SECONDS: Final = 2.0


def build_framework(
    settings: SchedulerSettings, registry: Registry, handle: Handle, observer: FrameworkObserver
) -> Framework:
    """The profile of `settings`. Raises SettingsError with every problem at once."""
    problems: list[str] = []
    plugins = []
    for name in settings.profile.plugins:
        try:
            plugins.append(registry.build(name, {}, handle))
        except SettingsError as error:
            problems += error.problems
    if problems:
        raise SettingsError([f"profile.plugins: {problem}" for problem in problems])
    return Framework(settings.scheduler_name, plugins, settings.profile.weights, observer)


class SchedulerHost:
    """One running scheduler. Pods are popped only while it leads and after both informers have synced."""

    def __init__(
        self,
        settings: SchedulerSettings,
        client: Client,
        plugins: Registry,
        registry: CollectorRegistry,
        health: Health,
        stop: threading.Event,
    ) -> None:
        self._stop = stop
        cluster_metrics = ClusterMetrics(registry)
        metrics = SchedulerMetrics(registry, settings.scheduler_name)
        binder = ApiBinder(client, stop.wait)
        self._waiting = WaitingRoom(time.monotonic)
        handle = Handle(
            wall_seconds=time.time,
            bind=binder.bind,
            cpu_resource=settings.resources.cpu,
            memory_resource=settings.resources.memory,
            waiting=self._waiting,
            activate=lambda pods: self._queue.activate(pods),
        )
        framework = build_framework(settings, plugins, handle, metrics)
        times = QueueTimes(settings.initial_backoff_seconds, settings.maximum_backoff_seconds)
        self._queue = SchedulingQueue(framework, metrics, time.monotonic, times)
        cache = Cache()
        metrics.watch(self._queue, cache)
        reader = PodReader(settings.resources)
        handlers = ClusterHandlers(cache, self._queue, reader, settings.scheduler_name, self._waiting)
        self._pods = Informer(
            client,
            PODS,
            on_add=handlers.pod_added,
            on_update=handlers.pod_updated,
            on_delete=handlers.pod_deleted,
            name="pods",
            metrics=cluster_metrics,
        )
        self._nodes = Informer(
            client,
            NODES,
            on_add=handlers.node_added,
            on_update=handlers.node_updated,
            on_delete=handlers.node_deleted,
            name="nodes",
            metrics=cluster_metrics,
        )
        host_name = socket.gethostname()
        self._events = EventRecorder(client, settings.scheduler_name, host_name, metrics=cluster_metrics)
        self._bindings = Workers(settings.bind_workers, "bind")
        self._scheduler = Scheduler(
            framework,
            self._queue,
            cache,
            reader,
            metrics,
            Outside(
                pods=self._pods,
                reporter=Reporter(client, self._events, time.time),
                submit=self._bindings.submit,
                monotonic=time.monotonic,
                choose=random.randrange,
                waiting=self._waiting,
            ),
        )
        self._leads = threading.Event()
        self._elector = LeaderElector(
            client,
            settings.scheduler_name,
            names.SYSTEM_NAMESPACE,
            settings.identity or f"{host_name}_{os.getpid()}_{secrets.token_hex(4)}",
            on_started=self._leads.set,
            on_stopped=self._leads.clear,
            metrics=cluster_metrics,
        )
        self._threads = [
            threading.Thread(target=self._loop, name="scheduling", daemon=True),
            threading.Thread(target=self._flush, name="queue-timers", daemon=True),
            threading.Thread(target=self._expire, name="permit-timers", daemon=True),
        ]
        health.add_ready("informers", self._not_synced)
        health.add_live("scheduling loop", self._loop_ended)

    def start(self) -> None:
        """Start everything; returns at once. The API may be away: nothing is popped until it was seen."""
        self._nodes.start()
        self._pods.start()
        self._elector.start()
        self._bindings.start()
        for thread in self._threads:
            thread.start()

    def shut_down(self) -> None:
        """End everything; the stop event must be set. A binding under way is settled by the API, or the next run."""
        self._queue.close()
        for thread in self._threads:
            thread.join(_STOP_SECONDS)
        self._elector.stop()
        self._pods.stop()
        self._nodes.stop()
        self._events.stop(flush_seconds=1.0)

    def _not_synced(self) -> str | None:
        waiting = [i for i, informer in (("pods", self._pods), ("nodes", self._nodes)) if not informer.synced]
        return f"not listed yet: {', '.join(waiting)}; is the API server there?" if waiting else None

    def _loop_ended(self) -> str | None:
        started = self._threads[0].ident is not None
        return "the scheduling thread ended" if started and not self._threads[0].is_alive() else None

    def _loop(self) -> None:
        while not self._stop.is_set():
            if not self._ready_to_pop():
                continue
            self._scheduler.attempt(_POP_SECONDS)

    def _ready_to_pop(self) -> bool:
        if not (self._nodes.wait_synced(_POP_SECONDS) and self._pods.wait_synced(_POP_SECONDS)):
            return False
        return self._leads.wait(_POP_SECONDS) and self._elector.is_leader

    def _flush(self) -> None:
        every(self._stop, _FLUSH_BACKOFF_SECONDS, _FLUSH_UNSCHEDULABLE_SECONDS, self._queue)

    def _expire(self) -> None:
        while not self._stop.wait(_PERMIT_SECONDS):
            self._waiting.expire()


def every(
    stop: threading.Event,
    backoff_seconds: float,
    unschedulable_seconds: float,
    queue: SchedulingQueue,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Flush the queue's timers until `stop`."""
    next_unschedulable = clock() + unschedulable_seconds
    while not stop.wait(backoff_seconds):
        queue.flush_backoff()
        if clock() >= next_unschedulable:
            queue.flush_unschedulable()
            next_unschedulable = clock() + unschedulable_seconds

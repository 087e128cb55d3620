"""The scheduler's process: informers, election, scheduling loop and timers, started and stopped together."""

from __future__ import annotations

import os
import random
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry

from scheduler_plugins.binding import ApiBinder
from scheduler_plugins.config.profiles import build
from scheduler_plugins.config.types import ElectionConfig, SchedulerConfig
from scheduler_plugins.evictor import ApiEvictor
from scheduler_plugins.extenders.client import HttpExtender, make_extenders
from scheduler_plugins.framework.cache import Cache, CacheError
from scheduler_plugins.framework.comparer import Comparer
from scheduler_plugins.framework.interfaces import Handle
from scheduler_plugins.framework.nominator import Nominator
from scheduler_plugins.framework.pod_info import PodInfo, PodReader
from scheduler_plugins.framework.queue import QueueTimes, SchedulingQueue
from scheduler_plugins.framework.registry import Registry
from scheduler_plugins.framework.runtime import Framework
from scheduler_plugins.framework.waiting import WaitingRoom
from scheduler_plugins.handlers import ClusterHandlers
from scheduler_plugins.metrics import SchedulerMetrics
from scheduler_plugins.objects import InformerStore
from scheduler_plugins.permissions import SCHEDULER_PERMISSIONS, of_kinds, of_lease
from scheduler_plugins.records import Records
from scheduler_plugins.report import Reporter
from scheduler_plugins.scheduler import KEPT_OUT_SECONDS, Outside, Scheduler
from scheduler_plugins.settings import SchedulerSettings
from scheduler_plugins.workers import Workers
from slacktide.cluster import NODES, PODS, Client, ClusterMetrics, EventRecorder, Informer, Kind, LeaderElector, Rights
from slacktide.observe import Health, get_logger

_log = get_logger("scheduler.host")

DEBUG_ROUTE: Final = "/debug/scheduling"
"""Where the observe endpoint shows the last cycles."""

_LIVING: Final = "status.phase!=Succeeded,status.phase!=Failed"
_POP_SECONDS: Final = 0.5
_FLUSH_BACKOFF_SECONDS: Final = 1.0
_FLUSH_UNSCHEDULABLE_SECONDS: Final = 30.0
_PERMIT_SECONDS: Final = 0.25
_STOP_SECONDS: Final = 2.0


class SchedulerHost:
    """One running scheduler. Pods are popped only while it leads and after all informers have synced.

    `config` is what `config.load` made of the same settings and plugins. Raises SettingsError for an extender whose
    certificates cannot be used.
    """

    def __init__(
        self,
        settings: SchedulerSettings,
        config: SchedulerConfig,
        client: Client,
        plugins: Registry,
        registry: CollectorRegistry,
        health: Health,
        stop: threading.Event,
    ) -> None:
        self._stop = stop
        self._client = client
        self._cluster_metrics = ClusterMetrics(registry)
        self._metrics = SchedulerMetrics(registry)
        self._host_name = socket.gethostname()
        self._events = EventRecorder(client, settings.scheduler_name, self._host_name, metrics=self._cluster_metrics)
        self._waiting = WaitingRoom(time.monotonic)
        self._nominator = Nominator(lambda namespace, name: self._pods.get(namespace, name))
        self._objects = InformerStore(client, lambda *event: self._queue.move_all(*event), self._cluster_metrics)
        self._cache = Cache()
        self._extenders = make_extenders(config.extenders, self._pod_on)
        handle = self._handle(settings, self._extenders)
        self._profiles: Mapping[str, Framework] = build(config, plugins, lambda _: handle, self._metrics)
        times = QueueTimes(config.initial_backoff_seconds, config.maximum_backoff_seconds)
        self._queue = SchedulingQueue(self._profiles, self._metrics, time.monotonic, times, nominator=self._nominator)
        reader = PodReader(settings.resources)
        handlers = ClusterHandlers(self._cache, self._queue, reader, self._profiles, self._waiting)
        self._pods, self._nodes = self._informers(handlers)
        self._objects.use(self._kinds(), {PODS: self._pods, NODES: self._nodes})
        self.comparer = self._make_comparer()
        self._bindings = Workers(settings.bind_workers, "bind")
        self._metrics.watch(self._queue, self._cache, {"binding": self._bindings.under_way})
        self.records = Records(time.time)
        self._scheduler = self._make_scheduler(reader)
        self._leads = threading.Event()
        self._all_listed = False
        self._elector = self._make_elector(config.election, settings.identity)
        self._threads = self._make_threads()
        self._rights = self._make_rights(config.election)
        self._answer_for(health)

    def _answer_for(self, health: Health) -> None:
        health.add_ready("informers", self._not_synced)
        health.add_ready("permissions", self._rights.problem)
        health.add_live("scheduling loop", self._loop_ended)
        health.add_live("plugins", self._hung)

    def _kinds(self) -> Sequence[Kind[Any]]:
        return [kind for framework in self._profiles.values() for kind in framework.kinds]

    def _make_comparer(self) -> Comparer:
        return Comparer(
            self._cache,
            self._queue,
            lambda: self._client.list(NODES).items,
            lambda: self._client.list(PODS, field_selector=_LIVING).items,
            self._profiles,
            self._stop.wait,
        )

    def _make_threads(self) -> Sequence[threading.Thread]:
        """The scheduling loop first."""
        loops = {"scheduling": self._loop, "queue-timers": self._flush, "permit-timers": self._expire}
        return [threading.Thread(target=loop, name=name, daemon=True) for name, loop in loops.items()]

    def _make_rights(self, election: ElectionConfig) -> Rights:
        lease = of_lease(election.name, election.namespace) if election.enabled else ()
        return Rights(self._client, (*SCHEDULER_PERMISSIONS, *lease, *of_kinds(self._kinds())))

    def _handle(self, settings: SchedulerSettings, extenders: Sequence[HttpExtender]) -> Handle:
        return Handle(
            wall_seconds=time.time,
            bind=ApiBinder(self._client, self._stop.wait).bind,
            cpu_resource=settings.resources.cpu,
            memory_resource=settings.resources.memory,
            waiting=self._waiting,
            objects=self._objects,
            nominations=self._nominator,
            evictor=ApiEvictor(self._client, self._waiting, self._nominator, self._events, self._metrics, time.time),
            activate=lambda pods: self._queue.activate(pods),
            extenders=extenders,
            submit=lambda task: self._bindings.submit(task),
        )

    def _pod_on(self, node_name: str, uid: str) -> PodInfo | None:
        try:
            info = self._cache.get(uid)
        except CacheError:
            return None
        return info if info.pod.spec.node_name == node_name else None

    def _informers(self, handlers: ClusterHandlers) -> tuple[Informer[Any], Informer[Any]]:
        pods = Informer(
            self._client,
            PODS,
            field_selector=_LIVING,
            on_add=handlers.pod_added,
            on_update=handlers.pod_updated,
            on_delete=handlers.pod_deleted,
            name="pods",
            metrics=self._cluster_metrics,
        )
        nodes = Informer(
            self._client,
            NODES,
            on_add=handlers.node_added,
            on_update=handlers.node_updated,
            on_delete=handlers.node_deleted,
            name="nodes",
            metrics=self._cluster_metrics,
        )
        return pods, nodes

    def _make_scheduler(self, reader: PodReader) -> Scheduler:
        outside = Outside(
            pods=self._pods,
            reporter=Reporter(self._client, self._events, time.time),
            submit=self._bindings.submit,
            monotonic=time.monotonic,
            choose=random.randrange,
            waiting=self._waiting,
            records=self.records,
        )
        return Scheduler(self._profiles, self._queue, self._cache, reader, self._metrics, outside)

    def _make_elector(self, election: ElectionConfig, identity: str) -> LeaderElector | None:
        """None where the process is to lead without being elected."""
        if not election.enabled:
            return None
        return LeaderElector(
            self._client,
            election.name,
            election.namespace,
            identity or f"{self._host_name}_{os.getpid()}_{secrets.token_hex(4)}",
            on_started=self._leads.set,
            on_stopped=self._leads.clear,
            lease_seconds=election.lease_seconds,
            renew_seconds=election.renew_seconds,
            retry_seconds=election.retry_seconds,
            metrics=self._cluster_metrics,
        )

    def start(self) -> None:
        """Start everything; returns at once. The API may be away: nothing is popped until it was seen."""
        self._objects.start()
        self._nodes.start()
        self._pods.start()
        self._rights.start()
        if self._elector is None:
            self._leads.set()
        else:
            self._elector.start()
        self._bindings.start()
        for thread in self._threads:
            thread.start()

    def shut_down(self) -> None:
        """End everything; the stop event must be set. A binding under way is settled by the API, or the next run."""
        self._queue.close()
        for thread in self._threads:
            thread.join(_STOP_SECONDS)
        if self._elector is not None:
            self._elector.stop()
        self._pods.stop()
        self._nodes.stop()
        self._objects.stop()
        self._rights.stop()
        self._events.stop(flush_seconds=1.0)
        for extender in self._extenders:
            extender.close()

    @property
    def listed(self) -> bool:
        """Whether all that plugins look at has been listed once."""
        return not self._missing()

    def _missing(self) -> list[str]:
        own = [name for name, informer in (("pods", self._pods), ("nodes", self._nodes)) if not informer.synced]
        return [*own, *self._objects.not_synced()]

    def _not_synced(self) -> str | None:
        missing = self._missing()
        return f"not listed yet: {', '.join(missing)}; is the API server there?" if missing else None

    def _loop_ended(self) -> str | None:
        started = self._threads[0].ident is not None
        return "the scheduling thread ended" if started and not self._threads[0].is_alive() else None

    def _hung(self) -> str | None:
        hung = [problem for framework in self._profiles.values() for problem in framework.hung()]
        return "; ".join(hung) or None

    def _loop(self) -> None:
        while not self._stop.is_set():
            # Who leads is asked when there is a pod: the lead may be lost while one is waited for.
            if self._ready_to_pop() and self._queue.wait(_POP_SECONDS) and self._leading():
                self._scheduler.attempt(0)

    def _ready_to_pop(self) -> bool:
        if not self._all_listed and not self._wait_listed():
            return False
        return self._leads.wait(_POP_SECONDS)

    def _leading(self) -> bool:
        return self._leads.is_set() and (self._elector is None or self._elector.is_leader)

    def _wait_listed(self) -> bool:
        """Once all was listed it stays so; asked before each cycle until then."""
        if not (self._nodes.wait_synced(_POP_SECONDS) and self._pods.wait_synced(_POP_SECONDS)):
            return False
        if self._objects.not_synced():
            self._stop.wait(_POP_SECONDS)
            return False
        self._all_listed = True
        return True

    def _flush(self) -> None:
        every(self._stop, _FLUSH_BACKOFF_SECONDS, self._queue.flush_backoff, self._occasionally())

    def _occasionally(self) -> Mapping[Callable[[], None], float]:
        return {
            self._queue.flush_unschedulable: _FLUSH_UNSCHEDULABLE_SECONDS,
            self._tell_kept_out: KEPT_OUT_SECONDS,
        }

    def _tell_kept_out(self) -> None:
        """By the one that leads alone: the queues of the others hold the same pods."""
        if self._leads.is_set():
            self._scheduler.tell_kept_out()

    def _expire(self) -> None:
        while not self._stop.wait(_PERMIT_SECONDS):
            self._waiting.expire()


def every(
    stop: threading.Event,
    seconds: float,
    work: Callable[[], None],
    others: Mapping[Callable[[], None], float],
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Do `work` each `seconds` until `stop`, and beside it each of `others` after its own, longer, time."""
    due = {one: clock() + period for one, period in others.items()}
    while not stop.wait(seconds):
        work()
        for one, period in others.items():
            if clock() >= due[one]:
                one()
                due[one] = clock() + period

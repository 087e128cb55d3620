"""One scheduler process over an API in memory, with a clock that moves when told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from scheduler_plugins.binding import ApiBinder
from scheduler_plugins.config.convert import Source
from scheduler_plugins.config.load import configure
from scheduler_plugins.config.profiles import build
from scheduler_plugins.evictor import ApiEvictor
from scheduler_plugins.framework import interfaces as api
from scheduler_plugins.framework.cache import Cache
from scheduler_plugins.framework.extending import Extender
from scheduler_plugins.framework.interfaces import Handle
from scheduler_plugins.framework.nominator import Nominator
from scheduler_plugins.framework.queue import SchedulingQueue
from scheduler_plugins.framework.waiting import WaitingRoom
from scheduler_plugins.handlers import ClusterHandlers
from scheduler_plugins.metrics import SchedulerMetrics
from scheduler_plugins.plugins import default_registry
from scheduler_plugins.records import Records
from scheduler_plugins.report import Reporter, scheduled_condition
from scheduler_plugins.scheduler import Outside, Scheduler
from scheduler_plugins.settings import SchedulerSettings
from slacktide import names
from slacktide.objects import Pod
from tests.scheduler_plugins.build import GI, READER, Clock, forecast, offering
from tests.scheduler_plugins.twin import Api


class Recorder:
    def __init__(self) -> None:
        self.events: list[tuple[str, str, str, str]] = []

    def record(self, involved: Pod, type_: str, reason: str, message: str) -> None:
        self.events.append((involved.metadata.name, type_, reason, message))


class Informed:
    """Objects of the server, as informers have them."""

    def __init__(self, server: Api) -> None:
        self.all, self.get, self.indexed = server.all, server.object, server.indexed


class Rig:
    """One scheduler process over `server`; bindings run at once, or when `run_bindings` is called.

    `extra` are plugins beside the registered ones; a class is made anew for each profile. `file` is a configuration
    as YAML has it, instead of the default profile with `extra`, which makes room by preemption only if told to.
    """

    def __init__(
        self,
        server: Api | None = None,
        *extra: api.Plugin | type[api.Plugin],
        bind_now: bool = True,
        profile_names: Sequence[str] = (names.SCHEDULER_NAME,),
        extenders: Sequence[Extender] = (),
        file: Mapping[str, Any] | None = None,
        preemption: bool = False,
    ) -> None:
        self.server = server or Api()
        self.clock, self.wall = Clock(), Clock(50_000.0)
        self.recorder = Recorder()
        self.registry = CollectorRegistry()
        self.waits: list[float] = []
        self.bindings: list[Callable[[], None]] = []
        metrics = SchedulerMetrics(self.registry)
        binder = ApiBinder(self.server, lambda seconds: self.waits.append(seconds) or len(self.waits) > 20)
        self.waiting = WaitingRoom(self.clock)
        self.nominator = Nominator(self.server.lookup)
        self.records = Records(self.wall)

        def submit(task: Callable[[], None]) -> None:
            if bind_now:
                task()
            else:
                self.bindings.append(task)

        handle = Handle(
            self.wall,
            binder.bind,
            names.BATCH_CPU,
            names.BATCH_MEMORY,
            monotonic=self.clock,
            waiting=self.waiting,
            objects=Informed(self.server),
            nominations=self.nominator,
            evictor=ApiEvictor(self.server, self.waiting, self.nominator, self.recorder, metrics, self.wall),
            activate=lambda pods: self.queue.activate(pods),
            extenders=extenders,
            submit=submit,
        )
        self.handle = handle
        plugins = default_registry()
        for plugin in extra:
            made = plugin if isinstance(plugin, type) else lambda plugin=plugin: plugin
            plugins.register(plugin.name, lambda args, handle, made=made: made(), msgspec.Struct)
        lists = {
            "enabled": [{"name": plugin.name} for plugin in extra],
            "disabled": [] if preemption else [{"name": "DefaultPreemption"}],
        }
        file = file or {
            "profiles": [{"schedulerName": name, "plugins": {"multiPoint": lists}} for name in profile_names]
        }
        config = configure(SchedulerSettings(), file, Source("test"), plugins)
        profiles = build(config, plugins, lambda _: handle, metrics)
        self.queue = SchedulingQueue(profiles, metrics, self.clock, nominator=self.nominator)
        self.server.happened = lambda *event: self.queue.move_all(*event)
        self.cache = Cache()
        metrics.watch(self.queue, self.cache)
        self.server.handlers = ClusterHandlers(self.cache, self.queue, READER, profiles, self.waiting)
        self.scheduler = Scheduler(
            profiles,
            self.queue,
            self.cache,
            READER,
            metrics,
            Outside(
                pods=type("Pods", (), {"get": staticmethod(self.server.lookup)}),
                reporter=Reporter(self.server, self.recorder, self.wall),
                submit=submit,
                monotonic=self.clock,
                choose=lambda count: 0,
                waiting=self.waiting,
                records=self.records,
            ),
        )
        self.server.list_all()

    def settle(self) -> None:
        """Attempt until nothing is ready."""
        for _ in range(200):
            if not self.scheduler.attempt(0):
                return
        raise AssertionError("the queue does not come to rest")

    def later(self, seconds: float) -> None:
        self.clock.forward(seconds)
        self.queue.flush_backoff()
        self.waiting.expire()
        self.settle()

    def run_bindings(self) -> None:
        tasks, self.bindings = self.bindings, []
        for task in tasks:
            task()

    def offer(self, cpu: int, name: str = "n", **kwargs: Any) -> None:
        self.server.put_node(offering(name, forecast(cpu, 8 * GI, at=self.wall.now), **kwargs))

    def where(self, name: str) -> str:
        return self.server.pods[("default", name)].spec.node_name

    def condition(self, name: str) -> tuple[str, str, str]:
        found = scheduled_condition(self.server.pods[("default", name)])
        return ("", "", "") if found is None else (found.status, found.reason, found.message)

    def metric(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)

"""The extender's process: informers, service and server, started and stopped together."""

from __future__ import annotations

import threading
import time
from typing import Any, Final

import msgspec
from prometheus_client import CollectorRegistry

from scheduler_plugins.binding import ApiBinder
from scheduler_plugins.extender.binding import PodBinding
from scheduler_plugins.extender.feed import CacheFeed
from scheduler_plugins.extender.metrics import ExtenderMetrics
from scheduler_plugins.extender.server import ExtenderServer, Limits
from scheduler_plugins.extender.service import ExtenderService, Terms
from scheduler_plugins.extender.settings import ExtenderSettings
from scheduler_plugins.extender.tls import ServerTls
from scheduler_plugins.framework import interfaces as api
from scheduler_plugins.framework.cache import Cache
from scheduler_plugins.framework.pod_info import PodReader
from scheduler_plugins.framework.registry import Registry
from scheduler_plugins.framework.runtime import Framework, FrameworkObserver
from scheduler_plugins.objects import InformerStore
from scheduler_plugins.permissions import BINDING_PERMISSIONS, EXTENDER_PERMISSIONS, of_kinds
from scheduler_plugins.plugins.default_binder import DefaultBinder
from scheduler_plugins.plugins.priority_sort import PrioritySort
from slacktide.cluster import NODES, PODS, Client, ClusterMetrics, Informer, Rights
from slacktide.errors import SettingsError
from slacktide.observe import Health
from slacktide.sockets import is_loopback, parse_listen
from slacktide.tier import Tier
from slacktide.transport import tls_files

_LIVING: Final = "status.phase!=Succeeded,status.phase!=Failed"
_FOREIGN: Final[dict[type[api.Plugin], str]] = {
    api.PermitPlugin: "waits at Permit",
    api.PreEnqueuePlugin: "keeps pods out of the queue",
    api.PostFilterPlugin: "makes room for pods that fit nowhere",
}
"""What a plugin does that an extender has no part in; done by halves it would be worse than not at all."""


def build_framework(
    settings: ExtenderSettings, registry: Registry, handle: api.Handle, observer: FrameworkObserver
) -> Framework:
    """The profile of `settings`. Raises SettingsError with every problem at once."""
    profile = settings.profile
    problems = [
        f"arguments of {name}: it is not enabled" for name in sorted(profile.arguments.keys() - profile.plugins)
    ]
    problems += [f"weight of {name}: it is not enabled" for name in sorted(profile.weights.keys() - profile.plugins)]
    made: dict[str, api.Plugin] = {}
    for name in profile.plugins:
        try:
            made[name] = _checked(registry.build(name, _parsed(name, profile.arguments.get(name, "{}")), handle))
        except SettingsError as error:
            problems += error.problems
    if problems:
        raise SettingsError([f"profile: {problem}" for problem in problems])
    plugins = list(made.values())
    plugins += [PrioritySort()] if not any(isinstance(plugin, api.QueueSortPlugin) for plugin in plugins) else []
    plugins += [DefaultBinder(handle)] if not any(isinstance(plugin, api.BindPlugin) for plugin in plugins) else []
    # A plugin may be registered under more than one name.
    weights = {made[name].name: weight for name, weight in profile.weights.items()}
    return Framework("extender", plugins, weights, observer)


def _parsed(name: str, text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise SettingsError([f"arguments of {name} are not a JSON object: {error}"]) from error


def _checked(plugin: api.Plugin) -> api.Plugin:
    does = [text for kind, text in _FOREIGN.items() if isinstance(plugin, kind)]
    if does:
        texts = " and ".join(does)
        raise SettingsError([f"plugin {plugin.name} {texts}, which an extender cannot; use it in slacktide-scheduler"])
    return plugin


class ExtenderHost:
    """One running extender. It answers from the start; pods are judged once nodes and pods have been listed."""

    def __init__(
        self,
        settings: ExtenderSettings,
        client: Client,
        plugins: Registry,
        registry: CollectorRegistry,
        health: Health,
        stop: threading.Event,
    ) -> None:
        self._client = client
        self._hung_seconds = settings.hung_seconds
        self._watched = ClusterMetrics(registry)
        self._objects = InformerStore(client, _nobody_waits, self._watched)
        metrics = ExtenderMetrics(registry)
        binder = ApiBinder(client, stop.wait)
        self._framework = build_framework(settings, plugins, self._handle(settings, binder), metrics)
        tls = _tls(settings)
        cache, reader = Cache(), PodReader(settings.resources)
        metrics.watch(cache)
        self._pods, self._nodes = self._informers(CacheFeed(cache, reader))
        kinds = self._framework.kinds
        self._objects.use(kinds, {PODS: self._pods, NODES: self._nodes})
        service = self._service(settings, cache, reader, metrics, binder)
        self._server = ExtenderServer(settings.listen, service, _limits(settings), metrics, tls)
        binding = BINDING_PERMISSIONS if settings.bind else ()
        self._rights = Rights(client, (*EXTENDER_PERMISSIONS, *binding, *of_kinds(kinds)))
        health.add_ready("informers", self._not_synced)
        health.add_ready("permissions", self._rights.problem)
        health.add_live("server", self._server.alive)
        health.add_live("plugins", self._hung)

    def _handle(self, settings: ExtenderSettings, binder: ApiBinder) -> api.Handle:
        return api.Handle(
            wall_seconds=time.time,
            bind=binder.bind,
            cpu_resource=settings.resources.cpu,
            memory_resource=settings.resources.memory,
            objects=self._objects,
        )

    def _informers(self, feed: CacheFeed) -> tuple[Informer[Any], Informer[Any]]:
        pods = Informer(
            self._client,
            PODS,
            field_selector=_LIVING,
            on_add=feed.pod_added,
            on_update=feed.pod_updated,
            on_delete=feed.pod_deleted,
            name="pods",
            metrics=self._watched,
        )
        nodes = Informer(
            self._client,
            NODES,
            on_add=feed.node_added,
            on_update=feed.node_updated,
            on_delete=feed.node_deleted,
            name="nodes",
            metrics=self._watched,
        )
        return pods, nodes

    def _service(
        self, settings: ExtenderSettings, cache: Cache, reader: PodReader, metrics: ExtenderMetrics, binder: ApiBinder
    ) -> ExtenderService:
        tiers = frozenset(Tier(name) for name in settings.tiers)
        terms = Terms(tiers, settings.highest_score, settings.wait_seconds)
        binding = PodBinding(self._framework, cache, reader, tiers, self._pods, self._client, binder.bind)
        return ExtenderService(
            self._framework, cache, reader, terms, metrics, self._not_synced, binding if settings.bind else None
        )

    @property
    def address(self) -> str:
        """Where it listens, `HOST:PORT`."""
        return self._server.address

    @property
    def listed(self) -> bool:
        """Whether nodes, pods and all that plugins ask for have been listed."""
        return self._not_synced() is None

    def start(self) -> None:
        """Start everything; returns at once. The API may be away. Raises SettingsError when the address is taken."""
        self._server.start()
        self._nodes.start()
        self._pods.start()
        self._objects.start()
        self._rights.start()

    def shut_down(self) -> None:
        """End everything; answers under way go out."""
        self._server.stop()
        self._objects.stop()
        self._pods.stop()
        self._nodes.stop()
        self._rights.stop()

    def _not_synced(self) -> str | None:
        waiting = [i for i, informer in (("pods", self._pods), ("nodes", self._nodes)) if not informer.synced]
        waiting += self._objects.not_synced()
        return f"not listed yet: {', '.join(waiting)}; is the API server there?" if waiting else None

    def _hung(self) -> str | None:
        return "; ".join(self._framework.hung(self._hung_seconds)) or None


def _nobody_waits(*_: object) -> None:
    """An extender has no queue that an event could wake: the scheduler asks again by itself."""


def _limits(settings: ExtenderSettings) -> Limits:
    return Limits(settings.max_connections, settings.max_body_bytes, settings.request_seconds, settings.idle_seconds)


def _tls(settings: ExtenderSettings) -> ServerTls | None:
    """TLS of the port. Raises SettingsError for files that cannot be used, and for plain HTTP beyond this machine."""
    files = tls_files(settings.tls)
    if files is not None:
        return ServerTls(files)
    listen = parse_listen(settings.listen)
    if not listen.path and not is_loopback(listen.host):
        problem = "plain HTTP is for this machine only; give tls.certificate_file and tls.key_file"
        raise SettingsError([f"listen = {settings.listen!r}: {problem}"])
    return None

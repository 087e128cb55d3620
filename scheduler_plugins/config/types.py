"""KubeSchedulerConfiguration v1 as it stands in a file, and what this scheduler makes of it.

Source: kubernetes staging/src/k8s.io/kube-scheduler/config/v1/types.go and component-base/config/v1alpha1, 1.35.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from slacktide.settings.files import Path

GROUP: Final = "kubescheduler.config.k8s.io"
API_VERSION: Final = f"{GROUP}/v1"
KIND: Final = "KubeSchedulerConfiguration"

MULTI_POINT: Final = "multiPoint"


class Part(msgspec.Struct, rename="camel", frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all parts of the file: camel-case names; an unknown one is an error.

    Every field has a default, also where the file must state it: a part can so be checked as far as it goes.
    """


class PluginRef(Part, frozen=True):
    """A plugin in a list; weight 0 is the default one."""

    name: str = ""
    weight: int = 0


class PluginSet(Part, frozen=True):
    """Plugins of one extension point to add to, or take from, those of the default profile; `*` takes all."""

    enabled: list[PluginRef] = []
    disabled: list[PluginRef] = []


class Plugins(Part, frozen=True):
    """Plugins by extension point. `multi_point` is for every point that a plugin takes part in."""

    multi_point: PluginSet = PluginSet()
    pre_enqueue: PluginSet = PluginSet()
    queue_sort: PluginSet = PluginSet()
    pre_filter: PluginSet = PluginSet()
    filter: PluginSet = PluginSet()
    post_filter: PluginSet = PluginSet()
    pre_score: PluginSet = PluginSet()
    score: PluginSet = PluginSet()
    reserve: PluginSet = PluginSet()
    permit: PluginSet = PluginSet()
    pre_bind: PluginSet = PluginSet()
    bind: PluginSet = PluginSet()
    post_bind: PluginSet = PluginSet()

    def by_point(self) -> Iterator[tuple[str, PluginSet]]:
        """(Name of the point as in the file, its plugins), `multiPoint` first."""
        for name, field in zip(self.__struct_encode_fields__, self.__struct_fields__, strict=True):
            yield name, getattr(self, field)


POINTS: Final = tuple(name for name, _ in Plugins().by_point() if name != MULTI_POINT)
"""Extension points in the order of a cycle, as the file names them."""


class PluginArgs(Part, frozen=True):
    """Arguments of one plugin, as they stand in the file."""

    name: str = ""
    args: dict[str, Any] = {}


class Profile(Part, frozen=True):
    """How pods with one schedulerName are placed. Plugins are changes to the default profile."""

    scheduler_name: str | None = None
    percentage_of_nodes_to_score: int | None = None
    plugins: Plugins = Plugins()
    plugin_config: list[PluginArgs] = []


class ManagedResource(Part, frozen=True):
    """A resource that an extender looks after; `ignored_by_scheduler` leaves it out of NodeResourcesFit."""

    name: str = ""
    ignored_by_scheduler: bool = False


class ExtenderTls(Part, frozen=True):
    """Certificates for an extender; data is base64 of PEM text and goes before the file of the same name."""

    insecure: bool = False
    server_name: str = ""
    cert_file: str = ""
    key_file: str = ""
    ca_file: str = ""
    cert_data: bytes = b""
    key_data: bytes = b""
    ca_data: bytes = b""


class ExtenderConfig(Part, frozen=True):
    """One extender. A verb that is empty is not called; `http_timeout` is a Go duration, 0 or absent is 5s."""

    url_prefix: str = ""
    filter_verb: str = ""
    preempt_verb: str = ""
    prioritize_verb: str = ""
    weight: int = 0
    bind_verb: str = ""
    enable_https: bool = msgspec.field(default=False, name="enableHTTPS")
    tls_config: ExtenderTls | None = None
    http_timeout: str = "5s"
    node_cache_capable: bool = False
    managed_resources: list[ManagedResource] = []
    ignorable: bool = False


class LeaderElection(Part, frozen=True):
    """Leader election; durations as in Go. None of a name stands for this scheduler's own lease."""

    leader_elect: bool = True
    lease_duration: str = "15s"
    renew_deadline: str = "10s"
    retry_period: str = "2s"
    resource_lock: str = "leases"
    resource_name: str | None = None
    resource_namespace: str | None = None


class ClientConnection(Part, frozen=True):
    """How to reach the API server."""

    kubeconfig: str = ""
    accept_content_types: str = ""
    content_type: str = ""
    qps: float = 50.0
    burst: int = 100


class KubeSchedulerConfiguration(Part, frozen=True):
    """The file. None is a value that it does not state."""

    api_version: str = ""
    kind: str = ""
    parallelism: int = 16
    leader_election: LeaderElection = LeaderElection()
    client_connection: ClientConnection = ClientConnection()
    enable_profiling: bool = True
    enable_contention_profiling: bool = True
    percentage_of_nodes_to_score: int = 0
    pod_initial_backoff_seconds: int | None = None
    pod_max_backoff_seconds: int | None = None
    profiles: list[Profile] = []
    extenders: list[ExtenderConfig] = []
    delay_cache_until_active: bool = False


@dataclass(frozen=True, slots=True)
class ChosenPlugin:
    """Arguments of a plugin as they stand in the file, and where, for messages."""

    name: str
    args: Mapping[str, Any]
    path: Path


@dataclass(frozen=True, slots=True)
class ChosenProfile:
    """A profile as it will run: `multi` is the default list with the changes of `stated.multi_point`."""

    name: str
    multi: tuple[PluginRef, ...]
    stated: Plugins
    args: Mapping[str, ChosenPlugin]
    path: Path

    @property
    def points(self) -> dict[str, PluginSet]:
        """What the file says of single points."""
        return {name: plugins for name, plugins in self.stated.by_point() if name != MULTI_POINT}

    def names(self) -> tuple[str, ...]:
        """All plugins that the profile enables somewhere, each once."""
        lists = (self.multi, *(point.enabled for point in self.points.values()))
        return tuple(dict.fromkeys(plugin.name for plugins in lists for plugin in plugins))

    def mentions(self, kind: Literal["enabled", "disabled"]) -> Iterator[tuple[PluginRef, Path]]:
        """Each plugin that the file enables or disables, and where it says so."""
        for point, plugins in self.stated.by_point():
            for i, ref in enumerate(plugins.enabled if kind == "enabled" else plugins.disabled):
                yield ref, (*self.path, "plugins", point, kind, i, "name")

    def where(self, name: str) -> Path:
        """Where the file enables plugin `name`; the profile itself where only the default does."""
        return next((path for ref, path in self.mentions("enabled") if ref.name == name), self.path)


@dataclass(frozen=True, slots=True)
class ElectionConfig:
    """Which lease leads and how fast. Without `enabled` the process always leads."""

    enabled: bool
    name: str
    namespace: str
    lease_seconds: float
    renew_seconds: float
    retry_seconds: float


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Everything that configures the scheduler beside its process: settings and file in one."""

    profiles: tuple[ChosenProfile, ...]
    extenders: tuple[ExtenderConfig, ...]
    """Those that may be ignored last."""
    election: ElectionConfig
    initial_backoff_seconds: float
    maximum_backoff_seconds: float
    kubeconfig: str
    """Of the file; empty when it names none."""
    notes: tuple[str, ...]
    """What the file says and has no effect here, or an effect that a reader may not expect; one sentence each."""

"""Rules of a KubeSchedulerConfiguration that types cannot say; all problems are told, none is raised.

Source: kubernetes pkg/scheduler/apis/config/validation/validation.go, 1.35.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from scheduler_plugins.config.convert import Source
from scheduler_plugins.config.durations import seconds_of
from scheduler_plugins.config.types import (
    API_VERSION,
    GROUP,
    KIND,
    ExtenderConfig,
    ExtenderTls,
    KubeSchedulerConfiguration,
    LeaderElection,
    PluginSet,
    Profile,
)
from slacktide.errors import SettingsError
from slacktide.settings.files import Path

STOCK_NAME: Final = "default-scheduler"
STOCK_LEASE: Final = ("kube-system", "kube-scheduler")

_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LONGEST_PREFIX: Final = 253 - len("requests.")
_LARGEST_WEIGHT: Final = (1 << 31) - 1
_JITTER: Final = 1.2


def check_header(raw: Mapping[str, Any], source: Source) -> None:
    """Raise SettingsError unless this is the file that it should be: nothing else could be said about it."""
    version, kind = raw.get("apiVersion"), raw.get("kind")
    if kind != KIND:
        raise SettingsError([f"{source.place(('kind',))} must be {KIND}, not {kind!r}: is this another file?"])
    if version == API_VERSION:
        return
    older = isinstance(version, str) and version.startswith(f"{GROUP}/")
    hint = ": that version is no longer read by anybody; convert the file as kubernetes 1.25 describes" if older else ""
    raise SettingsError([f"{source.place(('apiVersion',))} must be {API_VERSION}, not {version!r}{hint}"])


def check(config: KubeSchedulerConfiguration, source: Source) -> None:
    """Tell `source` everything that is wrong, plugins and their arguments aside."""
    if config.parallelism <= 0:
        source.say(("parallelism",), f"must be more than 0, not {config.parallelism}")
    _percentage(config.percentage_of_nodes_to_score, (), source)
    initial = config.pod_initial_backoff_seconds
    if initial is not None and initial <= 0:
        source.say(("podInitialBackoffSeconds",), f"must be more than 0, not {initial}")
    _check_election(config.leader_election, {p.scheduler_name for p in config.profiles}, source)
    _check_profiles(config.profiles, source)
    _check_extenders(config.extenders, source)


def _percentage(value: int | None, path: Path, source: Source) -> None:
    if value is not None and not 0 <= value <= 100:
        source.say((*path, "percentageOfNodesToScore"), f"must be 0 to 100, not {value}")


def _seconds(text: str, path: Path, source: Source) -> float | None:
    try:
        return seconds_of(text)
    except ValueError as error:
        source.say(path, str(error))
        return None


def _check_election(election: LeaderElection, profiles: set[str | None], source: Source) -> None:
    at: Path = ("leaderElection",)
    lease = _seconds(election.lease_duration, (*at, "leaseDuration"), source)
    renew = _seconds(election.renew_deadline, (*at, "renewDeadline"), source)
    retry = _seconds(election.retry_period, (*at, "retryPeriod"), source)
    if retry is not None and retry <= 0:
        source.say((*at, "retryPeriod"), "must be more than 0")
    if lease is not None and renew is not None and lease <= renew:
        source.say((*at, "leaseDuration"), "must be longer than renewDeadline")
    if renew is not None and retry is not None and renew <= retry * _JITTER:
        source.say((*at, "renewDeadline"), f"must be longer than {_JITTER} times retryPeriod")
    if election.resource_lock != "leases":
        source.say((*at, "resourceLock"), f"must be leases, not {election.resource_lock!r}: others are long gone")
    if election.resource_name == "":
        source.say((*at, "resourceName"), "must not be empty: remove it, or name a lease")
    if election.resource_namespace == "":
        source.say((*at, "resourceNamespace"), "must not be empty: remove it, or name a namespace")
    wanted = (election.resource_namespace or STOCK_LEASE[0], election.resource_name)
    if election.leader_elect and wanted == STOCK_LEASE and STOCK_NAME not in profiles:
        source.say(
            (*at, "resourceName"),
            f"is the lease of the stock scheduler, which would stop while we lead: name another lease, or remove it; "
            f"only a scheduler that replaces the stock one (schedulerName: {STOCK_NAME}) may take it",
        )


def _check_profiles(profiles: list[Profile], source: Source) -> None:
    seen: dict[str, int] = {}
    for i, profile in enumerate(profiles):
        at: Path = ("profiles", i)
        _percentage(profile.percentage_of_nodes_to_score, at, source)
        name = profile.scheduler_name
        if name == "" or (name is None and len(profiles) > 1):
            source.say((*at, "schedulerName"), "is missing: every one of several profiles needs its own")
        elif name is not None and name in seen:
            source.say((*at, "schedulerName"), f"is wrong: {name} stands already in profiles[{seen[name]}]")
        if name:
            seen.setdefault(name, i)
        for point, plugins in profile.plugins.by_point():
            _check_plugin_set(plugins, (*at, "plugins", point), source)
        named: dict[str, int] = {}
        for j, config in enumerate(profile.plugin_config):
            where = (*at, "pluginConfig", j, "name")
            if not config.name:
                source.say(where, "is missing")
            elif config.name in named:
                source.say(where, f"is wrong: {config.name} stands already in pluginConfig[{named[config.name]}]")
            named.setdefault(config.name, j)


def _check_plugin_set(plugins: PluginSet, path: Path, source: Source) -> None:
    for kind, refs in (("enabled", plugins.enabled), ("disabled", plugins.disabled)):
        seen: set[str] = set()
        for i, ref in enumerate(refs):
            where = (*path, kind, i)
            if not ref.name:
                source.say((*where, "name"), "is missing")
            elif ref.name in seen:
                source.say((*where, "name"), f"is wrong: {ref.name} is {kind} twice here")
            seen.add(ref.name)
            if not 0 <= ref.weight <= _LARGEST_WEIGHT:
                source.say((*where, "weight"), f"must be 0 to {_LARGEST_WEIGHT}, not {ref.weight}")


def _check_extenders(extenders: list[ExtenderConfig], source: Source) -> None:
    binders = []
    managed: dict[str, str] = {}
    for i, extender in enumerate(extenders):
        at: Path = ("extenders", i)
        _check_address(extender, at, source)
        if extender.prioritize_verb and not 0 < extender.weight <= _LARGEST_WEIGHT:
            source.say((*at, "weight"), f"must be more than 0 with prioritizeVerb, not {extender.weight}")
        if extender.bind_verb:
            binders.append(i)
        if (timeout := _seconds(extender.http_timeout, (*at, "httpTimeout"), source)) is not None and timeout < 0:
            source.say((*at, "httpTimeout"), f"must not be negative, not {extender.http_timeout}")
        if extender.tls_config is not None:
            for field, problem in _tls_problems(extender.tls_config):
                source.say((*at, "tlsConfig", field), problem)
        for j, resource in enumerate(extender.managed_resources):
            where = (*at, "managedResources", j, "name")
            if problem := not_extended(resource.name):
                source.say(where, problem)
            elif resource.name in managed:
                source.say(where, f"is wrong: {resource.name} is managed already by {managed[resource.name]}")
            managed.setdefault(resource.name, f"extenders[{i}].managedResources[{j}]")
    for i in binders[1:]:
        source.say(("extenders", i, "bindVerb"), f"stands already in extenders[{binders[0]}]: only one may bind")


def _check_address(extender: ExtenderConfig, at: Path, source: Source) -> None:
    try:
        parts = urlsplit(extender.url_prefix)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        wanted = "is missing" if not extender.url_prefix else f"is no address: {extender.url_prefix!r}"
        source.say((*at, "urlPrefix"), f"{wanted}; write for example http://127.0.0.1:9105/scheduler")


def _tls_problems(tls: ExtenderTls) -> Iterator[tuple[str, str]]:
    if tls.insecure and (tls.ca_file or tls.ca_data):
        yield "insecure", "must not be true beside caFile or caData: the certificate is verified or it is not"
    if bool(tls.cert_file or tls.cert_data) != bool(tls.key_file or tls.key_data):
        yield "certFile", "certificate and key must both be given, or neither"


def not_extended(name: str) -> str:
    """What is wrong with the name of a resource that an extender would manage; empty when it may."""
    prefix, slash, rest = name.partition("/")
    if not name:
        return "is missing"
    if not slash or "kubernetes.io/" in name or name.startswith("requests."):
        return f"is wrong: {name} is no extended resource, and an extender may manage no other"
    if len(prefix) > _LONGEST_PREFIX or not _SUBDOMAIN.fullmatch(prefix) or not _NAME.fullmatch(rest):
        return f"is wrong: {name} is no name of a resource: it must be like example.com/device"
    return ""

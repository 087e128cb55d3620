"""From settings and a KubeSchedulerConfiguration file to what the scheduler runs with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from scheduler_plugins.config import validate
from scheduler_plugins.config.convert import Source, dotted, lenient
from scheduler_plugins.config.defaults import default_plugins
from scheduler_plugins.config.durations import seconds_of
from scheduler_plugins.config.merge import merged
from scheduler_plugins.config.profiles import check_profiles
from scheduler_plugins.config.types import (
    ChosenPlugin,
    ChosenProfile,
    ElectionConfig,
    ExtenderConfig,
    KubeSchedulerConfiguration,
    Profile,
    SchedulerConfig,
)
from scheduler_plugins.extenders.connection import tls_context
from scheduler_plugins.framework.registry import Registry
from scheduler_plugins.settings import SchedulerSettings
from slacktide import names
from slacktide.errors import SettingsError

_SETTING: Final = "--configuration"
_FIT: Final = "NodeResourcesFit"


def load(settings: SchedulerSettings, registry: Registry) -> SchedulerConfig:
    """What `settings` and the file that they name say; without a file, one default profile.

    Raises SettingsError with every problem, plugins and their arguments included.
    """
    if not settings.configuration:
        return configure(settings, {}, Source("default configuration"), registry)
    # Here and not above: PyYAML is a tenth of a second, and few have a file.
    from slacktide.settings import files

    document = files.document(settings.configuration, _SETTING)
    source = Source(f"file {settings.configuration}", document.lines)
    validate.check_header(document.data, source)
    return configure(settings, document.data, source, registry)


def configure(
    settings: SchedulerSettings, data: Mapping[str, Any], source: Source, registry: Registry
) -> SchedulerConfig:
    """The same of the plain data of a file, whose header is not looked at. Raises SettingsError."""
    file = lenient(KubeSchedulerConfiguration, dict(data), (), source)
    validate.check(file, source)
    initial, longest = _backoff(file, settings, source)
    notes = list(_notes(file))
    profiles = tuple(_profiles(file, settings, registry, notes))
    check_profiles(profiles, registry, source, notes)
    _check_certificates(file, source)
    if source.problems:
        raise SettingsError(source.problems)
    return SchedulerConfig(
        profiles=profiles,
        extenders=tuple(sorted(file.extenders, key=lambda extender: extender.ignorable)),
        election=_election(file, settings),
        initial_backoff_seconds=initial,
        maximum_backoff_seconds=longest,
        kubeconfig=file.client_connection.kubeconfig,
        notes=tuple(notes),
    )


def _check_certificates(file: KubeSchedulerConfiguration, source: Source) -> None:
    for i, extender in enumerate(file.extenders):
        try:
            tls_context(extender)
        except SettingsError as error:
            source.say(("extenders", i, "tlsConfig"), f"cannot be used: {'; '.join(error.problems)}")
        except ValueError:
            continue  # No URL: told already.


def _backoff(file: KubeSchedulerConfiguration, settings: SchedulerSettings, source: Source) -> tuple[float, float]:
    initial, longest = file.pod_initial_backoff_seconds, file.pod_max_backoff_seconds
    seconds = (
        settings.initial_backoff_seconds if initial is None else float(initial),
        settings.maximum_backoff_seconds if longest is None else float(longest),
    )
    if (initial, longest) != (None, None) and seconds[1] < seconds[0]:
        stated = "podInitialBackoffSeconds" if longest is None else "podMaxBackoffSeconds"
        source.say(
            (stated,), f"the first wait, {seconds[0]:g} s, must not be longer than the longest, {seconds[1]:g} s"
        )
    return seconds


def _profiles(
    file: KubeSchedulerConfiguration, settings: SchedulerSettings, registry: Registry, notes: list[str]
) -> Iterator[ChosenProfile]:
    default = default_plugins(registry.names())
    ignored = [r.name for extender in file.extenders for r in extender.managed_resources if r.ignored_by_scheduler]
    for i, profile in enumerate(file.profiles or [Profile(scheduler_name=settings.scheduler_name)]):
        if profile.scheduler_name is None:
            notes.append(
                f"profiles[{i}] states no schedulerName: it places the pods of {settings.scheduler_name}; "
                f"the stock scheduler would take those of {validate.STOCK_NAME}"
            )
        args: dict[str, ChosenPlugin] = {}
        for j, config in enumerate(profile.plugin_config):
            path = ("profiles", i, "pluginConfig", j, "args")
            args.setdefault(config.name, ChosenPlugin(config.name, config.args, path))
        if ignored:
            args[_FIT] = _ignoring(args.get(_FIT), ignored, notes)
        name = profile.scheduler_name or settings.scheduler_name
        multi = merged(default, profile.plugins.multi_point)
        yield ChosenProfile(name, multi, profile.plugins, args, ("profiles", i))


def _ignoring(given: ChosenPlugin | None, ignored: list[str], notes: list[str]) -> ChosenPlugin:
    """Arguments of NodeResourcesFit with what extenders manage alone; as in the stock scheduler, the list is theirs."""
    if given is None:
        return ChosenPlugin(_FIT, {"ignoredResources": ignored}, ("extenders",))
    if given.args.get("ignoredResources"):
        notes.append(f"{dotted(given.path)}.ignoredResources is replaced by what extenders have ignoredByScheduler")
    return ChosenPlugin(_FIT, {**given.args, "ignoredResources": ignored}, given.path)


def _election(file: KubeSchedulerConfiguration, settings: SchedulerSettings) -> ElectionConfig:
    stated = file.leader_election
    return ElectionConfig(
        enabled=stated.leader_elect,
        name=stated.resource_name or settings.scheduler_name,
        namespace=stated.resource_namespace or names.SYSTEM_NAMESPACE,
        lease_seconds=seconds_of(stated.lease_duration),
        renew_seconds=seconds_of(stated.renew_deadline),
        retry_seconds=seconds_of(stated.retry_period),
    )


def _notes(file: KubeSchedulerConfiguration) -> Iterator[str]:
    """What has no effect here, or another than a reader may think."""
    stock = KubeSchedulerConfiguration()
    percentages = {file.percentage_of_nodes_to_score, *(p.percentage_of_nodes_to_score or 0 for p in file.profiles)}
    if file.parallelism != stock.parallelism:
        yield "parallelism has no effect: all nodes are judged in one operation"
    if percentages - {0, 100}:
        yield "percentageOfNodesToScore has no effect: every node is judged"
    if file.delay_cache_until_active:
        yield "delayCacheUntilActive has no effect: a replica that does not lead keeps its caches warm"
    client = file.client_connection
    if (client.qps, client.burst) != (stock.client_connection.qps, stock.client_connection.burst):
        yield "clientConnection.qps and burst have no effect: calls to the API are not throttled here"
    if any(profile.scheduler_name == validate.STOCK_NAME for profile in file.profiles):
        yield f"a profile is named {validate.STOCK_NAME}: the stock scheduler must not run beside this one"
    for i, extender in enumerate(file.extenders):
        yield from _extender_notes(f"extenders[{i}]", extender)


def _extender_notes(where: str, extender: ExtenderConfig) -> Iterator[str]:
    if not any((extender.filter_verb, extender.prioritize_verb, extender.bind_verb, extender.preempt_verb)):
        yield f"{where} has no verb and is never called"
    if extender.filter_verb and not extender.node_cache_capable:
        yield f"{where} is not nodeCacheCapable: whole nodes are sent with each question, which costs much"
    tls = extender.tls_config
    if extender.enable_https and extender.url_prefix.startswith("http:"):
        yield f"{where} has enableHTTPS and a urlPrefix with http: nothing is encrypted"
    elif extender.enable_https and not (tls and (tls.ca_file or tls.ca_data)):
        yield f"{where} has enableHTTPS and no caFile or caData: its certificate is not verified"

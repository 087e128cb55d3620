"""Profiles: plugins made with their arguments, put in order at each extension point, one framework a schedulerName."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from scheduler_plugins.config.convert import Source, dotted, typed
from scheduler_plugins.config.defaults import MISSING_STOCK
from scheduler_plugins.config.merge import ALL, expanded, weights
from scheduler_plugins.config.types import (
    API_VERSION,
    MULTI_POINT,
    ChosenPlugin,
    ChosenProfile,
    SchedulerConfig,
)
from scheduler_plugins.framework.interfaces import MAX_SCORE, Handle, Plugin
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.points import POINTS
from scheduler_plugins.framework.registry import Entry, Registry
from scheduler_plugins.framework.runtime import Framework, FrameworkObserver
from scheduler_plugins.framework.status import Status, failed
from slacktide import names
from slacktide.errors import SettingsError
from slacktide.settings.files import Path

_LARGEST_TOTAL: Final = (1 << 63) - 1


def build(
    config: SchedulerConfig,
    registry: Registry,
    handle_for: Callable[[str], Handle],
    observer: FrameworkObserver,
) -> dict[str, Framework]:
    """The framework of each profile by schedulerName, in the order of the file; `handle_for` is asked once for each.

    Raises SettingsError with every problem; there is none in what `load` gave with the same registry.
    """
    source = Source("configuration")
    plugins = {
        profile.name: _Profile(profile, registry, handle_for(profile.name), source) for profile in config.profiles
    }
    frameworks = {name: one.framework(observer) for name, one in plugins.items() if one.complete}
    if source.problems:
        raise SettingsError(source.problems)
    return frameworks


def check_profiles(profiles: Sequence[ChosenProfile], registry: Registry, source: Source, notes: list[str]) -> None:
    """Tell `source` what is wrong with plugins and their arguments, and `notes` what of them has no effect.

    Every plugin is made for trial, so that also the rules that only its maker knows are checked.
    """
    handle = Handle(
        wall_seconds=time.time, bind=_bind_nothing, cpu_resource=names.BATCH_CPU, memory_resource=names.BATCH_MEMORY
    )
    made = [_Profile(profile, registry, handle, source, notes) for profile in profiles]
    sorts = [(one, one.queue_sort()) for one in made if one.complete]
    for one, sort in sorts[1:]:
        if sort != sorts[0][1]:
            source.say(
                (*one.profile.path, "plugins", "queueSort"),
                f"must be that of the first profile, {sorts[0][1][0]} with equal arguments: all profiles share a queue",
            )


def unknown_plugin(name: str, registry: Registry) -> str:
    """The rest of a sentence: why no profile can enable plugin `name`."""
    reason = MISSING_STOCK.get(name)
    if reason is None:
        return f"is wrong: {registry.unknown(name)}"
    return f"cannot be enabled: plugin {name} of the stock scheduler is not here: {reason}. Remove it from the file"


class _Profile:
    """One profile with its plugins made; `complete` unless something is wrong with it, which `source` then knows."""

    def __init__(
        self,
        profile: ChosenProfile,
        registry: Registry,
        handle: Handle,
        source: Source,
        notes: list[str] | None = None,
    ) -> None:
        self.profile = profile
        self._handle = handle
        self._registry = registry
        self._source = source
        before = len(source.problems)
        notes = [] if notes is None else notes
        self._check_names(notes)
        made = ((name, self._make(name)) for name in profile.names() if name)
        self._plugins = {name: plugin for name, plugin in made if plugin is not None}
        self._check_points(notes)
        names_at = expanded(profile, self._takes_part)
        self._points = {point: tuple(self._plugins[n].name for n in at) for point, at in names_at.items()}
        score = frozenset(names_at["score"])
        self._weights = {self._plugins[n].name: w for n, w in weights(profile).items() if n in score}
        if len(source.problems) == before:
            self._check_whole()
        self.complete = len(source.problems) == before and len(self._points["queueSort"]) == 1

    def framework(self, observer: FrameworkObserver) -> Framework:
        """The profile as the scheduler runs it."""
        return Framework(
            self.profile.name,
            tuple(self._plugins.values()),
            self._weights,
            observer,
            points=self._points,
            extenders=self._handle.extenders,
            nominations=self._handle.nominations,
        )

    def queue_sort(self) -> tuple[str, Mapping[str, Any]]:
        """The plugin that orders the queue, and its arguments."""
        name = self._points["queueSort"][0]
        given = self.profile.args.get(name)
        return name, given.args if given is not None else {}

    def _takes_part(self, name: str, point: str) -> bool:
        return isinstance(self._plugins.get(name), POINTS[point])

    def _check_names(self, notes: list[str]) -> None:
        known = {*self._registry.names(), *MISSING_STOCK}
        for ref, path in self.profile.mentions("disabled"):
            if ref.name and ref.name != ALL and ref.name not in known:
                self._source.say(path, f"is wrong: {self._registry.unknown(ref.name)}")
        enabled = set(self.profile.names())
        for name, given in self.profile.args.items():
            if name not in known:
                self._source.say((*given.path[:-1], "name"), f"is wrong: {self._registry.unknown(name)}")
            elif name not in enabled:
                notes.append(f"{dotted(given.path)} has no effect: plugin {name} is not enabled in this profile")
                if (entry := self._registry.entry(name)) is not None:
                    self._args(entry, given)

    def _make(self, name: str) -> Plugin | None:
        entry = self._registry.entry(name)
        if entry is None:
            self._source.say(self.profile.where(name), unknown_plugin(name, self._registry))
            return None
        given = self.profile.args.get(name) or ChosenPlugin(name, {}, self.profile.where(name))
        args = self._args(entry, given)
        if args is None:
            return None
        try:
            made: Plugin = entry.make(args, self._handle)
        except SettingsError as error:
            self._source.say(given.path, "; ".join(error.problems))
            return None
        return made

    def _args(self, entry: Entry[Any], given: ChosenPlugin) -> Any:
        return typed(entry.args, self._without_header(given), given.path, self._source)

    def _without_header(self, given: ChosenPlugin) -> dict[str, Any]:
        """The arguments without apiVersion and kind, which must be right where they stand."""
        args = dict(given.args)
        for key, wanted in (("apiVersion", API_VERSION), ("kind", f"{given.name}Args")):
            if args.pop(key, wanted) not in {wanted, ""}:
                self._source.say((*given.path, key), f"must be {wanted}, not {given.args[key]!r}")
        return args

    def _check_points(self, notes: list[str]) -> None:
        for ref, path in self.profile.mentions("enabled"):
            if ref.name not in self._plugins:
                continue
            point = str(path[-4])
            if point != MULTI_POINT and not self._takes_part(ref.name, point):
                does = ", ".join(name for name in POINTS if self._takes_part(ref.name, name))
                self._source.say(path, f"names {ref.name}, which takes no part in {point}, only in {does}")
            elif ref.weight and not (point in {MULTI_POINT, "score"} and self._takes_part(ref.name, "score")):
                notes.append(f"{dotted(path[:-1])}.weight has no effect: {ref.name} does not score there")

    def _check_whole(self) -> None:
        sorts = self._points["queueSort"]
        at: Path = (*self.profile.path, "plugins")
        if len(sorts) != 1:
            self._source.say(
                (*at, "queueSort"),
                f"must have exactly one plugin, such as PrioritySort; it has {', '.join(sorts) or 'none'}",
            )
        if not self._points["bind"]:
            self._source.say((*at, "bind"), "has no plugin, so nothing could be placed; enable DefaultBinder")
        if sum(self._weights.values()) * MAX_SCORE > _LARGEST_TOTAL:
            self._source.say((*at, "score"), "has weights so large that the sum of scores could not be counted")


def _bind_nothing(pod: PodInfo, node_name: str) -> Status:  # noqa: ARG001  # form of Handle.bind
    """A plugin that is made for trial binds nothing."""
    return failed("this plugin was made for trial only")

"""Framework: runs the plugins of one profile at each extension point, with the documented meaning of each answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from scheduler_plugins.framework import interfaces as api
from scheduler_plugins.framework.asking import (
    ask_filter,
    ask_permit,
    ask_post_filter,
    ask_pre_filter,
    ask_score,
    ask_status,
    join,
    registrations_of,
)
from scheduler_plugins.framework.diagnosis import Diagnosis
from scheduler_plugins.framework.node_info import NodeInfo
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.queued import QueuedPod
from scheduler_plugins.framework.snapshot import Column, Indices, Interned, Snapshot
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import SUCCESS, Code, Status, failed, unresolvable
from slacktide.errors import SettingsError

P = TypeVar("P", bound=api.Plugin)


class FrameworkObserver(Protocol):
    """Told how long each extension point took and which plugins were asked."""

    def extension_point(self, point: str, status: str, seconds: float) -> None:
        """An extension point ran once."""
        ...

    def evaluated(self, plugin: str, point: str) -> None:
        """A plugin was asked in PreFilter, Filter, PreScore or Score."""
        ...


@dataclass(frozen=True, slots=True)
class PreFiltered:
    """Outcome of PreFilter: `rows` are the nodes left to judge; a rejected `status` ends the cycle."""

    status: Status
    rows: Indices
    absent: Status | None = None


@dataclass(frozen=True, slots=True)
class ScoreTable:
    """Scores of the nodes `rows`: total, and per plugin the normalised scores before weighting."""

    rows: Indices
    totals: NDArray[np.int64]
    by_plugin: Mapping[str, NDArray[np.int64]]


class _WhatIf:
    """Answers a PostFilter's questions with the Filter plugins of one profile."""

    def __init__(self, framework: Framework, snapshot: Snapshot) -> None:
        self._framework = framework
        self._snapshot = snapshot

    def judge(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        """See `interfaces.WhatIf`."""
        one = self._snapshot.single(node)
        diagnosis = Diagnosis(names=(node.name,))
        status, _ = self._framework.run_filter(state, pod, one, one.all(), diagnosis)
        if not status.ok or not diagnosis.refusals:
            return status
        refusal = diagnosis.refusals[0]
        return next(status for _, status in refusal.statuses()).by(refusal.plugin)

    def add_pod(self, state: CycleState, pod: PodInfo, added: PodInfo, node: NodeInfo) -> Status:
        """See `interfaces.WhatIf`."""
        node.add_pod(added)
        return self._framework.run_add_pod(state, pod, added, node)

    def remove_pod(self, state: CycleState, pod: PodInfo, removed: PodInfo, node: NodeInfo) -> Status:
        """See `interfaces.WhatIf`."""
        node.remove_pod(removed.uid)
        return self._framework.run_remove_pod(state, pod, removed, node)


class Framework:
    """One profile: its plugins in order, their weights, and what they want of snapshot and queue."""

    def __init__(
        self,
        profile: str,
        plugins: Sequence[api.Plugin],
        weights: Mapping[str, int],
        observer: FrameworkObserver,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.profile = profile
        self.plugins = tuple(plugins)
        self._observer = observer
        self._monotonic = monotonic
        self._pre_enqueue = tuple(p for p in self.plugins if isinstance(p, api.PreEnqueuePlugin))
        self._pre_filter = tuple(p for p in self.plugins if isinstance(p, api.PreFilterPlugin))
        self._filter = tuple(p for p in self.plugins if isinstance(p, api.FilterPlugin))
        self._post_filter = tuple(p for p in self.plugins if isinstance(p, api.PostFilterPlugin))
        self._pre_score = tuple(p for p in self.plugins if isinstance(p, api.PreScorePlugin))
        self._score = tuple(p for p in self.plugins if isinstance(p, api.ScorePlugin))
        self._reserve = tuple(p for p in self.plugins if isinstance(p, api.ReservePlugin))
        self._permit = tuple(p for p in self.plugins if isinstance(p, api.PermitPlugin))
        self._pre_bind = tuple(p for p in self.plugins if isinstance(p, api.PreBindPlugin))
        self._bind = tuple(p for p in self.plugins if isinstance(p, api.BindPlugin))
        self._post_bind = tuple(p for p in self.plugins if isinstance(p, api.PostBindPlugin))
        self._weights = {plugin.name: weights.get(plugin.name) or 1 for plugin in self._score}
        self._sort = self._check(weights)
        self.registrations = registrations_of(self.plugins)

    def _check(self, weights: Mapping[str, int]) -> api.QueueSortPlugin:
        problems = []
        names = [plugin.name for plugin in self.plugins]
        problems += [f"plugin {name} is enabled twice" for name in sorted({n for n in names if names.count(n) > 1})]
        problems += [
            f"weight of {name}: the plugin does not score in this profile (those that do: {', '.join(self._weights)})"
            for name in weights
            if name not in self._weights
        ]
        problems += [
            f"weight of {name} is {value}; it must be 0 or more" for name, value in weights.items() if value < 0
        ]
        sorts = tuple(p for p in self.plugins if isinstance(p, api.QueueSortPlugin))
        if len(sorts) != 1:
            given = ", ".join(plugin.name for plugin in sorts) or "none"
            problems.append(f"exactly one queue sort plugin must be enabled, such as PrioritySort; enabled: {given}")
        if not self._bind:
            problems.append("no bind plugin is enabled, so nothing could be placed; enable DefaultBinder")
        if problems:
            raise SettingsError([f"profile {self.profile}: {problem}" for problem in problems])
        return sorts[0]

    # What snapshot and queue ask.

    def new_snapshot(self) -> Snapshot:
        """An empty snapshot with the columns that the plugins want."""
        columns: list[Column] = [column for plugin in self.plugins for column in plugin.columns()]
        interned: list[Interned] = [column for plugin in self.plugins for column in plugin.interned()]
        return Snapshot(columns, interned)

    def sort_key(self, queued: QueuedPod) -> tuple[Any, ...]:
        """Order of ready pods."""
        return self._sort.sort_key(queued)

    def run_pre_enqueue(self, pod: PodInfo, first: str = "") -> Status:
        """Success, or the first answer that is not; the plugin named `first` is asked before the others."""
        for plugin in sorted(self._pre_enqueue, key=lambda plugin: plugin.name != first):
            status = ask_status(plugin, "PreEnqueue", plugin.pre_enqueue, pod)
            if not status.ok:
                return status
        return SUCCESS

    # The scheduling cycle.

    def run_pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, diagnosis: Diagnosis) -> PreFiltered:
        """Ask all PreFilter plugins; which nodes are left to judge, or why none is."""
        return self._timed("PreFilter", lambda: self._run_pre_filter(state, pod, snapshot, diagnosis))

    def _run_pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, diagnosis: Diagnosis) -> PreFiltered:
        rows = snapshot.all()
        none = rows[:0]
        skipped: set[str] = set()
        narrowed: frozenset[str] | None = None
        narrowers: list[str] = []
        rejection: Status | None = None
        for plugin in self._pre_filter:
            self._observer.evaluated(plugin.name, "PreFilter")
            answer = ask_pre_filter(plugin, state, pod, snapshot)
            status = answer.status
            if status.skipped:
                skipped.add(plugin.name)
            elif status.rejected:
                diagnosis.note(status)
                rejection = status if rejection is None else join(rejection, status)
                if status.code is Code.UNRESOLVABLE:
                    return PreFiltered(rejection, none, rejection)
            elif not status.ok:
                return PreFiltered(status, none)
            elif answer.nodes is not None:
                narrowed = answer.nodes if narrowed is None else narrowed & answer.nodes
                narrowers.append(plugin.name)
        state.skip_filter = frozenset(skipped)
        if rejection is not None:
            return PreFiltered(rejection, none, rejection)
        return self._narrow(snapshot, diagnosis, narrowed, narrowers)

    @staticmethod
    def _narrow(
        snapshot: Snapshot, diagnosis: Diagnosis, narrowed: frozenset[str] | None, narrowers: list[str]
    ) -> PreFiltered:
        rows = snapshot.all()
        if narrowed is None:
            return PreFiltered(SUCCESS, rows)
        left = np.array(sorted(snapshot.index[name] for name in narrowed if name in snapshot.index), dtype=np.intp)
        diagnosis.unschedulable_plugins.update(narrowers)
        by = f"node(s) didn't satisfy plugin(s) [{' '.join(narrowers)}]"
        if not narrowed:
            status = unresolvable(by + " simultaneously")
            return PreFiltered(status, left, status)
        return PreFiltered(SUCCESS, left, unresolvable(by))

    def run_filter(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices, diagnosis: Diagnosis
    ) -> tuple[Status, Indices]:
        """(Success or Error, rows of the nodes that every plugin lets pass); refusals go to `diagnosis`."""
        started = self._monotonic()
        status = SUCCESS
        for plugin in self._filter:
            if plugin.name in state.skip_filter or not len(rows):
                continue
            self._observer.evaluated(plugin.name, "Filter")
            status, rows = ask_filter(plugin, state, pod, snapshot, rows, diagnosis)
            if not status.ok:
                break
        self._observer.extension_point("Filter", status.label, self._monotonic() - started)
        return status, rows

    def run_add_pod(self, state: CycleState, pod: PodInfo, added: PodInfo, node: NodeInfo) -> Status:
        """Tell the PreFilter plugins that `added` is taken to be on `node`; the first failure ends it."""
        return self._run_extensions(state, "AddPod", lambda ext: ext.add_pod(state, pod, added, node))

    def run_remove_pod(self, state: CycleState, pod: PodInfo, removed: PodInfo, node: NodeInfo) -> Status:
        """Tell the PreFilter plugins that `removed` is taken to be gone from `node`; the first failure ends it."""
        return self._run_extensions(state, "RemovePod", lambda ext: ext.remove_pod(state, pod, removed, node))

    def _run_extensions(
        self, state: CycleState, what: str, call: Callable[[api.PreFilterExtensions], Status]
    ) -> Status:
        started = self._monotonic()
        status = SUCCESS
        for plugin in self._pre_filter:
            if plugin.name in state.skip_filter or not isinstance(plugin, api.PreFilterExtensions):
                continue
            status = ask_status(plugin, what, call, plugin)
            if not status.ok:
                break
        self._observer.extension_point(f"PreFilterExtension{what}", status.label, self._monotonic() - started)
        return status

    @property
    def has_post_filter(self) -> bool:
        """Whether anything can make room for a pod that fits nowhere."""
        return bool(self._post_filter)

    def run_post_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, diagnosis: Diagnosis) -> Status:
        """Ask the PostFilter plugins until one answers anything but Unschedulable."""
        started = self._monotonic()
        status = unresolvable()
        for plugin in self._post_filter:
            status = ask_post_filter(plugin, state, pod, snapshot, diagnosis, _WhatIf(self, snapshot))
            if status.code is not Code.UNSCHEDULABLE:
                break
        self._observer.extension_point("PostFilter", status.label, self._monotonic() - started)
        return status

    def run_score(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices
    ) -> tuple[Status, ScoreTable]:
        """PreScore, Score, NormalizeScore and weights. With no plugin to score, each node gets 1."""
        started = self._monotonic()
        empty = ScoreTable(rows, np.zeros(len(rows), dtype=np.int64), {})
        status = self._run_pre_score(state, pod, snapshot, rows)
        self._observer.extension_point("PreScore", status.label, self._monotonic() - started)
        if not status.ok:
            return status, empty
        started = self._monotonic()
        totals = np.zeros(len(rows), dtype=np.int64)
        by_plugin: dict[str, NDArray[np.int64]] = {}
        for plugin in self._score:
            if plugin.name in state.skip_score:
                continue
            self._observer.evaluated(plugin.name, "Score")
            status, scores = ask_score(plugin, state, pod, snapshot, rows)
            if not status.ok:
                break
            by_plugin[plugin.name] = scores
            totals += scores * self._weights[plugin.name]
        self._observer.extension_point("Score", status.label, self._monotonic() - started)
        if not status.ok:
            return status, empty
        if not self._score:
            totals += 1
        return SUCCESS, ScoreTable(rows, totals, by_plugin)

    def _run_pre_score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> Status:
        skipped: set[str] = set()
        for plugin in self._pre_score:
            self._observer.evaluated(plugin.name, "PreScore")
            status = ask_status(plugin, "PreScore", plugin.pre_score, state, pod, snapshot, rows)
            if status.skipped:
                skipped.add(plugin.name)
            elif not status.ok:
                return failed(f"PreScore: {status.message}", status.error).by(plugin.name)
        state.skip_score = frozenset(skipped)
        return SUCCESS

    def run_reserve(self, state: CycleState, pod: PodInfo, node_name: str) -> Status:
        """Reserve in order; the first that does not agree ends it. The caller then runs `run_unreserve`."""
        return self._in_order("Reserve", self._reserve, lambda plugin: plugin.reserve(state, pod, node_name))

    def run_unreserve(self, state: CycleState, pod: PodInfo, node_name: str) -> tuple[Status, ...]:
        """Unreserve all, last first, also those whose Reserve never ran. Returns what went wrong."""
        started = self._monotonic()
        problems = []
        for plugin in reversed(self._reserve):
            try:
                plugin.unreserve(state, pod, node_name)
            except Exception as error:  # noqa: BLE001  # the books of the other plugins must still be undone
                problems.append(failed(f"Unreserve raised: {error!r}", error).by(plugin.name))
        label = problems[0].label if problems else SUCCESS.label
        self._observer.extension_point("Unreserve", label, self._monotonic() - started)
        return tuple(problems)

    def run_permit(self, state: CycleState, pod: PodInfo, node_name: str) -> tuple[Status, Mapping[str, float]]:
        """(Success, WAIT, or what ended it; how long each plugin that waits does so at most, in seconds).

        A refusal or failure ends it at once; after one that waits the others are still asked.
        """
        started = self._monotonic()
        result = SUCCESS
        waits: dict[str, float] = {}
        for plugin in self._permit:
            status, seconds = ask_permit(plugin, state, pod, node_name)
            if status.code is Code.WAIT:
                waits[plugin.name] = seconds
                result = result if result.code is Code.WAIT else status
            elif not status.ok:
                result, waits = status, {}
                break
        self._observer.extension_point("Permit", result.label, self._monotonic() - started)
        return result, waits

    # The binding cycle.

    def run_pre_bind(self, state: CycleState, pod: PodInfo, node_name: str) -> Status:
        """PreBind in order; the first that does not agree ends it."""
        return self._in_order("PreBind", self._pre_bind, lambda plugin: plugin.pre_bind(state, pod, node_name))

    def run_bind(self, state: CycleState, pod: PodInfo, node_name: str) -> Status:
        """The first Bind plugin that does not Skip decides; all Skip is an Error."""
        started = self._monotonic()
        status = SUCCESS
        for plugin in self._bind:
            status = ask_status(plugin, "Bind", plugin.bind, state, pod, node_name)
            if not status.skipped:
                break
        if status.skipped:
            status = failed("every bind plugin skipped the pod").by(self._bind[-1].name)
        self._observer.extension_point("Bind", status.label, self._monotonic() - started)
        return status

    def run_post_bind(self, state: CycleState, pod: PodInfo, node_name: str) -> tuple[Status, ...]:
        """Tell the PostBind plugins. Returns what went wrong; the placement stands."""
        started = self._monotonic()
        problems = []
        for plugin in self._post_bind:
            try:
                plugin.post_bind(state, pod, node_name)
            except Exception as error:  # noqa: BLE001  # the placement stands whatever a plugin makes of the news
                problems.append(failed(f"PostBind raised: {error!r}", error).by(plugin.name))
        label = problems[0].label if problems else SUCCESS.label
        self._observer.extension_point("PostBind", label, self._monotonic() - started)
        return tuple(problems)

    def _in_order(self, point: str, plugins: Sequence[P], ask: Callable[[P], Status]) -> Status:
        started = self._monotonic()
        status = SUCCESS
        for plugin in plugins:
            status = ask_status(plugin, point, ask, plugin)
            if not status.ok:
                break
        self._observer.extension_point(point, status.label, self._monotonic() - started)
        return status

    def _timed(self, point: str, run: Callable[[], PreFiltered]) -> PreFiltered:
        started = self._monotonic()
        result = run()
        self._observer.extension_point(point, result.status.label, self._monotonic() - started)
        return result

"""Framework: runs the plugins of one profile at each extension point, with the documented meaning of each answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from scheduler_plugins.framework import interfaces as api
from scheduler_plugins.framework.asking import (
    Unrated,
    ask_filter,
    ask_permit,
    ask_post_filter,
    ask_pre_filter,
    ask_score,
    ask_status,
    ask_unrated,
    join,
    registrations_of,
)
from scheduler_plugins.framework.asking_extenders import bind_by, filter_by, in_order, score_by
from scheduler_plugins.framework.diagnosis import Diagnosis
from scheduler_plugins.framework.extending import Extender
from scheduler_plugins.framework.node_info import NodeInfo
from scheduler_plugins.framework.nominated import NominatedFilter, WhatIf
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.points import PluginLists
from scheduler_plugins.framework.queued import QueuedPod
from scheduler_plugins.framework.signing import Signer
from scheduler_plugins.framework.snapshot import Column, Indices, Interned, Snapshot
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import SUCCESS, Code, Status, failed, unresolvable
from scheduler_plugins.framework.timing import BUDGET_SECONDS, HUNG_SECONDS, PluginClock, TimingObserver, Turn
from slacktide.cluster.kinds import Kind
from slacktide.errors import SettingsError

P = TypeVar("P", bound=api.Plugin)


class FrameworkObserver(TimingObserver, Protocol):
    """Told how long each extension point took and which plugins were asked."""

    def extension_point(self, profile: str, point: str, status: str, seconds: float) -> None:
        """An extension point ran once."""
        ...

    def evaluated(self, profile: str, plugins: Sequence[str], point: str) -> None:
        """These plugins were asked in PreFilter, Filter, PreScore or Score."""
        ...


@dataclass(frozen=True, slots=True)
class PreFiltered:
    """Outcome of PreFilter: `rows` are the nodes left to judge; a rejected `status` ends the cycle."""

    status: Status
    rows: Indices
    absent: Status | None = None


@dataclass(frozen=True, slots=True)
class ScoreTable:
    """Scores of the nodes `rows`: totals, and for each plugin what it gave and that normalised, before weighting.

    `by_extender` is what each extender added to the totals, `unrated` the nodes that a plugin could not rate, and why.
    """

    rows: Indices
    totals: NDArray[np.int64]
    by_plugin: Mapping[str, NDArray[np.int64]]
    raw: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    weights: Mapping[str, int] = field(default_factory=dict)
    by_extender: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    unrated: Unrated = field(default_factory=dict)


class Framework:
    """One profile: its plugins in order, their weights, and what they want of snapshot and queue.

    `points` gives the names of the plugins at each extension point (under the names of `points.POINTS`) in order;
    None lets each take part everywhere it can. A call over `budget_seconds` is reported to the observer.
    """

    def __init__(
        self,
        profile: str,
        plugins: Sequence[api.Plugin],
        weights: Mapping[str, int],
        observer: FrameworkObserver,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        points: Mapping[str, Sequence[str]] | None = None,
        extenders: Sequence[Extender] = (),
        nominations: api.Nominations = api.NOTHING,
        budget_seconds: float = BUDGET_SECONDS,
    ) -> None:
        self.profile = profile
        self.plugins = tuple(plugins)
        self._observer = observer
        self._monotonic = monotonic
        self._clock = PluginClock(observer, monotonic, budget_seconds)
        self._extenders = in_order(extenders)
        self._nominations = nominations
        self._nominated = NominatedFilter(self._judge, self, nominations)
        lists = PluginLists(self.plugins, points)
        self._pre_enqueue = lists.at("preEnqueue", [p for p in self.plugins if isinstance(p, api.PreEnqueuePlugin)])
        self._pre_filter = lists.at("preFilter", [p for p in self.plugins if isinstance(p, api.PreFilterPlugin)])
        self._filter = lists.at("filter", [p for p in self.plugins if isinstance(p, api.FilterPlugin)])
        self._post_filter = lists.at("postFilter", [p for p in self.plugins if isinstance(p, api.PostFilterPlugin)])
        self._pre_score = lists.at("preScore", [p for p in self.plugins if isinstance(p, api.PreScorePlugin)])
        self._score = lists.at("score", [p for p in self.plugins if isinstance(p, api.ScorePlugin)])
        self._reserve = lists.at("reserve", [p for p in self.plugins if isinstance(p, api.ReservePlugin)])
        self._permit = lists.at("permit", [p for p in self.plugins if isinstance(p, api.PermitPlugin)])
        self._pre_bind = lists.at("preBind", [p for p in self.plugins if isinstance(p, api.PreBindPlugin)])
        self._bind = lists.at("bind", [p for p in self.plugins if isinstance(p, api.BindPlugin)])
        self._post_bind = lists.at("postBind", [p for p in self.plugins if isinstance(p, api.PostBindPlugin)])
        self._weights = {plugin.name: weights.get(plugin.name) or 1 for plugin in self._score}
        self._sort = self._check(lists, weights)
        self._signer = Signer((*self._pre_filter, *self._filter, *self._pre_score, *self._score))
        self.registrations = registrations_of(self.plugins, self._extenders)

    def _check(self, lists: PluginLists, weights: Mapping[str, int]) -> api.QueueSortPlugin:
        problems = list(lists.problems)
        problems += [
            f"weight of {name}: the plugin does not score in this profile (those that do: {', '.join(self._weights)})"
            for name in weights
            if name not in self._weights
        ]
        problems += [
            f"weight of {name} is {value}; it must be 0 or more" for name, value in weights.items() if value < 0
        ]
        sorts = lists.at("queueSort", [p for p in self.plugins if isinstance(p, api.QueueSortPlugin)])
        if len(sorts) != 1:
            given = ", ".join(plugin.name for plugin in sorts) or "none"
            problems.append(f"exactly one queue sort plugin must be enabled, such as PrioritySort; enabled: {given}")
        if not self._bind and not any(extender.binds for extender in self._extenders):
            problems.append("no bind plugin is enabled, so nothing could be placed; enable DefaultBinder")
        if problems:
            raise SettingsError([f"profile {self.profile}: {problem}" for problem in problems])
        return sorts[0]

    # What the host asks.

    @property
    def kinds(self) -> Sequence[Kind[Any]]:
        """Objects beside pods and nodes that the plugins want listed."""
        kinds = (kind for plugin in self.plugins for kind in plugin.kinds())
        return tuple({(kind.api_version, kind.kind): kind for kind in kinds}.values())

    def hung(self, limit_seconds: float = HUNG_SECONDS) -> Sequence[str]:
        """A sentence about each plugin that has been asked more than `limit_seconds` ago and has not answered."""
        return self._clock.hung(limit_seconds)

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
        with self._clock.turn("PreEnqueue", sampled=False) as turn:
            for plugin in sorted(self._pre_enqueue, key=lambda plugin: plugin.name != first):
                status = turn.ask(ask_status, plugin, "PreEnqueue", plugin.pre_enqueue, pod)
                if not status.ok:
                    return status
        return SUCCESS

    # The scheduling cycle.

    def run_pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, diagnosis: Diagnosis) -> PreFiltered:
        """Ask all PreFilter plugins; which nodes are left to judge, or why none is."""
        started = self._monotonic()
        with self._clock.turn("PreFilter", sampled=state.sampled) as turn:
            result = self._run_pre_filter(turn, state, pod, snapshot, diagnosis)
        self._observer.evaluated(self.profile, turn.asked, "PreFilter")
        self._observed("PreFilter", result.status, started)
        return result

    def _run_pre_filter(
        self, turn: Turn, state: CycleState, pod: PodInfo, snapshot: Snapshot, diagnosis: Diagnosis
    ) -> PreFiltered:
        rows = snapshot.all()
        none = rows[:0]
        skipped: set[str] = set()
        narrowed: frozenset[str] | None = None
        narrowers: list[str] = []
        rejection: Status | None = None
        for plugin in self._pre_filter:
            answer = turn.ask(ask_pre_filter, plugin, state, pod, snapshot)
            status = answer.status
            if status.code is Code.SKIP:
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
        return PreFiltered(SUCCESS, left, unresolvable(by).by(", ".join(narrowers)))

    def signature(self, pod: PodInfo, snapshot: Snapshot) -> Hashable | None:
        """Equal for pods that a cycle would judge and rate alike now; None where a cycle serves one pod only.

        That is so where a plugin looks beyond single nodes, an extender has a say, or room was made for somebody.
        """
        if self._nominations.nodes() or self.nominated_node(pod):
            return None
        if any(extender.interested(pod) for extender in self._extenders):
            return None
        return self._signer.sign(pod, snapshot)

    def run_filter(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices, diagnosis: Diagnosis
    ) -> tuple[Status, Indices]:
        """(Success or Error, rows of the nodes that every plugin lets pass); refusals go to `diagnosis`.

        Where pods that do not give way to `pod` are nominated to a node, it must suit with and without them.
        """
        started = self._monotonic()
        status, rows = self._nominated.run(state, pod, snapshot, rows, diagnosis)
        self._observed("Filter", status, started)
        return status, rows

    def _judge(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices, diagnosis: Diagnosis
    ) -> tuple[Status, Indices]:
        status = SUCCESS
        with self._clock.turn("Filter", sampled=state.sampled) as turn:
            for plugin in self._filter:
                if plugin.name in state.skip_filter or not len(rows):
                    continue
                status, rows = turn.ask(ask_filter, plugin, state, pod, snapshot, rows, diagnosis)
                if not status.ok:
                    break
        self._observer.evaluated(self.profile, turn.asked, "Filter")
        return status, rows

    def run_extender_filters(
        self, pod: PodInfo, snapshot: Snapshot, rows: Indices, diagnosis: Diagnosis
    ) -> tuple[Status, Indices]:
        """(Success or Error, rows that the extenders keep of those that the plugins let pass)."""
        return filter_by(self._extenders, pod, snapshot, rows, diagnosis) if self._extenders else (SUCCESS, rows)

    def nominated_node(self, pod: PodInfo) -> str:
        """Where room was made for the pod; empty when it was not."""
        return self._nominations.node_of(pod.uid) or pod.pod.status.nominated_node_name

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
        self._observed(f"PreFilterExtension{what}", status, started)
        return status

    @property
    def has_post_filter(self) -> bool:
        """Whether anything can make room for a pod that fits nowhere."""
        return bool(self._post_filter)

    def run_post_filter(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, diagnosis: Diagnosis
    ) -> api.PostFilterResult:
        """Ask the PostFilter plugins until one answers anything but Unschedulable."""
        started = self._monotonic()
        result = api.PostFilterResult(unresolvable())
        what_if = WhatIf(self._nominated, self, snapshot)
        with self._clock.turn("PostFilter", sampled=state.sampled) as turn:
            for plugin in self._post_filter:
                answer = turn.ask(ask_post_filter, plugin, state, pod, snapshot, diagnosis, what_if)
                # A nomination that one plugin took back stays so where the next has nothing to say about it.
                nominate = result.nominate if answer.nominate is None else answer.nominate
                going_on = answer.status.code is Code.UNSCHEDULABLE
                # What each says of why it makes no room stays, as in the stock scheduler.
                status = join(result.status, answer.status) if going_on and result.status.parts else answer.status
                result = api.PostFilterResult(status, nominate)
                if not going_on:
                    break
        self._observed("PostFilter", result.status, started)
        return result

    def run_score(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices
    ) -> tuple[Status, ScoreTable]:
        """PreScore, Score, NormalizeScore, weights and extenders. With nothing that scores, each node gets 1."""
        totals = np.zeros(len(rows), dtype=np.int64)
        started = self._monotonic()
        status = self._run_pre_score(state, pod, snapshot, rows)
        self._observed("PreScore", status, started)
        if not status.ok:
            return status, ScoreTable(rows, totals, {})
        status, table = self._run_plugin_scores(state, pod, snapshot, rows)
        if not status.ok:
            return status, ScoreTable(rows, totals, {})
        by_extender = score_by(self._extenders, pod, snapshot, rows) if self._extenders else {}
        for added in by_extender.values():
            table.totals[:] += added
        if not self._score and not by_extender:
            table.totals[:] = 1
        return SUCCESS, replace(table, by_extender=by_extender) if by_extender else table

    def _run_plugin_scores(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices
    ) -> tuple[Status, ScoreTable]:
        totals = np.zeros(len(rows), dtype=np.int64)
        raw: dict[str, NDArray[Any]] = {}
        by_plugin: dict[str, NDArray[np.int64]] = {}
        unrated: dict[str, Mapping[str, str]] = {}

        def ask(plugin: api.ScorePlugin) -> Status:
            scored = ask_score(plugin, state, pod, snapshot, rows)
            if scored.status.ok:
                raw[plugin.name], by_plugin[plugin.name] = scored.raw, scored.normalised
                if scored.unrated:
                    unrated[plugin.name] = scored.unrated
                totals[:] += scored.normalised * self._weights[plugin.name]
            return scored.status

        status = self.run_scorers(state, ask)
        return status, ScoreTable(rows, totals, by_plugin, raw, self._weights, unrated=unrated)

    def run_scorers(self, state: CycleState, ask: Callable[[api.ScorePlugin], Status]) -> Status:
        """Score by `ask`, for each plugin that takes part in it; the first failure ends it."""
        started = self._monotonic()
        status = SUCCESS
        with self._clock.turn("Score", sampled=state.sampled) as turn:
            for plugin in self._score:
                if plugin.name in state.skip_score:
                    continue
                status = turn.ask(ask, plugin)
                if not status.ok:
                    break
        self._observer.evaluated(self.profile, turn.asked, "Score")
        self._observed("Score", status, started)
        return status

    def unrated(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> tuple[Status, Unrated]:
        """(Success or Error, which of `rows` plugins could not rate), for a cycle that did not rate them all."""
        told: dict[str, Mapping[str, str]] = {}
        for plugin in self._score:
            if plugin.name in state.skip_score:
                continue
            status, reasons = ask_unrated(plugin, state, pod, snapshot, rows)
            if not status.ok:
                return status, {}
            if reasons:
                told[plugin.name] = reasons
        return SUCCESS, told

    def _run_pre_score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> Status:
        skipped: set[str] = set()
        with self._clock.turn("PreScore", sampled=state.sampled) as turn:
            for plugin in self._pre_score:
                status = turn.ask(ask_status, plugin, "PreScore", plugin.pre_score, state, pod, snapshot, rows)
                if status.code is Code.SKIP:
                    skipped.add(plugin.name)
                elif status.code is not Code.SUCCESS:
                    return failed(f"PreScore: {status.message}", status.error).by(plugin.name)
        self._observer.evaluated(self.profile, turn.asked, "PreScore")
        state.skip_score = frozenset(skipped)
        return SUCCESS

    def run_reserve(self, state: CycleState, pod: PodInfo, node_name: str) -> Status:
        """Reserve in order; the first that does not agree ends it. The caller then runs `run_unreserve`."""
        return self._in_order(state, "Reserve", self._reserve, lambda plugin: plugin.reserve(state, pod, node_name))

    def run_unreserve(self, state: CycleState, pod: PodInfo, node_name: str) -> tuple[Status, ...]:
        """Unreserve all, last first, also those whose Reserve never ran. Returns what went wrong."""
        return self._all("Unreserve", self._reserve[::-1], lambda plugin: plugin.unreserve(state, pod, node_name))

    def run_permit(self, state: CycleState, pod: PodInfo, node_name: str) -> tuple[Status, Mapping[str, float]]:
        """(Success, WAIT, or what ended it; how long each plugin that waits does so at most, in seconds).

        A refusal or failure ends it at once; after one that waits the others are still asked.
        """
        started = self._monotonic()
        result = SUCCESS
        waits: dict[str, float] = {}
        with self._clock.turn("Permit", sampled=state.sampled) as turn:
            for plugin in self._permit:
                status, seconds = turn.ask(ask_permit, plugin, state, pod, node_name)
                if status.code is Code.WAIT:
                    waits[plugin.name] = seconds
                    result = result if result.code is Code.WAIT else status
                elif not status.ok:
                    result, waits = status, {}
                    break
        self._observed("Permit", result, started)
        return result, waits

    # The binding cycle.

    def run_pre_bind(self, state: CycleState, pod: PodInfo, node_name: str) -> Status:
        """PreBind in order; the first that does not agree ends it."""
        return self._in_order(state, "PreBind", self._pre_bind, lambda plugin: plugin.pre_bind(state, pod, node_name))

    def run_bind(self, state: CycleState, pod: PodInfo, node_name: str) -> Status:
        """An extender that binds this pod, else the first Bind plugin that does not Skip; all Skip is an Error."""
        started = self._monotonic()
        status = bind_by(self._extenders, pod, node_name) if self._extenders else None
        if status is None:
            status = self._bind_by_plugin(state, pod, node_name)
        self._observed("Bind", status, started)
        return status

    def _bind_by_plugin(self, state: CycleState, pod: PodInfo, node_name: str) -> Status:
        with self._clock.turn("Bind", sampled=state.sampled) as turn:
            for plugin in self._bind:
                status = turn.ask(ask_status, plugin, "Bind", plugin.bind, state, pod, node_name)
                if not status.skipped:
                    return status
        return failed("every bind plugin skipped the pod").by(self._bind[-1].name if self._bind else "")

    def run_post_bind(self, state: CycleState, pod: PodInfo, node_name: str) -> tuple[Status, ...]:
        """Tell the PostBind plugins. Returns what went wrong; the placement stands."""
        return self._all("PostBind", self._post_bind, lambda plugin: plugin.post_bind(state, pod, node_name))

    def _in_order(self, state: CycleState, point: str, plugins: Sequence[P], ask: Callable[[P], Status]) -> Status:
        """Ask one after the other; the first that does not agree ends it."""
        started = self._monotonic()
        status = SUCCESS
        with self._clock.turn(point, sampled=state.sampled) as turn:
            for plugin in plugins:
                status = turn.ask(ask_status, plugin, point, ask, plugin)
                if not status.ok:
                    break
        self._observed(point, status, started)
        return status

    def _all(self, point: str, plugins: Sequence[P], tell: Callable[[P], None]) -> tuple[Status, ...]:
        """Tell every plugin, whatever the others make of it; what went wrong."""
        started = self._monotonic()
        problems = []
        with self._clock.turn(point, sampled=False) as turn:
            for plugin in plugins:
                try:
                    turn.ask(tell, plugin)
                except Exception as error:  # noqa: BLE001  # the others must still be told
                    problems.append(failed(f"{point} raised: {error!r}", error).by(plugin.name))
        self._observed(point, problems[0] if problems else SUCCESS, started)
        return tuple(problems)

    def _observed(self, point: str, status: Status, started: float) -> None:
        self._observer.extension_point(self.profile, point, status.label, self._monotonic() - started)

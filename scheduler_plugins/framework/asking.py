"""Asking one plugin one question: its answer is signed, checked, and an exception becomes an Error status."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, ParamSpec

import numpy as np
from numpy.typing import NDArray

from scheduler_plugins.framework import interfaces as api
from scheduler_plugins.framework.diagnosis import Diagnosis, Refusals
from scheduler_plugins.framework.events import ALL_EVENTS, NODE, Action, ClusterEvent, Registration
from scheduler_plugins.framework.extending import Extender
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.score_reasons import ScoreReasons
from scheduler_plugins.framework.snapshot import Indices, Snapshot
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import SUCCESS, Code, Status, failed

Q = ParamSpec("Q")

_NO_SCORES: Final = np.zeros(0, dtype=np.int64)

Unrated = Mapping[str, Mapping[str, str]]
"""By plugin the nodes that it could not rate, and why not."""


def _raised(plugin: api.Plugin, point: str, error: Exception) -> Status:
    return failed(f"plugin {plugin.name} raised in {point}: {error!r}", error).by(plugin.name)


def ask_status(plugin: api.Plugin, point: str, call: Callable[Q, Status], *args: Q.args, **kwargs: Q.kwargs) -> Status:
    """Call one extension point that answers with a status."""
    try:
        return call(*args, **kwargs).by(plugin.name)
    except Exception as error:  # noqa: BLE001  # a plugin that raises fails its cycle, not the scheduler
        return _raised(plugin, point, error)


def ask_pre_filter(
    plugin: api.PreFilterPlugin, state: CycleState, pod: PodInfo, snapshot: Snapshot
) -> api.PreFilterResult:
    """PreFilter of one plugin."""
    try:
        answer = plugin.pre_filter(state, pod, snapshot)
    except Exception as error:  # noqa: BLE001  # a plugin that raises fails its cycle, not the scheduler
        return api.PreFilterResult(_raised(plugin, "PreFilter", error))
    if answer.status.code is Code.SUCCESS or answer.status.code is Code.SKIP:
        return answer
    return api.PreFilterResult(answer.status.by(plugin.name), answer.nodes)


def ask_filter(
    plugin: api.FilterPlugin, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices, diagnosis: Diagnosis
) -> tuple[Status, Indices]:
    """Filter of one plugin on `rows`: (Success or Error, rows that pass); refusals are noted in `diagnosis`."""
    try:
        verdicts = plugin.filter_nodes(state, pod, snapshot, rows)
    except Exception as error:  # noqa: BLE001  # a plugin that raises fails its cycle, not the scheduler
        return _raised(plugin, "Filter", error), rows
    codes = verdicts.codes
    if len(codes) != len(rows):
        return failed(f"plugin {plugin.name} judged {len(codes)} nodes, asked for {len(rows)}").by(plugin.name), rows
    if not codes.any():
        return SUCCESS, rows
    passed = codes == Code.SUCCESS
    rejected = (codes == Code.UNSCHEDULABLE) | (codes == Code.UNRESOLVABLE) | (codes == Code.PENDING)
    broken = np.flatnonzero(~passed & ~rejected)
    if len(broken):
        status = verdicts.status(int(broken[0]))
        where = snapshot.names[rows[broken[0]]]
        return failed(f"Filter on node {where}: {status.message or status.label}", status.error).by(plugin.name), rows
    positions = np.flatnonzero(rejected)
    diagnosis.refusals.append(Refusals(plugin.name, rows[positions], positions, verdicts))
    if (codes == Code.PENDING).any():
        diagnosis.pending_plugins.add(plugin.name)
    if ((codes == Code.UNSCHEDULABLE) | (codes == Code.UNRESOLVABLE)).any():
        diagnosis.unschedulable_plugins.add(plugin.name)
    return SUCCESS, rows[passed]


def ask_post_filter(
    plugin: api.PostFilterPlugin,
    state: CycleState,
    pod: PodInfo,
    snapshot: Snapshot,
    diagnosis: Diagnosis,
    what_if: api.WhatIf,
) -> api.PostFilterResult:
    """PostFilter of one plugin."""
    try:
        answer = plugin.post_filter(state, pod, snapshot, diagnosis, what_if)
    except Exception as error:  # noqa: BLE001  # a plugin that raises fails its cycle, not the scheduler
        return api.PostFilterResult(_raised(plugin, "PostFilter", error))
    return api.PostFilterResult(answer.status.by(plugin.name), answer.nominate)


@dataclass(frozen=True, slots=True)
class Scored:
    """Scores of one plugin: as it gave them, and normalised to 0..100. Empty where `status` is not Success.

    `unrated` says of nodes that it could not rate why not.
    """

    status: Status
    raw: NDArray[Any] = field(default_factory=lambda: _NO_SCORES)
    normalised: NDArray[np.int64] = field(default_factory=lambda: _NO_SCORES)
    unrated: Mapping[str, str] = field(default_factory=dict)


def ask_raw(
    plugin: api.ScorePlugin, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices
) -> tuple[Status, NDArray[Any]]:
    """(Success or Error, scores of one plugin for `rows` as it gives them)."""
    try:
        raw: NDArray[Any] = plugin.score_nodes(state, pod, snapshot, rows)
    except Exception as error:  # noqa: BLE001  # a plugin that raises fails its cycle, not the scheduler
        return _raised(plugin, "Score", error), _NO_SCORES
    if len(raw) != len(rows):
        text = f"plugin {plugin.name} scored {len(raw)} nodes, asked for {len(rows)}"
        return failed(text).by(plugin.name), _NO_SCORES
    return SUCCESS, raw


def ask_score(plugin: api.ScorePlugin, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> Scored:
    """Scores of one plugin for `rows`; anything outside 0..100 after its `normalize` is an Error."""
    status, raw = ask_raw(plugin, state, pod, snapshot, rows)
    return ask_normalised(plugin, state, pod, snapshot, rows, raw) if status.ok else Scored(status)


def ask_normalised(
    plugin: api.ScorePlugin,
    state: CycleState,
    pod: PodInfo,
    snapshot: Snapshot,
    rows: Indices,
    raw: NDArray[Any],
) -> Scored:
    """The raw scores of one plugin for `rows`, normalised; anything outside 0..100 then is an Error."""
    try:
        scores: NDArray[Any] = plugin.normalize(state, pod, raw)
        unrated = plugin.score_reasons(state, pod, snapshot, rows) if isinstance(plugin, ScoreReasons) else {}
    except Exception as error:  # noqa: BLE001  # a plugin that raises fails its cycle, not the scheduler
        return Scored(_raised(plugin, "Score", error))
    if len(scores) != len(rows):
        text = f"plugin {plugin.name} normalised {len(scores)} scores, asked for {len(rows)}"
        return Scored(failed(text).by(plugin.name))
    # NaN is neither, so that it fails too.
    if not (scores.min() >= 0 and scores.max() <= api.MAX_SCORE):
        bad = np.flatnonzero(~((scores >= 0) & (scores <= api.MAX_SCORE)))[0]
        text = (
            f"plugin {plugin.name} gave node {snapshot.names[rows[bad]]} the score {scores[bad]}; "
            f"it must be 0 to {api.MAX_SCORE}"
        )
        return Scored(failed(text).by(plugin.name))
    return Scored(SUCCESS, raw, scores.astype(np.int64, copy=False), unrated)


def ask_unrated(
    plugin: api.ScorePlugin, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices
) -> tuple[Status, Mapping[str, str]]:
    """(Success or Error, which of `rows`, that were rated before, the plugin could not rate, and why not)."""
    if not isinstance(plugin, ScoreReasons):
        return SUCCESS, {}
    try:
        return SUCCESS, plugin.score_reasons(state, pod, snapshot, rows)
    except Exception as error:  # noqa: BLE001  # a plugin that raises fails its cycle, not the scheduler
        return _raised(plugin, "Score", error), {}


def ask_permit(plugin: api.PermitPlugin, state: CycleState, pod: PodInfo, node_name: str) -> tuple[Status, float]:
    """Permit of one plugin: (status, seconds that it waits at most); Skip is no answer here."""
    try:
        answer = plugin.permit(state, pod, node_name)
    except Exception as error:  # noqa: BLE001  # a plugin that raises fails its cycle, not the scheduler
        return _raised(plugin, "Permit", error), 0.0
    status = answer.status
    if status.skipped:
        status = failed(f"plugin {plugin.name} answered Skip in Permit")
    return status.by(plugin.name), answer.timeout_seconds


def join(first: Status, second: Status) -> Status:
    """Two refusals as one: all reasons, the code of the stricter, signed by the first."""
    strict = second.code if second.code is Code.UNRESOLVABLE else first.code
    return Status(strict, first.parts + second.parts, first.plugin)


def registrations_of(
    plugins: Sequence[api.Plugin], extenders: Sequence[Extender] = ()
) -> Mapping[str, Sequence[Registration]]:
    """Events by plugin; extenders are registered for everything under their own names.

    A plugin that does not say is registered for everything. One that registers node additions without taint
    changes gets these too: a new node may be tainted first and become usable only when the taint goes.
    """
    result: dict[str, Sequence[Registration]] = {one.name: (Registration(ALL_EVENTS),) for one in extenders}
    for plugin in plugins:
        if not isinstance(plugin, api.EnqueueExtensions):
            result[plugin.name] = (Registration(ALL_EVENTS),)
            continue
        given = list(plugin.events_to_register())
        actions = [r.event.action for r in given if r.event.resource == NODE]
        if any(action & Action.ADD for action in actions) and not any(
            action & Action.UPDATE_NODE_TAINT for action in actions
        ):
            given.append(Registration(ClusterEvent(NODE, Action.UPDATE_NODE_TAINT)))
        result[plugin.name] = tuple(given)
    return result

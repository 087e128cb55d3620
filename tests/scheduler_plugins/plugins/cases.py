"""What one plugin says of pods, nodes and events, for tables of cases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from scheduler_plugins.framework.diagnosis import Diagnosis
from scheduler_plugins.framework.events import ClusterEvent, Hint
from scheduler_plugins.framework.interfaces import Handle
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.runtime import Framework
from scheduler_plugins.framework.snapshot import Snapshot
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import Code
from slacktide.objects import Node
from tests.scheduler_plugins.build import framework, handle, snapshot_of

FITS, LATER, NEVER = Code.SUCCESS, Code.UNSCHEDULABLE, Code.UNRESOLVABLE


class Objects:
    """Objects by kind, as informers would have them."""

    def __init__(self, by_kind: Mapping[Any, Iterable[Any]] | None = None) -> None:
        self._by_kind = {kind: list(objects) for kind, objects in (by_kind or {}).items()}

    def all(self, kind: Any) -> list[Any]:
        return self._by_kind.get(kind, [])

    def put(self, kind: Any, objects: Iterable[Any]) -> None:
        self._by_kind[kind] = list(objects)

    def get(self, kind: Any, namespace: str, name: str) -> Any:
        found = (o for o in self.all(kind) if (o.metadata.namespace, o.metadata.name) == (namespace, name))
        return next(found, None)


def handle_with(objects: Objects) -> Handle:
    return replace(handle(), objects=objects)


class Judged:
    """One pod before one cluster, through a profile with one plugin."""

    def __init__(self, plugin: Any, who: PodInfo, nodes: list[Node], placed: dict[str, list[Any]] | None = None):
        self.profile: Framework = framework(plugin)
        self.plugin, self.who = plugin, who
        self.snapshot: Snapshot = snapshot_of(self.profile, nodes, placed)
        self.state = CycleState()
        self.diagnosis = Diagnosis(names=self.snapshot.names)
        self.before = self.profile.run_pre_filter(self.state, who, self.snapshot, self.diagnosis)
        assert self.before.status.ok or self.before.status.rejected, self.before.status
        status, self.rows = self.profile.run_filter(self.state, who, self.snapshot, self.before.rows, self.diagnosis)
        assert status.ok, status

    def codes(self) -> dict[str, Code]:
        """Verdict on each node, by name."""
        if self.before.status.rejected:
            return dict.fromkeys(sorted(self.snapshot.names), self.before.status.code)
        refused = self.diagnosis.statuses()
        return {name: refused[name].code if name in refused else FITS for name in sorted(self.snapshot.names)}

    def message(self) -> str:
        self.diagnosis.absent = self.before.absent
        self.diagnosis.absent_count = len(self.snapshot) - len(self.before.rows)
        return self.diagnosis.message()

    def scores(self, *names: str) -> dict[str, int] | None:
        """Normalised scores of the named nodes (all without names); None when the plugin takes no part."""
        rows = np.array([self.snapshot.index[name] for name in names or sorted(self.snapshot.names)], dtype=np.intp)
        status, table = self.profile.run_score(self.state, self.who, self.snapshot, rows)
        assert status.ok, status
        if self.plugin.name in self.state.skip_score:
            return None
        scores = table.by_plugin[self.plugin.name]
        return {self.snapshot.names[row]: int(score) for row, score in zip(rows, scores, strict=True)}

    def without(self, node_name: str, *uids: str) -> Code:
        """Verdict on a node when pods of it were gone."""
        return self._changed(node_name, node_name, uids, ())

    def after(self, removed_from: str, uids: Iterable[str], added: Iterable[PodInfo], judged: str) -> Code:
        """Verdict on `judged` when pods had left one node and others had come to it."""
        return self._changed(removed_from, judged, uids, added)

    def _changed(self, changed: str, judged: str, gone: Iterable[str], come: Iterable[PodInfo]) -> Code:
        state = self.state.clone()
        node = self.snapshot.nodes[self.snapshot.index[changed]].clone()
        for uid in gone:
            removed = node.remove_pod(uid)
            assert removed is not None
            assert self.profile.run_remove_pod(state, self.who, removed, node).ok
        for pod in come:
            node.add_pod(pod)
            assert self.profile.run_add_pod(state, self.who, pod, node).ok
        asked = node if judged == changed else self.snapshot.nodes[self.snapshot.index[judged]]
        one = self.snapshot.single(asked)
        diagnosis = Diagnosis(names=one.names)
        status, rows = self.profile.run_filter(state, self.who, one, one.all(), diagnosis)
        assert status.ok, status
        return FITS if len(rows) else diagnosis.statuses()[judged].code


def hint(plugin: Any, who: PodInfo, event: ClusterEvent, old: Any, new: Any) -> Hint | None:
    """What the plugin's registrations make of an event; None if it is not registered for it."""
    answers = [r.hint(who, old, new) for r in plugin.events_to_register() if r.event.covers(event) and r.hint]
    return (Hint.QUEUE if Hint.QUEUE in answers else Hint.SKIP) if answers else None


def alike(plugin: Any, event: ClusterEvent, one: PodInfo, other: PodInfo) -> bool:
    """Whether the queue asks the plugin about one of two waiting pods only when `event` happens."""
    (keys,) = {r.alike for r in plugin.events_to_register() if r.event.covers(event)}
    return keys is not None and keys(one) == keys(other) and hash(keys(one)) == hash(keys(other))

"""NodeResourcesFit: the pod's requests against what is left of the node's allocatable, and how full that makes it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from scheduler_plugins.framework.events import NODE, POD, Action, ClusterEvent, Hint, Registration
from scheduler_plugins.framework.interfaces import (
    EnqueueExtensions,
    FilterPlugin,
    Handle,
    PreFilterPlugin,
    PreFilterResult,
    PreScorePlugin,
    ScorePlugin,
)
from scheduler_plugins.framework.node_info import NodeInfo
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.registry import Registry
from scheduler_plugins.framework.reusable import Reusable
from scheduler_plugins.framework.snapshot import Bools, Floats, Indices, Snapshot
from scheduler_plugins.framework.state import CycleState, StateKey
from scheduler_plugins.framework.status import SUCCESS, Code, Reason, Status
from scheduler_plugins.framework.verdicts import Verdicts
from scheduler_plugins.plugins.amounts import in_words
from scheduler_plugins.plugins.fit_scoring import FitScorer, ScoringStrategy
from scheduler_plugins.plugins.hints import assigned, held_room, node_of, pod_of
from scheduler_plugins.plugins.rows import index_of
from slacktide.errors import SettingsError
from slacktide.objects import Node
from slacktide.resources import is_extended

WANTED: Final = StateKey[Mapping[str, int]]("NodeResourcesFit/wanted")
"""Requests of the pod that are judged, by resource."""

_FEW_KINDS: Final = 7
_MOST_KINDS: Final = 60
"""Lacking resources are told apart by the bits of one number; pods that ask for more are told node by node."""


class NodeResourcesFitArgs(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Extended resources that are left to somebody else, by name or by what stands before the slash, and scoring."""

    ignored_resources: tuple[str, ...] = ()
    ignored_resource_groups: tuple[str, ...] = ()
    scoring_strategy: ScoringStrategy = ScoringStrategy()

    def problems(self) -> list[str]:
        """What is wrong with the arguments, each thing in one sentence."""
        found = [
            f"ignoredResources: {name} is not an extended resource (such as example.com/gpu) and is always judged"
            for name in self.ignored_resources
            if not is_extended(name)
        ]
        for group in self.ignored_resource_groups:
            if not group or "/" in group:
                found.append(f"ignoredResourceGroups: {group!r} must be what stands before the slash, and no more")
            elif not is_extended(f"{group}/x"):
                found.append(f"ignoredResourceGroups: resources of {group} are not extended and always judged")
        return found + [f"scoringStrategy: {problem}" for problem in self.scoring_strategy.problems()]


class NodeResourcesFit(PreFilterPlugin, FilterPlugin, PreScorePlugin, ScorePlugin, EnqueueExtensions, Reusable):
    """Judges pod count and each requested resource; a request above allocatable itself cannot be cured.

    Has little to prepare, and takes part in PreFilter and PreScore because configurations name it there.
    """

    name = "NodeResourcesFit"

    def __init__(self, args: NodeResourcesFitArgs, handle: Handle) -> None:
        if problems := args.problems():
            raise SettingsError([f"arguments of plugin {self.name}: {problem}" for problem in problems])
        self._ignored = frozenset(args.ignored_resources)
        self._ignored_groups = frozenset(args.ignored_resource_groups)
        self._scorer = FitScorer(args.scoring_strategy)
        self._millis = frozenset({handle.cpu_resource})
        self._bytes = frozenset({handle.memory_resource})
        self._offers = _Offers()

    def _wanted(self, pod: PodInfo) -> Mapping[str, int]:
        if not self._ignored and not self._ignored_groups:
            return pod.requests
        return {name: amount for name, amount in pod.requests.items() if not self._is_ignored(name)}

    def _is_ignored(self, name: str) -> bool:
        group, slash, _ = name.partition("/")
        return name in self._ignored or (bool(slash) and group in self._ignored_groups)

    def pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> PreFilterResult:  # noqa: ARG002  # part of the extension point
        """Never skipped: every pod needs room for one more pod. Tells preemption what is judged."""
        state.write(WANTED, self._wanted(pod))
        return PreFilterResult()

    def filter_nodes(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> Verdicts:  # noqa: ARG002  # part of the extension point
        """Collects every resource that is lacking, as "Insufficient NAME"."""
        wanted = self._wanted(pod)
        if len(rows) == 1 and _fits(wanted, snapshot.nodes[rows[0]]):
            return Verdicts.passed(1)
        lacks = list(_lacks(wanted, snapshot, index_of(snapshot, rows)))
        refused = np.zeros(len(rows), dtype=np.bool_)
        if not lacks:
            return Verdicts.where(refused, Code.UNSCHEDULABLE, lambda _: ())
        hopeless = np.zeros(len(rows), dtype=np.bool_)
        kinds: NDArray[Any] = np.zeros(len(rows), dtype=np.int8 if len(wanted) < _FEW_KINDS else np.int64)
        miss = np.zeros(len(rows))
        for lack in lacks:
            refused |= lack.lacking
            hopeless |= lack.hopeless
            kinds |= lack.lacking.astype(kinds.dtype) << min(lack.number, _MOST_KINDS)
            miss += lack.short
        codes = Code.UNSCHEDULABLE + hopeless.view(np.int8) * np.int8(Code.UNRESOLVABLE - Code.UNSCHEDULABLE)
        told_apart = kinds if len(wanted) < _MOST_KINDS else None
        return Verdicts.where(
            refused, codes, lambda i: self._explain(wanted, snapshot.nodes[rows[i]]), told_apart, miss
        )

    def _explain(self, wanted: Mapping[str, int], node: NodeInfo) -> tuple[Reason, ...]:
        reasons = []
        room = node.allocatable.get("pods", 0)
        if len(node.pods) + 1 > room:
            reasons.append(Reason("Too many pods", f"{len(node.pods)} of {room}"))
        for name, amount in wanted.items():
            free = node.allocatable.get(name, 0) - node.requested.get(name, 0)
            if amount > free:
                asked, left = (in_words(name, value, self._millis, self._bytes) for value in (amount, max(0, free)))
                reasons.append(Reason(f"Insufficient {name}", f"asks for {asked}, free {left}", float(amount - free)))
        return tuple(reasons)

    def pre_score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> Status:  # noqa: ARG002  # part of the extension point
        """Never skipped: a pod without requests counts with defaults."""
        return SUCCESS

    def score_nodes(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> NDArray[Any]:  # noqa: ARG002  # part of the extension point
        """By the scoring strategy; 0 to 100 already."""
        if len(rows) == 1 and (one := self._scorer.score_of(pod, snapshot.nodes[rows[0]])) is not None:
            return np.array([one])
        return self._scorer.score(pod, snapshot, index_of(snapshot, rows), len(rows))

    def reuse_key(self, pod: PodInfo) -> Hashable | None:
        """Requests, and what counts for a container that states none."""
        return tuple(sorted(pod.requests.items())), pod.nonzero_cpu_millis, pod.nonzero_memory_bytes

    def events_to_register(self) -> Sequence[Registration]:
        """A pod that left or shrank, a new node, or a node that grew in something that the pod asks for.

        Taints are named so that they wake nobody.
        """
        node_actions = Action.ADD | Action.UPDATE_NODE_ALLOCATABLE | Action.UPDATE_NODE_TAINT
        return (
            Registration(ClusterEvent(POD, Action.DELETE), self._pod_left, lambda _: None),
            Registration(ClusterEvent(POD, Action.UPDATE_POD_SCALE_DOWN), self._pod_shrank),
            Registration(
                ClusterEvent(NODE, node_actions), self._node_grew, lambda pod: tuple(self._wanted(pod).items())
            ),
        )

    @staticmethod
    def _pod_left(_pod: PodInfo, old: Any, _new: Any) -> Hint:
        return Hint.QUEUE if held_room(pod_of(old)) else Hint.SKIP

    def _pod_shrank(self, pod: PodInfo, old: Any, new: Any) -> Hint:
        changed = pod_of(new)
        if changed.uid == pod.uid:
            return Hint.QUEUE
        before, now = pod_of(old).requests, changed.requests
        freed = any(now.get(name, 0) < before.get(name, 0) for name in self._wanted(pod))
        return Hint.QUEUE if assigned(changed) and freed else Hint.SKIP

    def _node_grew(self, pod: PodInfo, old: Any, new: Any) -> Hint:
        wanted = self._wanted(pod)
        now = self._offers.of(node_of(new))
        if now.get("pods", 0) < 1 or any(amount > now.get(name, 0) for name, amount in wanted.items()):
            return Hint.SKIP
        if old is None:
            return Hint.QUEUE
        before = self._offers.of(node_of(old))
        grew = any(now.get(name, 0) > before.get(name, 0) for name in ("pods", *wanted))
        return Hint.QUEUE if grew else Hint.SKIP


def _fits(wanted: Mapping[str, int], node: NodeInfo) -> bool:
    """Whether one node lacks nothing."""
    if len(node.pods) + 1 > node.allocatable.get("pods", 0):
        return False
    free, used = node.allocatable, node.requested
    return all(amount <= free.get(name, 0) - used.get(name, 0) for name, amount in wanted.items())


@dataclass(frozen=True, slots=True)
class _Lack:
    """One thing that some nodes lack: 0 is room for a pod, the requested resources follow.

    `hopeless` where even the empty node lacks it; `short` says how much of the request is missing, 0 to 1 and more.
    """

    number: int
    lacking: Bools
    hopeless: Bools
    short: Floats


def _lacks(wanted: Mapping[str, int], snapshot: Snapshot, where: Indices | slice) -> Iterator[_Lack]:
    """What is lacking on any of the nodes at `where`."""
    free = snapshot.column("pods_allocatable")[where] - snapshot.column("pod_count")[where]
    full: Bools = free < 1
    if full.any():
        yield _Lack(0, full, np.zeros(len(full), dtype=np.bool_), np.maximum(1.0 - free, 0.0))
    for number, (name, amount) in enumerate(wanted.items(), start=1):
        allocatable = snapshot.allocatable(name)[where]
        free = allocatable - snapshot.requested(name)[where]
        lacking = free < amount
        if lacking.any():
            yield _Lack(number, lacking, allocatable < amount, np.maximum(amount - free, 0) * (1.0 / amount))


class _Offers:
    """Allocatable of the nodes that hints were asked about last: one event is put to every pod that waits."""

    def __init__(self) -> None:
        self._last: tuple[tuple[Node, Mapping[str, int]], ...] = ()

    def of(self, node: Node) -> Mapping[str, int]:
        for known, allocatable in self._last:
            if known is node:
                return allocatable
        allocatable = NodeInfo.of(node).allocatable
        self._last = ((node, allocatable), *self._last[:3])
        return allocatable


def register(registry: Registry) -> None:
    """Make the plugin known by its name."""
    registry.register(NodeResourcesFit.name, NodeResourcesFit, NodeResourcesFitArgs)

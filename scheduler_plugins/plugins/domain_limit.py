"""DomainLimit: at most so many alike pods in one topology domain, wherever the others are.

Unlike a spread constraint it looks at the node's own domain only. Nothing has to be even, so pods may be packed: two
in a full zone and none in an empty one is as good as any. Pods that are assumed or wait at Permit count; those that
end, or have ended, do not.

Who is alike: pods of one namespace that `labelSelector` selects, or that have the same value of `labelKey`. How many:
`maxPods`, or what the pod states for itself (annotation or label `slacktide.io/max-per-domain`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
import numpy as np
from msgspec import Meta

from scheduler_plugins.framework.events import (
    ASSIGNED_POD,
    NODE,
    UNSCHEDULABLE_POD,
    Action,
    ClusterEvent,
    Hint,
    Registration,
)
from scheduler_plugins.framework.interfaces import (
    EnqueueExtensions,
    FilterPlugin,
    PreFilterExtensions,
    PreFilterPlugin,
    PreFilterResult,
)
from scheduler_plugins.framework.node_info import NodeInfo
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.registry import Registry
from scheduler_plugins.framework.reusable import Reusable
from scheduler_plugins.framework.snapshot import Indices, Snapshot
from scheduler_plugins.framework.state import CycleState, StateKey
from scheduler_plugins.framework.status import SKIP, SUCCESS, Code, Reason, Status, unresolvable
from scheduler_plugins.framework.verdicts import Verdicts
from scheduler_plugins.plugins.domains import NO_DOMAIN, DomainNumbers, Domains
from scheduler_plugins.plugins.hints import node_of, pod_of
from scheduler_plugins.plugins.label_selectors import LabelSelector, PodGroup, Selector, selector_from
from scheduler_plugins.plugins.spread_args import ZONE_LABEL
from slacktide.errors import SettingsError

MAX_PER_DOMAIN: Final = "slacktide.io/max-per-domain"
"""Annotation or label of a pod: how many of its kind one domain may have. The annotation goes first."""

_FULL: Final = "node(s) were in a domain with as many alike pods as it may have"
_NO_LABEL: Final = "node(s) didn't have the label that the limit per domain goes by"


class DomainLimitArgs(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Arguments. Without `maxPods` only pods that state a number of their own are limited."""

    topology_key: Annotated[str, Meta(min_length=1, description="Node label whose values are the domains.")] = (
        ZONE_LABEL
    )
    max_pods: Annotated[int, Meta(ge=1, description="Alike pods that one domain may have.")] | None = None
    label_selector: Annotated[
        LabelSelector | None, Meta(description="Pods that are alike, of one namespace; others are not limited.")
    ] = None
    label_key: Annotated[
        str, Meta(description="Pods of one namespace with the same value of this label are alike.")
    ] = ""

    @property
    def alike_by(self) -> str:
        """The label whose value makes pods alike where no selector is set."""
        return self.label_key or "app.kubernetes.io/name"


class _Limit(msgspec.Struct, frozen=True):
    """What binds one pod: at most `most` pods of `group` in a domain."""

    most: int
    group: PodGroup


@dataclass(slots=True)
class _Book:
    """Alike pods by domain."""

    limit: _Limit
    sums: DomainNumbers

    def clone(self) -> _Book:
        """A copy for a what-if question."""
        return _Book(self.limit, self.sums.clone())


_BOOK: Final = StateKey[_Book]("DomainLimit/book")
_LARGEST: Final = 1_000_000


class DomainLimit(PreFilterPlugin, PreFilterExtensions, FilterPlugin, EnqueueExtensions, Reusable):
    """Counts alike pods by domain, once a cycle."""

    name = "DomainLimit"

    def __init__(self, args: DomainLimitArgs) -> None:
        """Raises SettingsError for arguments that contradict each other."""
        if args.label_selector is not None and args.label_key:
            raise SettingsError(
                ["arguments of plugin DomainLimit: labelSelector and labelKey both say who is alike; set one of them"]
            )
        self._args = args

    def _limit(self, pod: PodInfo) -> _Limit | str | None:
        """What binds the pod, None when nothing does, or what is wrong with what it states for itself."""
        stated, labels = _stated(pod), pod.pod.metadata.labels
        if stated is None and self._args.max_pods is None:
            return None
        if isinstance(stated, str):
            return stated
        most = stated or self._args.max_pods or 1
        if self._args.label_selector is not None:
            selector = self._args.label_selector.compiled()
            if selector.selects(labels):
                return _limit(pod, most, selector)
            return (
                None if stated is None else "labelSelector of DomainLimit does not select a pod that asks for a limit"
            )
        key = self._args.alike_by
        if key in labels:
            return _limit(pod, most, selector_from({key: labels[key]}))
        return None if stated is None else f"a pod that asks for a limit per domain needs the label {key}"

    def pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> PreFilterResult:
        """Skip for a pod that is not limited."""
        limit = self._limit(pod)
        if limit is None:
            return PreFilterResult(SKIP)
        if isinstance(limit, str):
            return PreFilterResult(unresolvable(limit))
        domains = Domains(snapshot, self._args.topology_key)
        sums = DomainNumbers.summed(snapshot, domains, snapshot.pods_matching(limit.group))
        state.write(_BOOK, _Book(limit, sums))
        return PreFilterResult()

    def reuse_key(self, pod: PodInfo) -> Hashable | None:
        """Pods that are not limited are alike."""
        return () if self._limit(pod) is None else None

    def add_pod(self, state: CycleState, pod: PodInfo, added: PodInfo, node: NodeInfo) -> Status:  # noqa: ARG002  # part of the extension point
        """Counts `added` in the domain of `node`."""
        _change(state.read(_BOOK), added, node, 1)
        return SUCCESS

    def remove_pod(self, state: CycleState, pod: PodInfo, removed: PodInfo, node: NodeInfo) -> Status:  # noqa: ARG002  # part of the extension point
        """Counts `removed` no more."""
        _change(state.read(_BOOK), removed, node, -1)
        return SUCCESS

    def filter_nodes(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> Verdicts:  # noqa: ARG002  # part of the extension point
        """Refuses nodes without the label, and those whose domain is full."""
        book = state.read(_BOOK)
        ids = book.sums.domains.of(snapshot, rows)
        over = book.sums.at(ids) + 1 - book.limit.most
        lacking = ids == NO_DOMAIN
        codes = np.where(lacking, np.int8(Code.UNRESOLVABLE), np.int8(Code.UNSCHEDULABLE))

        def explain(i: int) -> tuple[Reason, ...]:
            if lacking[i]:
                return (Reason(_NO_LABEL, f"no label {self._args.topology_key}"),)
            has = int(over[i]) + book.limit.most - 1
            where = book.sums.domains.name(int(ids[i]))
            return (Reason(_FULL, f"{where} has {has}, may have {book.limit.most}", float(over[i])),)

        return Verdicts.where(lacking | (over > 0), codes, explain, codes, np.where(lacking, np.inf, over))

    def events_to_register(self) -> Sequence[Registration]:
        """An alike pod goes or becomes another; a node comes or changes its domain; the pod itself changes."""
        nodes = Action.ADD | Action.UPDATE_NODE_LABEL
        return (
            Registration(ClusterEvent(ASSIGNED_POD, Action.DELETE | Action.UPDATE_POD_LABEL), self._freed, self._limit),
            Registration(ClusterEvent(NODE, nodes), self._node_changed, lambda _: None),
            Registration(ClusterEvent(UNSCHEDULABLE_POD, Action.UPDATE), self._own),
        )

    def _freed(self, pod: PodInfo, old: Any, new: Any) -> Hint:
        limit = self._limit(pod)
        if not isinstance(limit, _Limit) or not limit.group.selects(pod_of(old)):
            return Hint.SKIP
        return Hint.SKIP if new is not None and limit.group.selects(pod_of(new)) else Hint.QUEUE

    def _node_changed(self, _pod: PodInfo, old: Any, new: Any) -> Hint:
        key = self._args.topology_key
        domain = node_of(new).metadata.labels.get(key)
        before = None if old is None else node_of(old).metadata.labels.get(key)
        return Hint.QUEUE if domain is not None and domain != before else Hint.SKIP

    def _own(self, pod: PodInfo, old: Any, new: Any) -> Hint:
        changed = pod_of(new)
        if changed.uid != pod.uid:
            return Hint.SKIP
        return Hint.SKIP if self._limit(changed) == self._limit(pod_of(old)) else Hint.QUEUE


def _limit(pod: PodInfo, most: int, selector: Selector) -> _Limit:
    return _Limit(most, PodGroup(selector, frozenset({pod.pod.metadata.namespace}), staying_only=True))


def _stated(pod: PodInfo) -> int | str | None:
    """The number that the pod states for itself; text says what is wrong with it."""
    metadata = pod.pod.metadata
    given = metadata.annotations.get(MAX_PER_DOMAIN, metadata.labels.get(MAX_PER_DOMAIN))
    if given is None:
        return None
    if len(given) <= len(str(_LARGEST)) and given.isascii() and given.isdecimal() and 0 < int(given) <= _LARGEST:
        return int(given)
    return f"{MAX_PER_DOMAIN} of the pod is {given[:40]!r}; it must be a whole number from 1 to {_LARGEST}"


def _change(book: _Book, other: PodInfo, node: NodeInfo, change: int) -> None:
    """`other` came to `node` (1) or left it (-1)."""
    if book.limit.group.matches(other):
        book.sums.add(node, change)


def register(registry: Registry) -> None:
    """Make the plugin known by its name."""
    registry.register(DomainLimit.name, lambda args, _handle: DomainLimit(args), DomainLimitArgs)

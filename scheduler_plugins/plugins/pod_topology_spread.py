"""PodTopologySpread: alike pods spread evenly over the domains of a label.

Filter: hard constraints; a domain takes the pod while it would not have more than `maxSkew` pods above the least
filled domain. Score: soft constraints, and the defaults for pods of a service or controller that ask for none.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

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
    MAX_SCORE,
    EnqueueExtensions,
    FilterPlugin,
    Handle,
    PreFilterExtensions,
    PreFilterPlugin,
    PreFilterResult,
    PreScorePlugin,
    ScorePlugin,
)
from scheduler_plugins.framework.node_info import NodeInfo
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.registry import Registry
from scheduler_plugins.framework.reusable import Reusable
from scheduler_plugins.framework.snapshot import Bools, Indices, Interned, Ints, Snapshot
from scheduler_plugins.framework.state import CycleState, StateKey
from scheduler_plugins.framework.status import SKIP, SUCCESS, Code, Reason, Status, unresolvable
from scheduler_plugins.framework.verdicts import Verdicts
from scheduler_plugins.plugins.domains import NO_DOMAIN, DomainNumbers, Domains, present
from scheduler_plugins.plugins.hints import node_of, pod_of
from scheduler_plugins.plugins.judgements import Judgements
from scheduler_plugins.plugins.node_selector import matching, wanted
from scheduler_plugins.plugins.owner_selectors import KINDS, OwnerSelectors
from scheduler_plugins.plugins.spread_args import PodTopologySpreadArgs
from scheduler_plugins.plugins.spread_constraints import Constraint, constraint_of, constraints_of
from scheduler_plugins.plugins.tolerations import TAINTS, forbidden, tolerations_of, untolerated
from slacktide import names
from slacktide.cluster.kinds import Kind
from slacktide.objects import Node

_TOO_MANY: Final = "node(s) didn't match pod topology spread constraints"
_NO_LABEL: Final = "node(s) didn't match pod topology spread constraints (missing required label)"
_UNRATED: Final = -1
"""Raw score of a node that lacks a key of the constraints."""


@dataclass(slots=True)
class _Book:
    """One hard constraint: pods that count by domain, and the domains that there are (`known`)."""

    constraint: Constraint
    sums: DomainNumbers
    known: Bools

    def clone(self) -> _Book:
        return _Book(self.constraint, self.sums.clone(), self.known)

    def least(self) -> int:
        """Pods in the least filled domain; 0 while there are fewer domains than the constraint wants."""
        if np.count_nonzero(self.known) < self.constraint.min_domains:
            return 0
        return int(self.sums.all()[: len(self.known)][self.known].min())

    def skew(self, ids: NDArray[np.int32]) -> Ints:
        """How far above the least filled one each of some domains would be with the pod."""
        return self.sums.at(ids) + (self.constraint.counts_itself - self.least())


@dataclass(slots=True)
class _Books:
    """All hard constraints of the pod."""

    of: tuple[_Book, ...]

    def clone(self) -> _Books:
        """A copy for a what-if question."""
        return _Books(tuple(book.clone() for book in self.of))


@dataclass(frozen=True, slots=True)
class _Soft:
    """One soft constraint: `weight` of each pod that counts; `sums` is None where each node is a domain of its own."""

    constraint: Constraint
    domains: Domains
    sums: DomainNumbers | None
    weight: float


@dataclass(frozen=True, slots=True)
class _Rating:
    """What Score needs; `every_key`: a node that lacks a key is not rated."""

    soft: tuple[_Soft, ...]
    every_key: bool


_BOOKS: Final = StateKey[_Books]("PodTopologySpread/books")
_RATING: Final = StateKey[_Rating]("PodTopologySpread/rating")


class PodTopologySpread(
    PreFilterPlugin, PreFilterExtensions, FilterPlugin, PreScorePlugin, ScorePlugin, EnqueueExtensions, Reusable
):
    """Counts alike pods by domain, once a cycle, and judges each node by its domains."""

    name = "PodTopologySpread"

    def __init__(self, args: PodTopologySpreadArgs, handle: Handle) -> None:
        """Raises SettingsError for arguments that contradict each other."""
        args.check()
        self._args = args
        self._owners = OwnerSelectors(handle.objects)
        self._judged = Judgements()

    def interned(self) -> Sequence[Interned]:
        """Taints, for constraints that leave out nodes which the pod may not use."""
        return (TAINTS,)

    def kinds(self) -> Sequence[Kind[Any]]:
        """Services and controllers, whose pods the default constraints are for."""
        return KINDS if self._args.defaults else ()

    def _constraints(self, pod: PodInfo, *, hard: bool) -> tuple[Constraint, ...]:
        """The pod's own constraints of one kind, or the defaults where it has none at all."""
        if pod.pod.spec.topology_spread_constraints:
            return tuple(one for one in constraints_of(pod) if one.hard == hard)
        wanted_here = [raw for raw in self._args.defaults if (raw.when_unsatisfiable == "DoNotSchedule") == hard]
        selector = self._owners.of(pod) if wanted_here else None
        return () if selector is None else tuple(constraint_of(pod, raw, selector) for raw in wanted_here)

    def pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> PreFilterResult:
        """Skip for a pod without hard constraints."""
        try:
            constraints = self._constraints(pod, hard=True)
        except msgspec.ValidationError as error:
            return PreFilterResult(unresolvable(f"the pod's topology spread constraints cannot be read: {error}"))
        if not constraints:
            return PreFilterResult(SKIP)
        nodes = _Counted(pod, snapshot, self._judged, _having_all(snapshot, constraints))
        state.write(_BOOKS, _Books(tuple(self._book(one, snapshot, nodes) for one in constraints)))
        return PreFilterResult()

    @staticmethod
    def _book(constraint: Constraint, snapshot: Snapshot, counted: _Counted) -> _Book:
        domains, nodes = Domains(snapshot, constraint.key), counted.by(constraint)
        ids, values = snapshot.label(constraint.key)
        sums = DomainNumbers.summed(snapshot, domains, _alike(constraint, snapshot), nodes)
        return _Book(constraint, sums, present(ids if nodes is None else ids[nodes], len(values)))

    def add_pod(self, state: CycleState, pod: PodInfo, added: PodInfo, node: NodeInfo) -> Status:
        """Counts `added` in the domains of `node`."""
        _change(state.read(_BOOKS), pod, added, node, 1)
        return SUCCESS

    def remove_pod(self, state: CycleState, pod: PodInfo, removed: PodInfo, node: NodeInfo) -> Status:
        """Counts `removed` no more."""
        _change(state.read(_BOOKS), pod, removed, node, -1)
        return SUCCESS

    def filter_nodes(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> Verdicts:  # noqa: ARG002  # part of the extension point
        """Refuses nodes that lack a key, and those whose domain would be too far above the least filled one.

        Of several constraints the first that refuses a node counts.
        """
        books = state.read(_BOOKS).of
        codes = np.zeros(len(rows), dtype=np.int8)
        first = np.zeros(len(rows), dtype=np.int8)
        miss = np.full(len(rows), np.inf)
        for number, book in enumerate(books):
            ids = book.sums.domains.of(snapshot, rows)
            above = book.skew(ids) - book.constraint.max_skew
            lacking = ids == NO_DOMAIN
            refused = np.flatnonzero((lacking | (above > 0)) & (codes == 0))
            codes[refused] = np.where(lacking[refused], np.int8(Code.UNRESOLVABLE), np.int8(Code.UNSCHEDULABLE))
            first[refused] = number
            miss[refused] = np.where(lacking[refused], np.inf, above[refused])

        def explain(i: int) -> tuple[Reason, ...]:
            return (_reason(books[first[i]], snapshot, rows[i : i + 1], float(miss[i])),)

        return Verdicts(codes, explain, None, codes, miss)

    def pre_score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> Status:
        """Skip for a pod without soft constraints."""
        constraints = self._constraints(pod, hard=False)
        if not constraints:
            return SKIP
        every_key = bool(pod.pod.spec.topology_spread_constraints) or not self._args.system_defaults
        having = _having_all(snapshot, constraints) if every_key else None
        rated = rows if having is None else rows[having[rows]]
        counted = _Counted(pod, snapshot, self._judged, having)
        soft = tuple(self._soft(one, snapshot, rated, counted) for one in constraints)
        state.write(_RATING, _Rating(soft, every_key))
        return SUCCESS

    @staticmethod
    def _soft(constraint: Constraint, snapshot: Snapshot, rated: Indices, counted: _Counted) -> _Soft:
        domains = Domains(snapshot, constraint.key)
        if constraint.key == names.HOSTNAME_LABEL:
            return _Soft(constraint, domains, None, math.log(len(rated) + 2))
        candidates = np.zeros(len(domains.values), dtype=np.bool_)
        candidates[domains.of(snapshot, rated)] = True
        alike = _alike(constraint, snapshot)
        sums = DomainNumbers.summed(snapshot, domains, alike, counted.by(constraint))
        return _Soft(constraint, domains, sums, math.log(int(np.count_nonzero(candidates)) + 2))

    def score_nodes(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> NDArray[Any]:  # noqa: ARG002  # part of the extension point
        """Weighted number of alike pods in the node's domains: the fewer the better."""
        rating = state.read(_RATING)
        total = np.zeros(len(rows), dtype=np.float64)
        lacking = np.zeros(len(rows), dtype=np.bool_)
        for soft in rating.soft:
            ids = soft.domains.of(snapshot, rows)
            alike = _alike(soft.constraint, snapshot)[rows] if soft.sums is None else soft.sums.at(ids)
            has_key = ids != NO_DOMAIN
            total += (alike * soft.weight + float(soft.constraint.max_skew - 1)) * has_key
            lacking |= ~has_key
        scores = np.floor(total + 0.5).astype(np.int64)
        return np.where(lacking, _UNRATED, scores) if rating.every_key else scores

    def normalize(self, state: CycleState, pod: PodInfo, scores: NDArray[Any]) -> NDArray[Any]:  # noqa: ARG002  # part of the extension point
        """The fewest become 100; a node that lacks a key has 0."""
        rated = scores != _UNRATED
        if not rated.any():
            return np.zeros(len(scores), dtype=np.int64)
        most, least = int(scores[rated].max()), int(scores[rated].min())
        if most == 0:
            return np.where(rated, MAX_SCORE, 0)
        return np.where(rated, MAX_SCORE * (most + least - scores) // most, 0)

    def reuse_key(self, pod: PodInfo) -> Hashable | None:
        """Pods without constraints of their own are alike, as far as they have none by default."""
        return None if pod.pod.spec.topology_spread_constraints else ()

    def reuse_now(self, pod: PodInfo, snapshot: Snapshot) -> Hashable | None:  # noqa: ARG002  # part of the protocol
        """None for a pod that the default constraints bind."""
        return () if not self._args.defaults or self._owners.of(pod) is None else None

    def events_to_register(self) -> Sequence[Registration]:
        """Alike pods come, go or change; the pod itself changes; nodes come, go or change what they count for."""
        pods = Action.ADD | Action.UPDATE_POD_LABEL | Action.DELETE
        own = Action.UPDATE_POD_LABEL | Action.UPDATE_POD_TOLERATION
        nodes = Action.ADD | Action.DELETE | Action.UPDATE_NODE_LABEL | Action.UPDATE_NODE_TAINT
        return (
            Registration(ClusterEvent(ASSIGNED_POD, pods), self._pod_changed, _spread_by),
            Registration(ClusterEvent(UNSCHEDULABLE_POD, own), self._own),
            Registration(ClusterEvent(NODE, nodes), self._node_changed, _spread_where),
        )

    def _pod_changed(self, pod: PodInfo, old: Any, new: Any) -> Hint:
        """Queue when some constraint counts the pod and did not before, or the other way round."""
        before = pod_of(old) if old is not None else None
        after = pod_of(new) if new is not None else None
        for constraint in self._constraints(pod, hard=True):
            counted = before is not None and constraint.counts(before)
            counts = after is not None and constraint.counts(after)
            # A pod that goes may have begun to go long ago, and has been left out of the count since without a word.
            if counted != counts or (before is not None and after is None and constraint.selects(before)):
                return Hint.QUEUE
        return Hint.SKIP

    @staticmethod
    def _own(pod: PodInfo, _old: Any, new: Any) -> Hint:
        return Hint.QUEUE if pod_of(new).uid == pod.uid else Hint.SKIP

    def _node_changed(self, pod: PodInfo, old: Any, new: Any) -> Hint:
        """Queue when the node counts now and did not, counts no more, or counts for another domain."""
        constraints = self._constraints(pod, hard=True)
        before = None if old is None else _standing(pod, constraints, node_of(old))
        after = None if new is None else _standing(pod, constraints, node_of(new))
        return Hint.QUEUE if before != after else Hint.SKIP


def _spread_by(pod: PodInfo) -> Hashable:
    """What the constraints of a pod follow from: its own, or what its services and controller are found by."""
    if pod.pod.spec.topology_spread_constraints:
        return constraints_of(pod)
    metadata = pod.pod.metadata
    owners = tuple((one.kind, one.name) for one in metadata.owner_references if one.controller)
    return metadata.namespace, frozenset(metadata.labels.items()), owners


def _spread_where(pod: PodInfo) -> Hashable:
    """The same, with what decides which nodes count."""
    return _spread_by(pod), _required(pod), tolerations_of(pod)


class _Counted:
    """Which nodes count for the constraints of one pod; None stands for all of them."""

    def __init__(self, pod: PodInfo, snapshot: Snapshot, judged: Judgements, having: Bools | None) -> None:
        self._pod = pod
        self._snapshot = snapshot
        self._judged = judged
        self._having = having
        self._matching: Bools | None = None

    def by(self, constraint: Constraint) -> Bools | None:
        """Nodes with all keys that the constraint's policies do not leave out."""
        nodes = self._having
        if constraint.honor_affinity:
            nodes = _and(nodes, self._by_affinity())
        if constraint.honor_taints:
            closed, taints = forbidden(self._pod, self._snapshot, self._judged)
            nodes = _and(nodes, ~closed[taints])
        return nodes

    def _by_affinity(self) -> Bools | None:
        required = _required(self._pod)
        if required is None:
            return None
        if self._matching is None:
            self._matching = matching(required, self._snapshot, self._judged)
        return self._matching


def _and(one: Bools | None, other: Bools | None) -> Bools | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _required(pod: PodInfo) -> Any:
    """What the pod requires of its node; None when nothing, or when it cannot be read, which others refuse."""
    try:
        required = wanted(pod)
    except msgspec.ValidationError:
        return None
    return None if required.nothing else required


def _having_all(snapshot: Snapshot, constraints: Iterable[Constraint]) -> Bools | None:
    """Nodes that have the label of every constraint; None when all nodes have."""
    having: Bools | None = None
    for key in {constraint.key for constraint in constraints}:
        ids = snapshot.label(key)[0]
        if not ids.all():
            having = _and(having, ids != NO_DOMAIN)
    return having


def _alike(constraint: Constraint, snapshot: Snapshot) -> Ints:
    """Pods of each node that count."""
    if constraint.counts_nobody:
        return np.zeros(len(snapshot), dtype=np.int64)
    return snapshot.pods_matching(constraint.group)


def _counts_for(pod: PodInfo, constraint: Constraint, node: Node) -> bool:
    """Whether the policies of the constraint let the node count."""
    if constraint.honor_affinity:
        required = _required(pod)
        if required is not None and not required.matches(node):
            return False
    return not constraint.honor_taints or untolerated(node.spec.taints, pod.pod.spec.tolerations) is None


def _change(books: _Books, pod: PodInfo, other: PodInfo, node: NodeInfo, change: int) -> None:
    """`other` came to `node` (1) or left it (-1)."""
    if node.node is None or any(book.constraint.key not in node.labels for book in books.of):
        return
    for book in books.of:
        if book.constraint.counts(other) and _counts_for(pod, book.constraint, node.node):
            book.sums.add(node, change)


def _standing(pod: PodInfo, constraints: Sequence[Constraint], node: Node) -> Mapping[str, str] | None:
    """Domains that a node counts for; None when it lacks a key or no policy lets it count."""
    labels = node.metadata.labels
    if any(constraint.key not in labels for constraint in constraints):
        return None
    counting = [constraint for constraint in constraints if _counts_for(pod, constraint, node)]
    return {constraint.key: labels[constraint.key] for constraint in counting} or None


def _reason(book: _Book, snapshot: Snapshot, row: Indices, miss: float) -> Reason:
    """Why one node was refused, with the numbers of its domain."""
    ids = book.sums.domains.of(snapshot, row)
    if ids[0] == NO_DOMAIN:
        return Reason(_NO_LABEL, f"no label {book.constraint.key}")
    where, has = book.sums.domains.name(int(ids[0])), int(book.sums.at(ids)[0])
    return Reason(_TOO_MANY, f"{where} has {has}, least {book.least()}, max skew {book.constraint.max_skew}", miss)


def register(registry: Registry) -> None:
    """Make the plugin known by its name."""
    registry.register(PodTopologySpread.name, PodTopologySpread, PodTopologySpreadArgs)

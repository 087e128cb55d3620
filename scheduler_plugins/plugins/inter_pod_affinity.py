"""InterPodAffinity: pods that want, or do not want, certain others in their topology domain.

Filter: a required affinity that nothing meets is unresolvable, except for the first pod of a group that wants its
own kind; a required anti-affinity, the pod's own or that of a placed pod, refuses until the others are gone. Score:
preferred terms of the pod and, symmetrically, of the placed pods, whose required affinity counts too.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
import numpy as np
from msgspec import Meta
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
from scheduler_plugins.framework.snapshot import Bools, Indices, Ints, Snapshot, Terms
from scheduler_plugins.framework.state import CycleState, StateKey
from scheduler_plugins.framework.status import SKIP, SUCCESS, Code, Reason, Status, unresolvable
from scheduler_plugins.framework.verdicts import Verdicts
from scheduler_plugins.plugins.affinity_terms import Namespaces, placed_terms_of, terms_of
from scheduler_plugins.plugins.domains import NO_DOMAIN, DomainNumbers, Domains
from scheduler_plugins.plugins.hints import node_of, pod_of
from scheduler_plugins.plugins.label_selectors import InAll, PodGroup
from slacktide.cluster.kinds import NAMESPACES, Kind

_AFFINITY: Final = "node(s) didn't match pod affinity rules"
_ANTI_AFFINITY: Final = "node(s) didn't match pod anti-affinity rules"
_EXISTING: Final = "node(s) didn't satisfy existing pods anti-affinity rules"

_PLACED_ANTI_AFFINITY: Final = Terms(
    "InterPodAffinity/anti-affinity",
    lambda pod: placed_terms_of(pod).anti_affinity,
    lambda term: term.selector.pairs,
)
_PLACED_WISHES: Final = Terms(
    "InterPodAffinity/wishes", lambda pod: placed_terms_of(pod).wishes, lambda wish: wish.term.selector.pairs
)


class InterPodAffinityArgs(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Arguments of the stock plugin."""

    hard_pod_affinity_weight: Annotated[
        int, Meta(ge=0, le=100, description="Weight of a placed pod's required affinity for the new pod.")
    ] = 1
    ignore_preferred_terms_of_existing_pods: Annotated[
        bool, Meta(description="Do not score a pod without preferences of its own by those of placed pods.")
    ] = False


@dataclass(slots=True)
class _Books:
    """Pods that count, by domain. `wanted` are pods that all affinity terms are about, by the domains of each term."""

    group: InAll
    wanted: tuple[DomainNumbers, ...]
    unwanted: tuple[tuple[PodGroup, DomainNumbers], ...]
    closed: dict[str, DomainNumbers]
    namespace_labels: Mapping[str, str]
    snapshot: Snapshot

    def clone(self) -> _Books:
        """A copy for a what-if question."""
        return _Books(
            self.group,
            tuple(numbers.clone() for numbers in self.wanted),
            tuple((group, numbers.clone()) for group, numbers in self.unwanted),
            {key: numbers.clone() for key, numbers in self.closed.items()},
            self.namespace_labels,
            self.snapshot,
        )

    def change(self, pod: PodInfo, other: PodInfo, node: NodeInfo, change: int) -> None:
        """`other` came to `node` (1) or left it (-1)."""
        if self.group.matches(other):
            for numbers in self.wanted:
                numbers.add(node, change)
        for group, numbers in self.unwanted:
            if group.matches(other):
                numbers.add(node, change)
        for term in placed_terms_of(other).anti_affinity:
            if term.about(pod, self.namespace_labels):
                if term.topology_key not in self.closed:
                    domains = Domains(self.snapshot, term.topology_key)
                    self.closed[term.topology_key] = DomainNumbers(domains, np.zeros(0, dtype=np.int64))
                self.closed[term.topology_key].add(node, change)


_BOOKS: Final = StateKey[_Books]("InterPodAffinity/books")
_WEIGHTS: Final = StateKey[tuple[DomainNumbers, ...]]("InterPodAffinity/weights")


class InterPodAffinity(
    PreFilterPlugin, PreFilterExtensions, FilterPlugin, PreScorePlugin, ScorePlugin, EnqueueExtensions, Reusable
):
    """Counts by domain the pods that terms are about, once a cycle, and judges each node by its domains."""

    name = "InterPodAffinity"

    def __init__(self, args: InterPodAffinityArgs, handle: Handle, keys: set[str] | None = None) -> None:
        """`keys`: topology keys of the anti-affinity met so far, shared by the profiles, whose hints are one."""
        self._args = args
        self._namespaces = Namespaces(handle.objects)
        self._keys: set[str] = set() if keys is None else keys

    def kinds(self) -> Sequence[Kind[Any]]:
        """Namespaces, for namespace selectors."""
        return (NAMESPACES,)

    def pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> PreFilterResult:
        """Skip for a pod that wants nothing and that no placed pod minds."""
        try:
            terms = terms_of(pod)
        except msgspec.ValidationError as error:
            return PreFilterResult(unresolvable(f"the pod's pod affinity cannot be read: {error}"))
        labels = self._namespaces.labels(pod.pod.metadata.namespace)
        closed = self._closed(pod, snapshot, labels)
        if not closed and not terms.affinity and not terms.anti_affinity:
            return PreFilterResult(SKIP)
        group = InAll(tuple(self._namespaces.group(term) for term in terms.affinity))
        wanted = tuple(_numbers(snapshot, term.topology_key, group) for term in terms.affinity)
        own = tuple((self._namespaces.group(term), term.topology_key) for term in terms.anti_affinity)
        unwanted = tuple((unliked, _numbers(snapshot, key, unliked)) for unliked, key in own)
        state.write(_BOOKS, _Books(group, wanted, unwanted, closed, labels, snapshot))
        return PreFilterResult()

    def _closed(self, pod: PodInfo, snapshot: Snapshot, labels: Mapping[str, str]) -> dict[str, DomainNumbers]:
        by_key: dict[str, Ints] = {}
        for term, rows, counts in snapshot.terms_about(_PLACED_ANTI_AFFINITY, pod):
            if term.about(pod, labels):
                _on(by_key, term.topology_key, snapshot)[rows] += counts
        self._keys.update(by_key)
        return {key: DomainNumbers.summed(snapshot, Domains(snapshot, key), sums) for key, sums in by_key.items()}

    def add_pod(self, state: CycleState, pod: PodInfo, added: PodInfo, node: NodeInfo) -> Status:
        """Counts `added` in the domains of `node`."""
        state.read(_BOOKS).change(pod, added, node, 1)
        return SUCCESS

    def remove_pod(self, state: CycleState, pod: PodInfo, removed: PodInfo, node: NodeInfo) -> Status:
        """Counts `removed` no more."""
        state.read(_BOOKS).change(pod, removed, node, -1)
        return SUCCESS

    def filter_nodes(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> Verdicts:
        """Affinity first, then the pod's own anti-affinity, then that of placed pods."""
        books = state.read(_BOOKS)
        kinds = np.zeros(len(rows), dtype=np.int8)
        in_the_way = np.zeros(len(rows), dtype=np.int64)
        for numbers in books.closed.values():
            _refuse(kinds, in_the_way, 3, numbers, snapshot, rows)
        for _, numbers in books.unwanted:
            _refuse(kinds, in_the_way, 2, numbers, snapshot, rows)
        if books.wanted:
            kinds[_unmet(books, pod, snapshot, rows)] = 1
        codes = np.where(kinds == 1, np.int8(Code.UNRESOLVABLE), np.int8(Code.UNSCHEDULABLE))
        miss = np.where(kinds == 1, np.inf, in_the_way)

        def explain(i: int) -> tuple[Reason, ...]:
            return (_reason(books, int(kinds[i]), snapshot, rows[i : i + 1], float(miss[i])),)

        return Verdicts.where(kinds > 0, codes, explain, kinds, miss)

    def pre_score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> Status:  # noqa: ARG002  # part of the extension point
        """Skip when neither the pod nor a placed one has a preference about the other."""
        own = terms_of(pod).preferred
        if self._args.ignore_preferred_terms_of_existing_pods and not own:
            return SKIP
        by_key: dict[str, Ints] = {}
        for wish in own:
            weighted = snapshot.pods_matching(self._namespaces.group(wish.term)) * wish.weight
            _on(by_key, wish.term.topology_key, snapshot)[:] += weighted
        labels = self._namespaces.labels(pod.pod.metadata.namespace)
        for placed, where, counts in snapshot.terms_about(_PLACED_WISHES, pod):
            weight = placed.weight or self._args.hard_pod_affinity_weight
            if weight and placed.term.about(pod, labels):
                _on(by_key, placed.term.topology_key, snapshot)[where] += counts * weight
        if not by_key:
            return SKIP
        sums = (DomainNumbers.summed(snapshot, Domains(snapshot, key), weighted) for key, weighted in by_key.items())
        state.write(_WEIGHTS, tuple(sums))
        return SUCCESS

    def score_nodes(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> NDArray[Any]:  # noqa: ARG002  # part of the extension point
        """Sum of the weights of the node's domains."""
        scores = np.zeros(len(rows), dtype=np.int64)
        for numbers in state.read(_WEIGHTS):
            scores += numbers.at(numbers.domains.of(snapshot, rows))
        return scores

    def normalize(self, state: CycleState, pod: PodInfo, scores: NDArray[Any]) -> NDArray[Any]:  # noqa: ARG002  # part of the extension point
        """The least becomes 0 and the greatest 100, cut to whole numbers; all alike become 0."""
        if not len(scores) or (spread := scores.max() - (least := scores.min())) == 0:
            return np.zeros(len(scores), dtype=np.int64)
        scaled: NDArray[np.int64] = (MAX_SCORE * ((scores - least) / spread)).astype(np.int64)
        return scaled

    def reuse_key(self, pod: PodInfo) -> Hashable | None:
        """Pods without terms are alike, as far as no placed pod has terms about them."""
        try:
            terms = terms_of(pod)
        except msgspec.ValidationError:
            return None
        return None if terms.affinity or terms.anti_affinity or terms.preferred else ()

    def reuse_now(self, pod: PodInfo, snapshot: Snapshot) -> Hashable | None:
        """None for a pod that a placed one minds or wishes near."""
        terms = [term for term, _, _ in snapshot.terms_about(_PLACED_ANTI_AFFINITY, pod)]
        terms += [wish.term for wish, _, _ in snapshot.terms_about(_PLACED_WISHES, pod)]
        if not terms:
            return ()
        labels = self._namespaces.labels(pod.pod.metadata.namespace)
        return None if any(term.about(pod, labels) for term in terms) else ()

    def events_to_register(self) -> Sequence[Registration]:
        """A pod came, went or changed its labels, the pod itself too; a node came or changed a domain."""
        pods = Action.ADD | Action.UPDATE_POD_LABEL | Action.DELETE
        nodes = Action.ADD | Action.UPDATE_NODE_LABEL
        return (
            Registration(ClusterEvent(ASSIGNED_POD, pods), self._pod_changed, _as_others_see_it),
            Registration(ClusterEvent(UNSCHEDULABLE_POD, Action.UPDATE_POD_LABEL), self._own),
            Registration(ClusterEvent(NODE, nodes), self._node_changed, terms_of),
        )

    @staticmethod
    def _own(pod: PodInfo, _old: Any, new: Any) -> Hint:
        return Hint.QUEUE if pod_of(new).uid == pod.uid else Hint.SKIP

    def _pod_changed(self, pod: PodInfo, old: Any, new: Any) -> Hint:
        """Queue when a wanted pod came, or one that was in the way is so no more."""
        before = pod_of(old) if old is not None else None
        after = pod_of(new) if new is not None else None
        wanted_before, in_the_way_before = self._stands_to(pod, before)
        wanted_now, in_the_way_now = self._stands_to(pod, after)
        # The last of a kind that goes makes the pod the first of its kind, which may go anywhere.
        came = wanted_now and not wanted_before
        left = wanted_before and not wanted_now and self._stands_to(pod, pod)[0]
        return Hint.QUEUE if came or left or (in_the_way_before and not in_the_way_now) else Hint.SKIP

    def _stands_to(self, pod: PodInfo, other: PodInfo | None) -> tuple[bool, bool]:
        """(`pod` wants `other` near, one of both does not want the other)."""
        if other is None:
            return False, False
        terms = terms_of(pod)
        wanted = InAll(tuple(self._namespaces.group(term) for term in terms.affinity)).matches(other)
        labels = self._namespaces.labels(pod.pod.metadata.namespace)
        unwanted = any(self._namespaces.group(term).matches(other) for term in terms.anti_affinity)
        minds = any(term.about(pod, labels) for term in placed_terms_of(other).anti_affinity)
        return wanted, unwanted or minds

    def _node_changed(self, pod: PodInfo, old: Any, new: Any) -> Hint:
        """Queue when the node has all keys that the affinity needs, and is new or changed a domain that counts."""
        terms, now = terms_of(pod), node_of(new).metadata.labels
        if any(term.topology_key not in now for term in terms.affinity):
            return Hint.SKIP
        if old is None:
            return Hint.QUEUE
        before = node_of(old).metadata.labels
        own = {term.topology_key for term in (*terms.affinity, *terms.anti_affinity)}
        return Hint.QUEUE if any(before.get(key) != now.get(key) for key in own | self._keys) else Hint.SKIP


def _as_others_see_it(pod: PodInfo) -> Hashable:
    """What decides whether a placed pod matters to `pod`."""
    metadata = pod.pod.metadata
    return terms_of(pod), metadata.namespace, frozenset(metadata.labels.items())


def _on(by_key: dict[str, Ints], key: str, snapshot: Snapshot) -> Ints:
    """Sums of each node that are kept for a topology key."""
    if key not in by_key:
        by_key[key] = np.zeros(len(snapshot), dtype=np.int64)
    return by_key[key]


def _numbers(snapshot: Snapshot, key: str, group: PodGroup | InAll) -> DomainNumbers:
    return DomainNumbers.summed(snapshot, Domains(snapshot, key), snapshot.pods_matching(group))


def _refuse(
    kinds: NDArray[np.int8], in_the_way: Ints, kind: int, numbers: DomainNumbers, snapshot: Snapshot, rows: Indices
) -> None:
    """Mark the nodes whose domain has pods in the way; a kind marked later stands."""
    here = numbers.at(numbers.domains.of(snapshot, rows))
    refused = here > 0
    kinds[refused] = kind
    in_the_way[refused] += here[refused]


def _unmet(books: _Books, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> Bools:
    """Nodes that lack a key of the affinity, or whose domains have no wanted pod."""
    lacking = np.zeros(len(rows), dtype=np.bool_)
    without = np.zeros(len(rows), dtype=np.bool_)
    for numbers in books.wanted:
        ids = numbers.domains.of(snapshot, rows)
        lacking |= ids == NO_DOMAIN
        without |= numbers.at(ids) <= 0
    first_of_its_kind = not any(numbers.any() for numbers in books.wanted) and books.group.matches(pod)
    return lacking if first_of_its_kind else lacking | without


def _reason(books: _Books, kind: int, snapshot: Snapshot, row: Indices, miss: float) -> Reason:
    """Why one node was refused, with the domain that did it."""
    if kind == 1:
        return Reason(_AFFINITY, _domain_without(books.wanted, snapshot, row))
    refusing = [numbers for _, numbers in books.unwanted] if kind == 2 else list(books.closed.values())
    for numbers in refusing:
        ids = numbers.domains.of(snapshot, row)
        count = int(numbers.at(ids)[0])
        if count > 0:
            detail = f"{numbers.domains.name(int(ids[0]))} has {count}"
            return Reason(_ANTI_AFFINITY if kind == 2 else _EXISTING, detail, miss)
    return Reason(_ANTI_AFFINITY if kind == 2 else _EXISTING, miss=miss)


def _domain_without(wanted: Iterable[DomainNumbers], snapshot: Snapshot, row: Indices) -> str:
    for numbers in wanted:
        ids = numbers.domains.of(snapshot, row)
        if ids[0] == NO_DOMAIN:
            return f"no label {numbers.domains.key}"
        if numbers.at(ids)[0] <= 0:
            return f"{numbers.domains.name(int(ids[0]))} has none"
    return ""


def register(registry: Registry) -> None:
    """Make the plugin known by its name."""
    keys: set[str] = set()
    registry.register(
        InterPodAffinity.name, lambda args, handle: InterPodAffinity(args, handle, keys), InterPodAffinityArgs
    )

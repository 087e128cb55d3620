"""Extension points. A plugin is one class that subclasses those it takes part in, and knows nothing of its host.

Filter and Score come in two forms with one meaning: columnar (all nodes in one numpy operation over the snapshot) and
per node. Each form answers for the other, so a host may ask either.

A Filter judges by the snapshot that it is given and by the cycle state, never by row numbers kept from PreFilter: the
same state is asked about a snapshot of one node that was changed in a what-if question.

Order of a cycle: PreFilter, Filter, (PostFilter if nothing fits), PreScore, Score, NormalizeScore, Reserve, Permit,
PreBind, Bind, PostBind. Source: Kubernetes scheduling framework, 1.35.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from scheduler_plugins.framework.diagnosis import Diagnosis
from scheduler_plugins.framework.events import Registration
from scheduler_plugins.framework.extending import Extender
from scheduler_plugins.framework.node_info import NodeInfo
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.queued import QueuedPod
from scheduler_plugins.framework.snapshot import Column, Indices, Interned, Snapshot
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import SUCCESS, Status, failed
from scheduler_plugins.framework.verdicts import Verdicts
from slacktide.cluster.indexed import Index
from slacktide.cluster.kinds import HasMetadata, Kind

T = TypeVar("T", bound=HasMetadata)
V = TypeVar("V")

MAX_SCORE: Final = 100


class Plugin(ABC):
    """Base of all plugins."""

    name: ClassVar[str]
    """Unique name, as it stands in configuration, metrics and messages."""

    def columns(self) -> Sequence[Column]:
        """Numbers of each node that the snapshot should keep for this plugin."""
        return ()

    def interned(self) -> Sequence[Interned]:
        """Values of each node that the snapshot should keep for this plugin."""
        return ()

    def kinds(self) -> Sequence[Kind[Any]]:
        """Objects beside pods and nodes that the host must have listed before the first cycle; see `Handle.objects`."""
        return ()


class EnqueueExtensions(ABC):
    """Says which cluster events may make a pod fit that this plugin refused.

    A plugin without it is taken to be helped by every event, which costs needless attempts.
    """

    @abstractmethod
    def events_to_register(self) -> Sequence[Registration]:
        """Events and how to judge them."""


class PreEnqueuePlugin(Plugin):
    """Keeps pods out of the queue; a pod so kept is gated, and makes no attempts."""

    @abstractmethod
    def pre_enqueue(self, pod: PodInfo) -> Status:
        """Success lets the pod in; anything else gates it."""


class QueueSortPlugin(Plugin):
    """Orders the pods that are ready for an attempt; a host has exactly one."""

    @abstractmethod
    def sort_key(self, queued: QueuedPod) -> tuple[Any, ...]:
        """The pod with the least key goes first. May use only what is fixed while the pod stays in the queue."""


@dataclass(frozen=True, slots=True)
class PreFilterResult:
    """Answer of a PreFilter: `nodes` narrows the search to these names; None narrows nothing."""

    status: Status = SUCCESS
    nodes: frozenset[str] | None = None


class PreFilterExtensions(ABC):
    """Lets a what-if question add or remove one pod of a node in the plugin's own state."""

    @abstractmethod
    def add_pod(self, state: CycleState, pod: PodInfo, added: PodInfo, node: NodeInfo) -> Status:
        """`added` is taken to be on `node`."""

    @abstractmethod
    def remove_pod(self, state: CycleState, pod: PodInfo, removed: PodInfo, node: NodeInfo) -> Status:
        """`removed` is taken to be gone from `node`."""


class PreFilterPlugin(Plugin):
    """Looks at the pod before any node is judged: computes what Filter needs, or refuses the pod as a whole."""

    @abstractmethod
    def pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> PreFilterResult:
        """Skip leaves this plugin's Filter and extensions out of the cycle."""


class FilterPlugin(Plugin):
    """Judges nodes, columnar form."""

    @abstractmethod
    def filter_nodes(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> Verdicts:
        """Verdict on each node of `rows` (rows of the snapshot), in that order."""

    def filter_node(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> Status:
        """The same verdict on one node."""
        verdicts = self.filter_nodes(state, pod, snapshot, np.array([row], dtype=np.intp))
        return verdicts.status(0).by(self.name)


class NodeFilterPlugin(FilterPlugin):
    """Judges nodes one by one."""

    @abstractmethod
    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        """Success, or a refusal with its reasons."""

    def filter_nodes(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> Verdicts:
        """Asks `filter` for each node."""
        return Verdicts.of([self.filter(state, pod, snapshot.nodes[row]) for row in rows])


class WhatIf(Protocol):
    """Asks the Filter plugins of the profile about a node as it is not. `node` is a clone; the snapshot stays as it is.

    `state` must be a clone of the cycle's, one for each node: plugins keep their what-if books there.
    """

    def judge(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        """Success, the first refusal, or Error: all Filter plugins, pods nominated to the node counted."""
        ...

    def add_pod(self, state: CycleState, pod: PodInfo, added: PodInfo, node: NodeInfo) -> Status:
        """Put `added` on `node` and tell the plugins (PreFilterExtensions)."""
        ...

    def remove_pod(self, state: CycleState, pod: PodInfo, removed: PodInfo, node: NodeInfo) -> Status:
        """Take `removed` off `node` and tell the plugins."""
        ...


@dataclass(frozen=True, slots=True)
class PostFilterResult:
    """Answer of a PostFilter; Success means that it made room and a later attempt may succeed.

    `nominate` names the node on which room was made; empty text takes a nomination back; None changes none.
    """

    status: Status
    nominate: str | None = None


class PostFilterPlugin(Plugin):
    """Runs when no node fits, and may make room."""

    @abstractmethod
    def post_filter(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, diagnosis: Diagnosis, what_if: WhatIf
    ) -> PostFilterResult:
        """Unschedulable lets the next plugin try; Success, unresolvable and Error end the search."""


class PreScorePlugin(Plugin):
    """Computes what Score needs, once a cycle."""

    @abstractmethod
    def pre_score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> Status:
        """Skip leaves this plugin's Score out of the cycle; any other answer but Success is an error."""


class ScorePlugin(Plugin):
    """Rates the nodes that fit, columnar form."""

    @abstractmethod
    def score_nodes(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> NDArray[Any]:
        """Raw score of each node of `rows`, in that order. Higher is better after `normalize`."""

    def normalize(self, state: CycleState, pod: PodInfo, scores: NDArray[Any]) -> NDArray[Any]:  # noqa: ARG002  # part of the extension point
        """Bring raw scores of one cycle to 0..100, without changing `scores`; the default takes them to be there."""
        return scores


class NodeScorePlugin(ScorePlugin):
    """Rates nodes one by one."""

    @abstractmethod
    def score(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> float:
        """Raw score of one node."""

    def score_nodes(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> NDArray[Any]:
        """Asks `score` for each node."""
        return np.array([self.score(state, pod, snapshot.nodes[row]) for row in rows], dtype=np.float64)


class ReservePlugin(Plugin):
    """Keeps books of its own about placements that are under way."""

    @abstractmethod
    def reserve(self, state: CycleState, pod: PodInfo, node_name: str) -> Status:
        """Book the placement; anything but Success undoes the cycle."""

    @abstractmethod
    def unreserve(self, state: CycleState, pod: PodInfo, node_name: str) -> None:
        """Undo `reserve`. Called also where `reserve` never ran, and possibly twice: must be idempotent."""


@dataclass(frozen=True, slots=True)
class PermitResult:
    """Answer of a Permit. With status WAIT the pod keeps its place until every plugin that waits has allowed it.

    After `timeout_seconds` (at most 900) the whole pod is refused in the name of the plugin.
    """

    status: Status
    timeout_seconds: float = 0.0


class PermitPlugin(Plugin):
    """Lets a placement go on, ends it, or makes it wait for others; the pod counts on its node meanwhile."""

    @abstractmethod
    def permit(self, state: CycleState, pod: PodInfo, node_name: str) -> PermitResult:
        """Success, a refusal, or WAIT."""


class PreBindPlugin(Plugin):
    """Prepares the node or the pod just before binding."""

    @abstractmethod
    def pre_bind(self, state: CycleState, pod: PodInfo, node_name: str) -> Status:
        """Anything but Success undoes the placement."""


class BindPlugin(Plugin):
    """Tells the API server where the pod goes."""

    @abstractmethod
    def bind(self, state: CycleState, pod: PodInfo, node_name: str) -> Status:
        """Skip leaves it to the next plugin."""


class PostBindPlugin(Plugin):
    """Told of each placement that succeeded."""

    @abstractmethod
    def post_bind(self, state: CycleState, pod: PodInfo, node_name: str) -> None:
        """Informational; cannot undo anything."""


def default_normalize(scores: NDArray[Any], *, reverse: bool = False) -> NDArray[np.int64]:
    """Scale so that the largest raw score becomes 100, in whole numbers; `reverse` makes the smallest the best.

    All zero stays zero, or becomes 100 when reversed, as in the stock scheduler.
    """
    raw = scores.astype(np.int64)
    largest = int(raw.max()) if len(raw) else 0
    if largest == 0:
        return np.full(len(raw), MAX_SCORE, dtype=np.int64) if reverse else raw
    scaled = raw * MAX_SCORE // largest
    return MAX_SCORE - scaled if reverse else scaled


class WaitingPod(Protocol):
    """A pod that waits at Permit. The first decision counts; later ones change nothing."""

    @property
    def pod(self) -> PodInfo:
        """The pod, as it was when it began to wait."""
        ...

    @property
    def node_name(self) -> str:
        """Where it is assumed."""
        ...

    def pending(self) -> frozenset[str]:
        """Plugins that have not allowed it yet."""
        ...

    def allow(self, plugin: str) -> None:
        """`plugin` waits no longer; the pod goes on once no plugin does."""
        ...

    def reject(self, plugin: str, message: str) -> None:
        """End the placement, in the name of `plugin`."""
        ...


class WaitingPods(Protocol):
    """All pods that wait at Permit in this process, of all profiles."""

    def get(self, uid: str) -> WaitingPod | None:
        """None for a pod that does not wait."""
        ...

    def all(self) -> Sequence[WaitingPod]:
        """Those that wait now."""
        ...

    def allow_together(self, uids: Collection[str], plugin: str) -> bool:
        """`plugin` lets all of these go on, or, where one of them waits no longer, none (False)."""
        ...

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call `call` on another thread once that time has passed, as exactly as timeouts are kept; must be quick."""
        ...


class ObjectStore(Protocol):
    """Objects that a plugin has named in `kinds`, as informers have them; must not be changed."""

    def all(self, kind: Kind[T]) -> Iterable[T]:
        """All objects of a kind. Raises KeyError for one that no plugin named."""
        ...

    def get(self, kind: Kind[T], namespace: str, name: str) -> T | None:
        """One object; `namespace` is empty for a kind without. Raises KeyError likewise."""
        ...

    def indexed(self, kind: Kind[T], index: Index[T, V], value: Hashable) -> Sequence[V]:
        """What `index` keeps of the objects that it finds under `value`. Raises KeyError likewise."""
        ...


class Nominations(Protocol):
    """Pods for which room was made on a node and that are not there yet."""

    def on(self, node_name: str) -> Sequence[PodInfo]:
        """Pods nominated to the node."""
        ...

    def node_of(self, uid: str) -> str:
        """Where a pod is nominated; empty when it is not."""
        ...

    def nodes(self) -> Collection[str]:
        """Names of the nodes to which any pod is nominated."""
        ...


class Evictor(Protocol):
    """Removes the victims of a preemption."""

    def preempt(self, victim: PodInfo, by: PodInfo, node_name: str) -> Status:
        """Ask the API to delete `victim`, told apart by uid; returns when the API has answered. Gone is Success."""
        ...

    def withdraw(self, pod: PodInfo) -> Status:
        """Take back the nomination of `pod`, because another takes the room: at once here, then in its status."""
        ...

    def attempted(self) -> None:
        """To be told when room is looked for by removing pods; for the metrics."""
        ...

    def chosen(self, victims: Sequence[PodInfo]) -> None:
        """To be told which pods are to go, before any goes; for the metrics."""
        ...


class _Nothing:
    """Stands for what a host does not have: nobody waits, no object is known, nobody is nominated."""

    def all(self, kind: object = None) -> Sequence[Any]:  # noqa: ARG002  # part of two protocols
        return ()

    def get(self, *_: object) -> None:
        return None

    def indexed(self, *_: object) -> Sequence[Any]:
        return ()

    def allow_together(self, uids: Collection[str], plugin: str) -> bool:  # noqa: ARG002  # part of the protocol
        return not uids

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Nothing waits here, so nothing is put off."""

    def on(self, node_name: str) -> Sequence[PodInfo]:  # noqa: ARG002  # part of the protocol
        return ()

    def node_of(self, uid: str) -> str:  # noqa: ARG002  # part of the protocol
        return ""

    def nodes(self) -> Collection[str]:
        return ()

    def preempt(self, victim: PodInfo, by: PodInfo, node_name: str) -> Status:  # noqa: ARG002  # part of the protocol
        return failed("this host cannot preempt")

    def withdraw(self, pod: PodInfo) -> Status:  # noqa: ARG002  # part of the protocol
        return failed("this host has no nominations")

    def attempted(self) -> None:
        return None

    def chosen(self, victims: Sequence[PodInfo]) -> None:  # noqa: ARG002  # part of the protocol
        return None


NOTHING: Final = _Nothing()


def _activate_nothing(_: Iterable[PodInfo]) -> None:
    """Without a queue there is nothing to activate."""


def _at_once(task: Callable[[], None]) -> None:
    """A host without threads does everything at once."""
    task()


@dataclass(frozen=True, slots=True)
class Handle:
    """What a host lends its plugins. `wall_seconds` is the reader's clock (seconds since the epoch).

    `activate` moves pods of the queue to the front of what comes next: no backoff, no waiting for an event. `submit`
    runs what waits for the API, or for others, beside the scheduling loop. A host without queue, waiting pods,
    nominations, threads or informers has the defaults.
    """

    wall_seconds: Callable[[], float]
    bind: Callable[[PodInfo, str], Status]
    cpu_resource: str
    memory_resource: str
    monotonic: Callable[[], float] = time.monotonic
    waiting: WaitingPods = NOTHING
    objects: ObjectStore = NOTHING
    nominations: Nominations = NOTHING
    evictor: Evictor = NOTHING
    activate: Callable[[Iterable[PodInfo]], None] = _activate_nothing
    extenders: Sequence[Extender] = ()
    submit: Callable[[Callable[[], None]], object] = _at_once

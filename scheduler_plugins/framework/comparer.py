"""Comparer: what cache and queue believe against what the API server has, for whoever suspects that they differ.

The scheduler learns of everything through watches and books of its own; a mistake there would stay unseen, because
every later change would be booked on top of it. A comparison is asked for with SIGUSR2 and written to the log. Nothing
is corrected: a difference is a bug, and a restart builds both anew.
"""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, fields
from types import FrameType
from typing import Final, Protocol

from scheduler_plugins.framework.cache import CacheContents
from slacktide.errors import SlacktideError
from slacktide.objects import Node, Pod, is_terminal, is_terminating, pod_key
from slacktide.observe import get_logger

_log = get_logger("scheduler.comparer")

SETTLE_SECONDS: Final = 5.0
"""Between two looks. What is under way (a watch event, a binding) has arrived by the second one."""

SIGNAL: Final = signal.SIGUSR2


@dataclass(frozen=True, slots=True)
class Differences:
    """What does not agree, in words that name the object."""

    missing_nodes: frozenset[str] = frozenset()
    surplus_nodes: frozenset[str] = frozenset()
    missing_pods: frozenset[str] = frozenset()
    surplus_pods: frozenset[str] = frozenset()
    misplaced_pods: frozenset[str] = frozenset()
    lost_pods: frozenset[str] = frozenset()
    stale_in_queue: frozenset[str] = frozenset()
    wrong_sums: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) for field in fields(self))

    def also(self, other: Differences) -> Differences:
        """Those that both have."""
        return Differences(
            **{field.name: getattr(self, field.name) & getattr(other, field.name) for field in fields(self)}
        )


def compare(
    held: CacheContents, queued: Collection[str], nodes: Iterable[Node], pods: Iterable[Pod], ours: Collection[str]
) -> Differences:
    """Cache and queue against nodes and pods of the API.

    `queued` are uids of the queue, those being attempted included; `ours` names the profiles. A pod that ended is not
    there; one that is only assumed may have no node in the API yet; one that is being deleted need not be queued.
    """
    living = {pod.metadata.uid: pod for pod in pods if not is_terminal(pod)}
    placed = {uid: pod for uid, pod in living.items() if pod.spec.node_name}
    waiting = {uid: pod for uid, pod in living.items() if not pod.spec.node_name and pod.spec.scheduler_name in ours}
    names = {node.metadata.name for node in nodes}
    return Differences(
        missing_nodes=frozenset(names - held.nodes),
        surplus_nodes=frozenset(held.nodes - names),
        missing_pods=frozenset(pod_key(pod) for uid, pod in placed.items() if uid not in held.pods),
        surplus_pods=frozenset(
            f"{held.keys[uid]} on {node}"
            for uid, node in held.pods.items()
            if uid not in placed and not (uid in held.assumed and uid in waiting)
        ),
        misplaced_pods=frozenset(
            f"{pod_key(pod)} on {held.pods[uid]}, by the API on {pod.spec.node_name}"
            for uid, pod in placed.items()
            if held.pods.get(uid, pod.spec.node_name) != pod.spec.node_name
        ),
        lost_pods=frozenset(
            pod_key(pod)
            for uid, pod in waiting.items()
            if uid not in queued and uid not in held.pods and not is_terminating(pod)
        ),
        stale_in_queue=frozenset(uid for uid in queued if uid not in waiting),
        wrong_sums=frozenset(held.wrong_sums),
    )


class _Books(Protocol):
    """The cache, as far as it is compared."""

    def contents(self) -> CacheContents:
        """All that it holds."""
        ...


class _Waiting(Protocol):
    """The queue, as far as it is compared."""

    def uids(self) -> frozenset[str]:
        """Pods that wait or are being attempted."""
        ...


class Comparer:
    """Compares twice, and tells only of what differed both times.

    `nodes` and `pods` list the API and may raise a SlacktideError; `wait(seconds)` sleeps, True when the process stops.
    """

    def __init__(
        self,
        cache: _Books,
        queue: _Waiting,
        nodes: Callable[[], Iterable[Node]],
        pods: Callable[[], Iterable[Pod]],
        ours: Iterable[str],
        wait: Callable[[float], bool],
    ) -> None:
        self._cache = cache
        self._queue = queue
        self._nodes = nodes
        self._pods = pods
        self._ours = frozenset(ours)
        self._wait = wait

    def compare(self) -> Differences:
        """What differs, and still does a little later. Raises what the lists raise."""
        first = self._look()
        if not first or self._wait(SETTLE_SECONDS):
            return Differences()
        return first.also(self._look())

    def report(self) -> None:
        """Compare, and write the outcome to the log."""
        try:
            differences = self.compare()
        except SlacktideError as error:
            _log.warning("cache not compared, the API could not be listed", error=str(error))
            return
        if not differences:
            _log.info("cache and queue agree with the API")
            return
        named = {field.name: sorted(getattr(differences, field.name)) for field in fields(differences)}
        _log.error("cache or queue differ from the API", **{name: those for name, those in named.items() if those})

    def _look(self) -> Differences:
        nodes, pods = list(self._nodes()), list(self._pods())
        return compare(self._cache.contents(), self._queue.uids(), nodes, pods, self._ours)


class OnSignal:
    """Calls `action` on a thread of its own for each SIGUSR2, one at a time. Use as a context manager.

    Only the main thread may enter it (ValueError otherwise). An action that raises is logged.
    """

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action
        # The one kind of queue that a signal handler may put to while the thread it interrupts holds its lock.
        self._asked: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="compare", daemon=True)
        self._old: Callable[[int, FrameType | None], object] | int | None = None

    def __enter__(self) -> OnSignal:
        self._old = signal.signal(SIGNAL, lambda _number, _frame: self._asked.put(True))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Give the signal back; an action under way is not waited for."""
        signal.signal(SIGNAL, self._old)
        self._asked.put(False)

    def _run(self) -> None:
        while self._asked.get():
            try:
                self._action()
            except Exception:  # noqa: BLE001  # whoever asks a second time must be heard
                _log.exception("comparison failed")

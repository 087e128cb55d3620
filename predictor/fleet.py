"""What is in memory of every node: its newest sample, when it was heard of, and its recent use on the slot grid.

One sample without a measurement (an agent that has just started, a counter that was reset) leaves the one before in
force until that is stale: a glitch neither closes a node nor lets anything rise.

The rows of a node are the use of the pods that are on it now: a pod that moves takes its use along
(`predictor.members`).

Thread-safe: streams write, the forecast pass reads. The pass never waits for the disk.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from predictor.history import Window
from predictor.members import Change, Pods, PodTable
from predictor.models.base import Floats, History, Members
from predictor.pod_rows import Peak
from predictor.pods import Home, PodUse
from predictor.samples import Sample
from predictor.slots import SLOT_SECONDS, OpenSlots, Rows, slot_of
from predictor.store.columns import PodHours, PodReport
from slacktide.forecast import Zone

MEMBER_DAYS: Final = 7.0
SETTLED_SLOTS: Final = 12
"""So long after a change of its pods a node's use tells nothing about a forecast made before."""

_DAY_SECONDS: Final = 86400
_SPARE_SLOTS: Final = _DAY_SECONDS // SLOT_SECONDS
_LONG_AGO: Final = -(10**9)


@dataclasses.dataclass(slots=True)
class _Node:
    home: Home
    windows: OpenSlots = dataclasses.field(default_factory=OpenSlots)
    latest: Sample | None = None
    measured: float | None = None
    heard: float | None = None
    closed: str = ""
    zones: tuple[Zone, ...] = ()
    changed_slot: int = _LONG_AGO

    def take(self, sample: Sample, measured: float, closed: str, zones: tuple[Zone, ...]) -> bool:
        """Whether the agent closed the node with this sample."""
        closes = False
        if self.heard is None or measured > self.heard:
            closes = bool(closed) and not self.closed
            self.heard, self.closed, self.zones = measured, closed, zones
        if self.measured is not None and measured <= self.measured:
            return closes
        if self.latest is None or _complete(sample) or not _complete(self.latest):
            self.latest, self.measured = sample, measured
        return closes


@dataclasses.dataclass(frozen=True, slots=True)
class FleetView:
    """All nodes at one moment; lists and columns run in the order of `names`.

    cpu, memory  LS + SYSTEM use in complete slots, as `predictor.slots` says, millicores and bytes, with the pods
                 behind it; requests are not filled in. The arrays are views: what a late sample adds shows in them
    open_cpu, open_memory  (nodes,) the same of the slots that are not complete yet, NaN = nothing measured in them
    covered_seconds  (nodes,) time with a CPU measurement inside the window, whole slots
    latest       newest sample of each node that measured LS and SYSTEM; the newest of any kind while there was none
                 like that; None when no sample came since the start
    measured     monotonic time at which its window ended, None likewise
    heard        monotonic time at which the window of the newest sample of any kind ended, None likewise
    closed       why the agent asked that nothing more be sold, by its newest sample of any kind; empty when it may
    zones        NUMA zones of each node by that sample, none where there is one or they are not known
    listed       uids of the pods that the newest sample of each node names; the same list as long as it names the same
    settled      (nodes,) neither did a pod of another kind come nor were rows corrected for an hour
    pods         the members of `cpu` and `memory`; a pod that came after the newest complete slot is not among them
    """

    names: list[str]
    cpu: History
    memory: History
    open_cpu: Floats
    open_memory: Floats
    covered_seconds: Floats
    latest: list[Sample | None]
    measured: list[float | None]
    heard: list[float | None]
    closed: list[str]
    zones: list[tuple[Zone, ...]]
    listed: list[list[str]]
    settled: npt.NDArray[np.bool_]
    pods: Pods


@dataclasses.dataclass(frozen=True, slots=True)
class _Closed:
    """What is worked out once a slot."""

    slot: int
    cpu: Members
    memory: Members
    pods: Pods
    covered: Floats


class Fleet:
    """Memory of the predictor over the last `window_days`. `on_news`: a node speaks after silence, or closes."""

    def __init__(
        self,
        window_days: float,
        silence_seconds: float,
        on_news: Callable[[], None],
        member_days: float = MEMBER_DAYS,
    ) -> None:
        slots = math.ceil(window_days * _DAY_SECONDS / SLOT_SECONDS)
        self._lock = threading.Lock()
        self._cpu = Rows(slots, min(slots, _SPARE_SLOTS))
        self._memory = Rows(slots, min(slots, _SPARE_SLOTS))
        self._pods = PodTable(min(member_days, window_days))
        self._nodes: dict[str, _Node] = {}
        self._holes = False
        self._closed: _Closed | None = None
        self._silence = silence_seconds
        self._on_news = on_news

    def observe(
        self,
        name: str,
        sample: Sample,
        measured: float,
        closed: str = "",
        pods: Sequence[PodUse] = (),
        zones: tuple[Zone, ...] = (),
    ) -> None:
        """Take a sample whose window ended at monotonic time `measured`. Repeats and re-orders change nothing.

        `closed` is why its agent asks that nothing more be sold there; `pods` are its LS and SYSTEM pods, `zones` its
        NUMA zones with what each has.
        """
        with self._lock:
            node = self._nodes.get(name) or self._create(name)
            slot = slot_of(sample.end_millis)
            self._remember(node, slot, sample)
            # An agent that could not list its pods names none; that they are gone is believed when LS uses nothing.
            if pods or (sample.ls_cpu_mean == 0 and node.home.uids):
                newest = node.heard is None or measured > node.heard
                arrived, changes = self._pods.take(node.home, slot, sample.end_millis, pods, newest)
                if arrived:
                    node.changed_slot = max(node.changed_slot, slot)
                if changes:
                    self._correct(changes, slot)
            news = node.measured is None or measured - node.measured > self._silence
            closes = node.take(sample, measured, closed, zones)
        if news or closes:
            self._on_news()

    def _remember(self, node: _Node, slot: int, sample: Sample) -> None:
        column = node.home.column
        cpu, memory = sample.protected_cpu_mean, sample.protected_memory_max
        if memory is not None:
            self._memory.observe(column, slot, memory)
        if cpu is not None:
            value = node.windows.put(slot, sample.end_millis, cpu, self._cpu.get(column, slot))
            self._cpu.put(column, slot, value)

    def _correct(self, changes: Iterable[Change], slot: int) -> None:
        by_home = {id(node.home): node for node in self._nodes.values()}
        for change in changes:
            node = by_home.get(id(change.home))
            if node is None:
                continue
            node.changed_slot = max(node.changed_slot, slot)
            self._cpu.add(change.home.column, change.first, change.cpu)
            self._memory.add(change.home.column, change.first, change.memory)

    def restore(self, window: Window) -> None:
        """Take use that the history remembers; it brings no newest sample, so a node stays unheard of.

        May be called for one part of the history after another.
        """
        with self._lock:
            self._closed = None
            nodes = [self._nodes.get(name) or self._create(name) for name in window.names]
            columns = np.asarray([node.home.column for node in nodes], dtype=np.int64)
            if len(columns):
                self._cpu.observe_at(columns[window.node], window.slot, window.cpu_millis)
                self._memory.observe_at(columns[window.node], window.slot, window.memory_bytes)

    def restore_pods(self, hours: PodHours) -> None:
        """The same for the hours of pods."""
        with self._lock:
            self._closed = None
            homes = [(self._nodes.get(pod.node) or self._create(pod.node)).home for pod in hours.pods]
            self._pods.restore(hours, homes)

    def take_pods(self) -> PodReport:
        """What pods used and the history has not been told of yet."""
        with self._lock:
            told = self._pods.report()
        return told()

    def forget(self, name: str) -> None:
        """Drop a node that is gone."""
        with self._lock:
            node = self._nodes.pop(name, None)
            if node is not None:
                self._pods.forget(node.home)
                self._holes = True

    def set_groups(self, groups: Mapping[str, str]) -> None:
        """Say which controller each pod belongs to, by uid; without it groups are guessed from names."""
        with self._lock:
            self._pods.set_groups(groups)

    def pod_use(self, uid: str) -> Peak | None:
        """What the newest sample of its node says of a pod, by uid; None when that sample does not name it."""
        with self._lock:
            return self._pods.use_of(uid)

    def group_peak(self, group: str) -> Peak:
        """The highest hour that any pod of a group had within the days that are kept."""
        with self._lock:
            return self._pods.group_peak(group)

    def view(self, wall: float) -> FleetView:
        """Everything at wall time `wall`, in seconds since the epoch."""
        last = slot_of(int(wall * 1000)) - 1
        with self._lock:
            self._compact()
            if self._closed is None or self._closed.slot != last:
                self._closed = self._close(last)
            closed, nodes, count = self._closed, list(self._nodes.values()), len(self._nodes)
            at = (last + 1) * float(SLOT_SECONDS)
            unknown = np.full(count, np.nan)
            covered = np.zeros(count)
            covered[: len(closed.covered)] = closed.covered
            return FleetView(
                list(self._nodes),
                History(self._cpu.span(last, count), unknown, float(SLOT_SECONDS), at, closed.cpu),
                History(self._memory.span(last, count), unknown, float(SLOT_SECONDS), at, closed.memory),
                _highest(self._cpu.beyond(last, count)),
                _highest(self._memory.beyond(last, count)),
                covered,
                [node.latest for node in nodes],
                [node.measured for node in nodes],
                [node.heard for node in nodes],
                [node.closed for node in nodes],
                [node.zones for node in nodes],
                [node.home.uids for node in nodes],
                last - np.asarray([node.changed_slot for node in nodes], dtype=np.int64) >= SETTLED_SLOTS,
                closed.pods,
            )

    def _close(self, last: int) -> _Closed:
        """A slot is over."""
        homes = [node.home for node in self._nodes.values()]
        changes = self._pods.close(last, homes)
        if changes:
            self._correct(changes, last)
        self._pods.compact(homes)
        cpu, memory, pods = self._pods.members(last)
        usage = self._cpu.span(last, len(homes))
        covered: Floats = (len(usage) - np.count_nonzero(np.isnan(usage), axis=0)) * float(SLOT_SECONDS)
        return _Closed(last, cpu, memory, pods, covered)

    def _compact(self) -> None:
        """Close the gaps that forgotten nodes left; columns run in the order of the names."""
        if not self._holes:
            return
        kept = np.asarray([node.home.column for node in self._nodes.values()], dtype=np.int64)
        self._cpu.keep(kept)
        self._memory.keep(kept)
        for column, node in enumerate(self._nodes.values()):
            node.home.column = column
        self._holes, self._closed = False, None

    def _create(self, name: str) -> _Node:
        self._compact()
        node = self._nodes[name] = _Node(Home(name, len(self._nodes)))
        return node


def _complete(sample: Sample) -> bool:
    return sample.protected_cpu_mean is not None and sample.protected_memory_max is not None


def _highest(rows: npt.NDArray[np.float32]) -> Floats:
    if not len(rows):
        return np.full(rows.shape[1], np.nan)
    highest: Floats = np.fmax.reduce(rows, axis=0).astype(np.float64)
    return highest

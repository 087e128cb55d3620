"""What is in memory of every node: its newest sample, when it was heard of, and its recent use on the slot grid.

One sample without a measurement (an agent that has just started, a counter that was reset) leaves the one before in
force until that is stale: a glitch neither closes a node nor lets anything rise.

Thread-safe: streams write, the forecast pass reads. The pass never waits for the disk.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Callable
from typing import Final

import numpy as np

from predictor.history import Window
from predictor.models.base import Floats
from predictor.samples import Sample
from predictor.slots import SLOT_SECONDS, OpenSlots, SlotRing, slot_of

_DAY_SECONDS: Final = 86400


@dataclasses.dataclass(slots=True)
class _Node:
    column: int
    windows: OpenSlots = dataclasses.field(default_factory=OpenSlots)
    latest: Sample | None = None
    measured: float | None = None
    heard: float | None = None
    closed: str = ""

    def take(self, sample: Sample, measured: float, closed: str) -> bool:
        """Whether the agent closed the node with this sample."""
        closes = False
        if self.heard is None or measured > self.heard:
            closes = bool(closed) and not self.closed
            self.heard, self.closed = measured, closed
        if self.measured is not None and measured <= self.measured:
            return closes
        if self.latest is None or _complete(sample) or not _complete(self.latest):
            self.latest, self.measured = sample, measured
        return closes


@dataclasses.dataclass(frozen=True, slots=True)
class FleetView:
    """All nodes at one moment; lists and columns run in the order of `names`.

    cpu, memory  (slots, nodes) LS + SYSTEM use as `predictor.slots` says, millicores and bytes, oldest first,
                 NaN = gap
    latest       newest sample of each node that measured LS and SYSTEM; the newest of any kind while there was none
                 like that; None when no sample came since the start
    measured     monotonic time at which its window ended, None likewise
    heard        monotonic time at which the window of the newest sample of any kind ended, None likewise
    closed       why the agent asked that nothing more be sold, by its newest sample of any kind; empty when it may
    """

    names: list[str]
    cpu: Floats
    memory: Floats
    latest: list[Sample | None]
    measured: list[float | None]
    heard: list[float | None]
    closed: list[str]

    def covered_seconds(self) -> Floats:
        """(nodes,) time with a CPU measurement inside the window, whole slots."""
        counted: Floats = np.count_nonzero(~np.isnan(self.cpu), axis=0) * float(SLOT_SECONDS)
        return counted


class Fleet:
    """Memory of the predictor over the last `window_days`. `on_news`: a node speaks after silence, or closes."""

    def __init__(self, window_days: float, silence_seconds: float, on_news: Callable[[], None]) -> None:
        slots = math.ceil(window_days * _DAY_SECONDS / SLOT_SECONDS) + 1
        self._lock = threading.Lock()
        self._cpu = SlotRing(slots)
        self._memory = SlotRing(slots)
        self._nodes: dict[str, _Node] = {}
        self._free: list[int] = []
        self._silence = silence_seconds
        self._on_news = on_news

    def observe(self, name: str, sample: Sample, measured: float, closed: str = "") -> None:
        """Take a sample whose window ended at monotonic time `measured`. Repeats and re-orders change nothing.

        `closed` is why its agent asks that nothing more be sold there.
        """
        with self._lock:
            node = self._node(name)
            self._remember(node, sample)
            news = node.measured is None or measured - node.measured > self._silence
            closes = node.take(sample, measured, closed)
        if news or closes:
            self._on_news()

    def _remember(self, node: _Node, sample: Sample) -> None:
        slot = slot_of(sample.end_millis)
        cpu, memory = sample.protected_cpu_mean, sample.protected_memory_max
        if memory is not None:
            self._memory.observe(node.column, slot, memory)
        if cpu is None:
            return
        value = node.windows.put(slot, sample.end_millis, cpu, self._cpu.get(node.column, slot))
        if value is None:
            self._cpu.observe(node.column, slot, cpu)
        else:
            self._cpu.put(node.column, slot, value)

    def restore(self, window: Window) -> None:
        """Take use that the history remembers; it brings no newest sample, so a node stays unheard of."""
        with self._lock:
            columns = np.asarray([self._node(name).column for name in window.names], dtype=np.int64)
            if len(columns):
                self._cpu.restore(columns[window.node], window.slot, window.cpu_millis)
                self._memory.restore(columns[window.node], window.slot, window.memory_bytes)

    def forget(self, name: str) -> None:
        """Drop a node that is gone."""
        with self._lock:
            node = self._nodes.pop(name, None)
            if node is not None:
                self._cpu.clear(node.column)
                self._memory.clear(node.column)
                self._free.append(node.column)

    def view(self, wall: float) -> FleetView:
        """Everything at wall time `wall`, in seconds since the epoch."""
        with self._lock:
            columns = [node.column for node in self._nodes.values()]
            now_slot = slot_of(int(wall * 1000))
            return FleetView(
                list(self._nodes),
                self._cpu.matrix(columns, now_slot),
                self._memory.matrix(columns, now_slot),
                [node.latest for node in self._nodes.values()],
                [node.measured for node in self._nodes.values()],
                [node.heard for node in self._nodes.values()],
                [node.closed for node in self._nodes.values()],
            )

    def _node(self, name: str) -> _Node:
        node = self._nodes.get(name)
        if node is None:
            column = self._free.pop() if self._free else len(self._nodes)
            node = self._nodes[name] = _Node(column)
        return node


def _complete(sample: Sample) -> bool:
    return sample.protected_cpu_mean is not None and sample.protected_memory_max is not None

"""What each node may still sell of the batch resources by its forecast, for all nodes at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from scheduler_plugins.framework.interfaces import Handle
from scheduler_plugins.framework.node_info import NodeInfo
from scheduler_plugins.framework.pod_info import LARGEST, PodInfo
from scheduler_plugins.framework.snapshot import Column, Floats, Indices, Ints, Snapshot
from scheduler_plugins.plugins.node_forecast import latest_of
from slacktide.forecast import Amount


@dataclass(frozen=True, slots=True)
class BatchResource:
    """One batch resource: its name, the stock resource behind it, and how to read an amount of a forecast."""

    name: str
    stock: str
    of: Callable[[Amount], int | None]

    @property
    def _reclaimable(self) -> str:
        return f"BatchRoom/reclaimable/{self.stock}"

    @property
    def _capacity(self) -> str:
        return f"BatchRoom/capacity/{self.stock}"

    def columns(self) -> Sequence[Column]:
        """What the methods below need of the snapshot."""
        return (
            Column(self._reclaimable, "int64", self._reclaimable_of, of_object=True),
            Column(self._capacity, "int64", lambda info: info.capacity.get(self.stock, 0), of_object=True),
        )

    def _reclaimable_of(self, info: NodeInfo) -> int:
        """Never more than the whole node, whatever the annotation says; 0 where it says nothing."""
        forecast = latest_of(info)
        amount = None if isinstance(forecast, str) else self.of(forecast.reclaimable)
        return 0 if amount is None else max(0, min(amount, info.capacity.get(self.stock, 0)))

    def need(self, pod: PodInfo) -> int:
        """What `pod` asks for, in millicores or bytes."""
        return pod.batch_cpu_millis if self.stock == "cpu" else pod.batch_memory_bytes

    def capacity_of(self, snapshot: Snapshot, rows: Indices | slice) -> Ints:
        """All that each node has of the stock resource."""
        capacity: Ints = snapshot.column(self._capacity)[rows]
        return capacity

    def capacity_on(self, snapshot: Snapshot, row: int) -> int:
        """The same of one node."""
        return int(snapshot.column(self._capacity).item(row))

    def reclaimable(self, snapshot: Snapshot, rows: Indices | slice) -> Ints:
        """What may be sold in all while the forecast is fresh."""
        reclaimable: Ints = snapshot.column(self._reclaimable)[rows]
        return reclaimable

    def reclaimable_on(self, snapshot: Snapshot, row: int) -> int:
        """The same of one node."""
        return int(snapshot.column(self._reclaimable).item(row))

    def left_on(self, snapshot: Snapshot, row: int) -> int:
        """The same as `left` of one node."""
        sold = snapshot.nodes[row].requested.get(self.name, 0)
        return self.reclaimable_on(snapshot, row) - min(sold, LARGEST)

    def left(self, snapshot: Snapshot, rows: Indices | slice) -> Ints:
        """The same beside what is sold, assumed pods included; below 0 where more is sold than there is."""
        return self.reclaimable(snapshot, rows) - snapshot.requested(self.name)[rows]


def scaled(amounts: Ints, share: Floats | None) -> Ints:
    """`amounts` as far as the forecast is trusted; no share is full trust. As `slacktide.forecast.room`, never below 0.

    While it is fresh an amount below 0 is left as it is: it is no room either.
    """
    if share is None:
        return amounts
    room: Ints = np.maximum(0, amounts * share).astype(np.int64)
    return room


def batch_resources(handle: Handle) -> tuple[BatchResource, BatchResource]:
    """CPU and memory under the names that this cluster uses."""
    return (
        BatchResource(handle.cpu_resource, "cpu", lambda amount: amount.cpu_millis),
        BatchResource(handle.memory_resource, "memory", lambda amount: amount.memory_bytes),
    )

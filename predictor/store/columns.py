"""What goes into the history and comes out of it, as columns: arrays of one length, NaN = not measured. No I/O.

CPU is in millicores, memory in bytes. A slot is `end_millis // 300000` of its first moment, an hour the same with an
hour (see `predictor.slots`); both count from the epoch.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from predictor.slots import SLOT_SECONDS

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

HOUR_SECONDS: Final = 3600
HOUR_MILLIS: Final = HOUR_SECONDS * 1000
SLOTS_PER_HOUR: Final = HOUR_SECONDS // SLOT_SECONDS


class Window(NamedTuple):
    """LS + SYSTEM use per node and slot. A long time comes as several of these, each of later slots than the one
    before; within one no node has a slot twice.

    names         of all nodes, the same list in every part; `node` counts in it.
    cpu_millis    90th percentile of the means of the sample windows in the slot (see `predictor.slots`).
    memory_bytes  highest working set in the slot.
    """

    names: list[str]
    node: Integers
    slot: Integers
    cpu_millis: Floats
    memory_bytes: Floats


class Pod(NamedTuple):
    """A pod as the history knows it.

    group                controller as `kind/name`, in the namespace of the pod; empty when unknown.
    tier                 ls, be or system.
    requested_*          newest request, NaN when unknown.
    """

    uid: str
    namespace: str
    name: str
    node: str
    group: str
    tier: str
    requested_cpu: float
    requested_memory: float


class PodHours(NamedTuple):
    """Use of pods by hours. A long time comes as several of these, each of later hours than the one before; within
    one no pod has an hour twice.

    pods         the pods that `pod` counts in; when read, the same list in every part.
    hour         hours since the epoch.
    slots        in how many slots of the hour the pod was measured, at least 1.
    *_mean       mean of what stands for its slots.
    *_max        highest of what stands for its slots.
    """

    pods: list[Pod]
    pod: Integers
    hour: Integers
    slots: Integers
    cpu_mean: Floats
    cpu_max: Floats
    memory_mean: Floats
    memory_max: Floats


class PodReport(NamedTuple):
    """What is known of pods and not stored yet.

    closed  hours that are over. They are added: when a pod has an hour twice, readers take the higher maximum and
            the mean by `slots`.
    open    hours that go on. They replace all open hours stored before.
    """

    closed: PodHours
    open: PodHours


class SlotColumns(NamedTuple):
    """Use of one kind (see `predictor.store.schema.KINDS`) per node and slot, from elsewhere.

    `node` counts in `names`. `covered_millis` is how much of the slot was measured. A value that is not known is NaN.
    Capacity has the same number in all three columns of a resource.
    """

    names: list[str]
    node: Integers
    slot: Integers
    covered_millis: Integers
    cpu_mean: Floats
    cpu_p90: Floats
    cpu_max: Floats
    memory_mean: Floats
    memory_p90: Floats
    memory_max: Floats
    requested_cpu: Floats
    requested_memory: Floats


class Imported(NamedTuple):
    """What an import did: rows taken, and rows left out because Slacktide measured that time itself."""

    stored: int
    measured: int


def no_hours() -> PodHours:
    """Use of no pods."""
    none, nothing = np.zeros(0, dtype=np.int64), np.zeros(0)
    return PodHours([], none, none, none, nothing, nothing, nothing, nothing)

"""Pods as samples tell of them, and the slots of one node's pods that are still being filled. No I/O, no clock."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from predictor.models.base import Integers
from predictor.slots import SLOT_MILLIS, Floats32

CELL_MILLIS: Final = 10_000
"""Windows that end within one cell count as one, with the highest of them: repeats do no harm."""

_CELLS: Final = SLOT_MILLIS // CELL_MILLIS

_RANDOM: Final = "[b-df-hj-np-tv-z0-9]"
_HASHED: Final = re.compile(rf"(?:-{_RANDOM}{{6,10}})?-{_RANDOM}{{5}}$")
_NUMBERED: Final = re.compile(r"-[0-9]+$")


class PodUse(NamedTuple):
    """An LS or SYSTEM pod in one sample: millicores and bytes, None = not measured. `tier` is ls or system."""

    uid: str
    namespace: str
    name: str
    cpu_mean: int | None
    memory_max: int | None
    requested_cpu: int | None = None
    requested_memory: int | None = None
    tier: str = "ls"


def guess_group(namespace: str, name: str) -> str:
    """What the pods of one controller have in common, by their name: what Kubernetes appends to it is cut off.

    Random endings have no vowels; a name of words is left alone.
    """
    return f"{namespace}/{_NUMBERED.sub('', _HASHED.sub('', name))}"


class OpenSlot:
    """Pods of one node in one slot that is still being filled. `columns` are those of the pod table."""

    __slots__ = ("_given", "_places", "columns", "cpu", "dirty", "memory")

    def __init__(self, columns: Integers) -> None:
        self.columns = columns
        self.cpu: Floats32 = np.full((_CELLS, len(columns)), np.nan, dtype=np.float32)
        self.memory: Floats32 = np.full(len(columns), np.nan, dtype=np.float32)
        self.dirty = False
        self._given = columns
        self._places: Integers | slice = slice(None)

    def put(self, columns: Integers, end_millis: int, cpu: Floats32, memory: Floats32) -> None:
        """Take one window of the pods in `columns`."""
        if columns is not self._given:
            self._widen(columns)
        places = self._places
        row = self.cpu[(end_millis - 1) % SLOT_MILLIS // CELL_MILLIS]
        row[places] = np.fmax(row[places], cpu)
        self.memory[places] = np.fmax(self.memory[places], memory)
        self.dirty = True

    def _widen(self, columns: Integers) -> None:
        known = {int(column): place for place, column in enumerate(self.columns)}
        fresh = [int(column) for column in columns if int(column) not in known]
        known |= {column: len(self.columns) + index for index, column in enumerate(fresh)}
        more = np.full((_CELLS, len(fresh)), np.nan, dtype=np.float32)
        self.columns = np.concatenate([self.columns, np.asarray(fresh, dtype=np.int64)])
        self.cpu = np.concatenate([self.cpu, more], axis=1)
        self.memory = np.concatenate([self.memory, more[0]])
        self._places = np.asarray([known[int(column)] for column in columns], dtype=np.int64)
        self._given = columns

    def renumber(self, places: Integers) -> None:
        """The table has new columns: `places` by old column, -1 for one that is gone."""
        columns = places[self.columns]
        kept = columns >= 0
        self.columns = self._given = columns[kept]
        self._places = slice(None)
        self.cpu, self.memory = self.cpu[:, kept], self.memory[kept]


def cpu_90(cells: Floats32) -> Floats32:
    """(pods,) 90th percentile over the cells that have a value, (cells, pods); NaN where none has."""
    ranked = np.sort(cells, axis=0)
    counts = np.count_nonzero(~np.isnan(ranked), axis=0)
    found: Floats32 = ranked[np.maximum((9 * counts + 9) // 10 - 1, 0), np.arange(ranked.shape[1])]
    return found


class Home:
    """A node as the home of pods. `column` is that of its own use, kept up to date by the fleet.

    listed         pods that the newest sample listed
    uids, columns  those of them that live here, and where the table has them
    away           pods that are no longer listed, and the slot since which
    groups         groups whose pods were here, and the slot when last
    last_slot      slot of the newest sample, -1 = none since the start
    late           the hour that a spool is replaying, and how many slots of it came
    """

    __slots__ = ("away", "column", "columns", "groups", "last_slot", "late", "listed", "name", "open", "uids")

    def __init__(self, name: str, column: int) -> None:
        self.name = name
        self.column = column
        self.listed: Sequence[PodUse] = ()
        self.uids: list[str] = []
        self.columns: Integers = np.empty(0, dtype=np.int64)
        self.open: dict[int, OpenSlot] = {}
        self.late: tuple[int, int] = (-1, 0)
        self.away: dict[str, int] = {}
        self.groups: dict[str, int] = {}
        self.last_slot = -1

    def renumber(self, places: Integers) -> None:
        """The table has new columns: `places` by old column, -1 for one that is gone."""
        columns = places[self.columns]
        self.columns = columns[columns >= 0]
        for opened in self.open.values():
            opened.renumber(places)


@dataclasses.dataclass(slots=True)
class KnownPod:
    """A pod of the table: its column, the node it lives on, the slot in which it was first seen, and the group that its
    name suggests, once somebody asked for that."""

    uid: str
    namespace: str
    name: str
    tier: str
    column: int
    home: Home
    first_slot: int
    guessed: str = ""

"""The pods behind the nodes' use, by hours: what a pod took goes with it, and tells what its node is made of.

Only LS and SYSTEM pods are kept; what best effort uses is none of the forecast's business. A pod is known by its uid.
What it used is in predictor.pod_rows, what group it is of in predictor.pod_groups; here is who lives where.

A pod that another node lists takes its use along: the rows of both nodes before that are corrected. So are those of a
node that a pod left for good, when it lived for a day at least and left no heir (a pod of its group) on the node.
Younger ones stay in the rows: jobs come back, with a new uid each time.

Not thread-safe: the fleet holds its lock.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from predictor.models.base import Integers, Members
from predictor.pod_groups import PodGroups
from predictor.pod_rows import Peak, PodRows, floats
from predictor.pods import Home, KnownPod, OpenSlot, PodUse
from predictor.slots import SLOTS_PER_HOUR, Floats32
from predictor.store.columns import Pod, PodHours, PodReport, no_hours

LASTING_HOURS: Final = 24

_OPEN: Final = 2
_MOST_GROUPS: Final = 500
"""Groups remembered of one node; the oldest go first."""

_REPORT_HOURS: Final = 2
"""Hours that are reported though nobody asked for so long; older ones were reported, or nobody measured them."""

_NEVER: Final = np.iinfo(np.int64).max


class Change(NamedTuple):
    """Use that comes to the rows of a node, or leaves them (negative): values by slot, from slot `first` on."""

    home: Home
    first: int
    cpu: Floats32
    memory: Floats32


@dataclasses.dataclass(frozen=True, slots=True)
class Pods:
    """The pods behind a view, in the order of its members.

    keys        namespace/name
    groups      controller (`Fleet.set_groups`), else guessed from the name
    first_slot  (members,) slot in which the pod was first seen
    """

    uids: list[str]
    keys: list[str]
    groups: list[str]
    first_slot: Integers


class PodTable:
    """All pods of the fleet over the last `days`."""

    def __init__(self, days: float) -> None:
        self._rows = PodRows(days)
        self._groups = PodGroups()
        self._pods: dict[str, KnownPod] = {}
        self._order: list[KnownPod | None] = []
        self._holes = 0
        self._leaving: dict[int, Home] = {}
        self._restored: dict[str, int] = {}
        self._newest_slot = -1
        self._reported_hour: int | None = None
        self._unreported: list[PodHours] = []
        self._late: dict[int, set[str]] = {}

    def __len__(self) -> int:
        return len(self._pods)

    def set_groups(self, groups: Mapping[str, str]) -> None:
        """Say what controllers pods have, by uid."""
        self._groups.name(groups, self._pods)

    def take(
        self, home: Home, slot: int, end_millis: int, pods: Sequence[PodUse], newest: bool
    ) -> tuple[bool, list[Change]]:
        """Take the pods of one sample; only the newest sample of a node says which pods there are.

        Returns whether a pod came of a group that was not there before, and what changes in the rows of nodes
        because pods moved.
        """
        self._settle_restored()
        arrived, changes, used = False, list[Change](), pods
        uids = [pod.uid for pod in pods]
        if newest:
            home.last_slot, home.listed = max(home.last_slot, slot), pods
            if uids != home.uids:
                arrived, changes = self._list(home, slot, pods)
        columns = home.columns
        if uids != home.uids:
            used = [pod for pod in pods if (known := self._pods.get(pod.uid)) is not None and known.home is home]
            columns = np.asarray([self._pods[pod.uid].column for pod in used], dtype=np.int64)
        if len(columns):
            cpu, memory = floats([pod.cpu_mean for pod in used]), floats([pod.memory_max for pod in used])
            if newest and slot not in home.open:
                # Requests of a running pod seldom change: a look once a slot is enough.
                requests = [pod.requested_cpu for pod in used], [pod.requested_memory for pod in used]
                self._rows.ask(columns, *requests)
            self._opened(home, slot, columns).put(columns, end_millis, cpu, memory)
        return arrived, changes

    def _list(self, home: Home, slot: int, pods: Sequence[PodUse]) -> tuple[bool, list[Change]]:
        changes: list[Change] = []
        arrived, first_look = False, not home.groups
        here: list[KnownPod] = []
        for pod in pods:
            known = self._pods.get(pod.uid)
            if known is None:
                known = self._create(pod, home, slot)
            elif known.home is not home:
                if pod.uid in known.home.uids and known.home.last_slot >= slot - 1:
                    # Two nodes list it: it stays with the first until that one stops.
                    continue
                changes += self._move(known, home, slot)
            here.append(known)
            group = self.group(known.uid)
            arrived |= group not in home.groups and not first_look
            home.groups.pop(group, None)
            home.groups[group] = slot
        while len(home.groups) > _MOST_GROUPS:
            del home.groups[next(iter(home.groups))]
        self._set_listed(home, here, slot)
        return arrived, changes

    def _set_listed(self, home: Home, here: list[KnownPod], slot: int) -> None:
        uids = [pod.uid for pod in here]
        present = set(uids)
        for uid in home.uids:
            if uid not in present:
                home.away.setdefault(uid, slot)
        for uid in present & home.away.keys():
            del home.away[uid]
        if home.away:
            self._leaving[id(home)] = home
        home.uids = uids
        home.columns = np.asarray([pod.column for pod in here], dtype=np.int64)

    def _create(self, key: PodUse | Pod, home: Home, slot: int) -> KnownPod:
        column = len(self._order)
        pod = KnownPod(key.uid, sys.intern(key.namespace), key.name, sys.intern(key.tier), column, home, slot)
        self._pods[key.uid] = pod
        self._order.append(pod)
        self._rows.add(column, key.requested_cpu, key.requested_memory)
        self._groups.arrived(pod)
        return pod

    def group(self, uid: str) -> str:
        """The group of a known pod."""
        return self._groups.of(self._pods[uid])

    def use_of(self, uid: str) -> Peak | None:
        """What the newest sample of its node says of a pod; None when that sample does not name it."""
        pod = self._pods.get(uid)
        found = () if pod is None else pod.home.listed
        return next((Peak(use.cpu_mean, use.memory_max) for use in found if use.uid == uid), None)

    def group_peak(self, group: str) -> Peak:
        """The highest hour that a pod of `group` had, whether it still is or not."""
        return self._groups.peak(group, self._pods.values(), self._rows.highest)

    def _opened(self, home: Home, slot: int, columns: Integers) -> OpenSlot:
        opened = home.open.get(slot)
        if opened is None:
            opened = home.open[slot] = OpenSlot(columns)
            while len(home.open) > _OPEN + 1:
                # The newest slots stay open, and beside them the one that a spool is replaying.
                oldest = min(home.open.keys() - {slot})
                self._fold(oldest, [home])
                del home.open[oldest]
        return opened

    def _fold(self, slot: int, homes: Sequence[Home]) -> None:
        dirty = [home for home in homes if home.open[slot].dirty]
        if not dirty:
            return
        late = self._rows.fold(slot, [home.open[slot] for home in dirty])
        end = 0
        for home in dirty:
            opened = home.open[slot]
            opened.dirty = False
            start, end = end, end + len(opened.columns)
            if late is not None:
                self._fold_late(home, slot, opened, late[start:end])

    def _fold_late(self, home: Home, slot: int, opened: OpenSlot, cpu: Floats32) -> None:
        hour = slot // SLOTS_PER_HOUR
        count = home.late[1] + 1 if home.late[0] == hour else 1
        home.late = hour, count
        if self._reported_hour is not None and hour <= self._reported_hour:
            self._late.setdefault(hour, set()).update(home.uids)
        self._rows.fold_late(hour, count, opened.columns, cpu, opened.memory)

    def close(self, last_slot: int, homes: Iterable[Home]) -> list[Change]:
        """The slot `last_slot` is over: bring the hours up to date, let go of the pods that left."""
        self._settle_restored()
        changes: list[Change] = []
        over: dict[int, list[Home]] = {}
        for home in homes:
            for slot in home.open:
                if slot <= last_slot:
                    over.setdefault(slot, []).append(home)
        for slot, filled in over.items():
            self._fold(slot, filled)
        hour = last_slot // SLOTS_PER_HOUR
        self._newest_slot = max(self._newest_slot, last_slot)
        if self._reported_hour is None:
            self._reported_hour = hour - 2
        self._rows.sum_up(hour - 1, hour * SLOTS_PER_HOUR - 1, len(self._order))
        self._rows.sum_up(hour, last_slot, len(self._order))
        for home in list(self._leaving.values()):
            changes += self._let_go(home, last_slot)
        return changes

    def _let_go(self, home: Home, last_slot: int) -> list[Change]:
        changes: list[Change] = []
        for uid, since in list(home.away.items()):
            if since >= last_slot:
                continue
            del home.away[uid]
            pod = self._pods.get(uid)
            if pod is None or pod.home is not home:
                continue
            changes += self._leave(pod, since)
        if not home.away:
            self._leaving.pop(id(home), None)
        return changes

    def _leave(self, pod: KnownPod, since: int) -> list[Change]:
        group = self.group(pod.uid)
        heir = next((self._pods[uid] for uid in pod.home.uids if self.group(uid) == group), None)
        changes: list[Change] = []
        if heir is not None:
            self._rows.inherit(heir.column, pod.column)
            heir.first_slot = min(heir.first_slot, pod.first_slot)
        elif since - pod.first_slot >= LASTING_HOURS * SLOTS_PER_HOUR:
            changes.append(self._change(pod, pod.home, "mean", since, -1))
        self._drop(pod)
        return changes

    def _move(self, pod: KnownPod, home: Home, slot: int) -> list[Change]:
        old = pod.home
        changes = [self._change(pod, old, "mean", slot, -1), self._change(pod, home, "max", slot, 1)]
        old.away.pop(pod.uid, None)
        if pod.uid in old.uids:
            kept = [place for place, uid in enumerate(old.uids) if uid != pod.uid]
            old.uids, old.columns = [old.uids[place] for place in kept], old.columns[kept]
        pod.home = home
        return changes

    def _change(self, pod: KnownPod, home: Home, kind: str, before_slot: int, sign: int) -> Change:
        """What the pod used before a slot, by slots: of each hour the highest slot, or the mean."""
        first, cpu, memory = self._rows.before(pod.column, kind, before_slot)
        return Change(home, first, sign * cpu, sign * memory)

    def _drop(self, pod: KnownPod) -> None:
        self._groups.remember(self._groups.of(pod), self._rows.highest(np.asarray([pod.column], dtype=np.int64)))
        hour = self._newest_slot // SLOTS_PER_HOUR
        for unreported in range(max(self._first_unreported(), hour - 1), hour + 1):
            self._unreported.append(self._hours_of([pod], unreported)())
        del self._pods[pod.uid]
        self._groups.left(pod)
        self._order[pod.column] = None
        self._holes += 1

    def forget(self, home: Home) -> None:
        """The node is gone; pods that live elsewhere by now stay."""
        for uid in {*home.uids, *home.away}:
            pod = self._pods.get(uid)
            if pod is not None and pod.home is home:
                self._drop(pod)
        self._leaving.pop(id(home), None)

    def compact(self, homes: Iterable[Home]) -> None:
        """Close the gaps that gone pods left; what was handed out before stays what it was."""
        if not self._holes:
            return
        kept = np.asarray([column for column, pod in enumerate(self._order) if pod is not None], dtype=np.int64)
        places = np.full(len(self._order), -1, dtype=np.int64)
        places[kept] = np.arange(len(kept))
        self._rows.keep(kept)
        living = [pod for pod in self._order if pod is not None]
        for column, pod in enumerate(living):
            pod.column = column
        self._order = [*living]
        for home in homes:
            home.renumber(places)
        self._holes = 0
        self._groups.renumber()

    def members(self, last_slot: int) -> tuple[Members, Members, Pods]:
        """The pods behind the CPU and the memory of the nodes, up to slot `last_slot`. Call `compact` before."""
        pods = [pod for pod in self._order if pod is not None]
        series = np.asarray([pod.home.column for pod in pods], dtype=np.int64)
        cpu, memory = self._rows.members(last_slot, series)
        first_slot = np.asarray([pod.first_slot for pod in pods], dtype=np.int64)
        keys = [f"{pod.namespace}/{pod.name}" for pod in pods]
        groups = [self._groups.of(pod) for pod in pods]
        return cpu, memory, Pods([pod.uid for pod in pods], keys, groups, first_slot)

    def report(self) -> Callable[[], PodReport]:
        """What the history has not been told of yet; the hour that goes on is told anew each time.

        Call what is returned without the lock: to name the pods of a large fleet takes a while.
        """
        hour = self._newest_slot // SLOTS_PER_HOUR
        pods = [pod for pod in self._order if pod is not None]
        hours = [*range(max(self._first_unreported(), hour - _REPORT_HOURS), hour)]
        closed = [self._hours_of(pods, over) for over in hours]
        for late, uids in self._late.items():
            closed.append(self._hours_of([self._pods[uid] for uid in uids if uid in self._pods], late))
        before, opened = self._unreported, self._hours_of(pods, hour)
        self._unreported, self._late, self._reported_hour = [], {}, hour - 1
        return lambda: PodReport(_joined([*before, *(told() for told in closed)]), opened())

    def _first_unreported(self) -> int:
        return 0 if self._reported_hour is None else self._reported_hour + 1

    def _hours_of(self, pods: Sequence[KnownPod], hour: int) -> Callable[[], PodHours]:
        columns = np.asarray([pod.column for pod in pods], dtype=np.int64)
        rows, slots = self._rows.hour(columns, hour), self._rows.measured_slots(columns, hour)
        known = np.flatnonzero(~np.isnan(rows["cpu_max"]) | ~np.isnan(rows["memory_max"]))
        requested, groups = self._rows.requested(columns[known]), self._groups.named

        def told() -> PodHours:
            asked = zip(known.tolist(), *requested.tolist(), strict=True)
            return PodHours(
                [_told(pods[place], groups, cpu, memory) for place, cpu, memory in asked],
                np.arange(len(known)),
                np.full(len(known), hour, dtype=np.int64),
                slots[known],
                *(rows[name][known] for name in ("cpu_mean", "cpu_max", "memory_mean", "memory_max")),
            )

        return told

    def restore(self, hours: PodHours, homes: Sequence[Home]) -> None:
        """Take what the history remembers; `homes` are the nodes of `hours.pods`. Any number of times."""
        if not len(hours.pod):
            return
        first: Integers = np.full(len(hours.pods), _NEVER)
        last: Integers = np.full(len(hours.pods), -1)
        np.minimum.at(first, hours.pod, hours.hour)
        np.maximum.at(last, hours.pod, hours.hour)
        columns: Integers = np.full(len(hours.pods), -1)
        for index in map(int, np.flatnonzero(last >= 0)):
            key, slot = hours.pods[index], int(first[index]) * SLOTS_PER_HOUR
            pod = self._pods.get(key.uid) or self._create(key, homes[index], slot)
            pod.first_slot = min(pod.first_slot, slot)
            columns[index] = pod.column
            if key.group:
                self._groups.restore(key.uid, key.group)
            self._restored[key.uid] = max(int(last[index]), self._restored.get(key.uid, -1))
        self._rows.restore(hours, columns[hours.pod])

    def _settle_restored(self) -> None:
        """Once all is read back: the pods of the newest hours are taken to be there still, the others left."""
        if not self._restored:
            return
        newest: dict[int, int] = {}
        here: dict[int, list[KnownPod]] = {}
        for uid, last in self._restored.items():
            home = self._pods[uid].home
            newest[id(home)] = max(last, newest.get(id(home), -1))
        for uid, last in self._restored.items():
            pod = self._pods[uid]
            home, end = pod.home, (last + 1) * SLOTS_PER_HOUR
            home.groups.setdefault(self.group(uid), end - 1)
            if uid in home.uids:
                continue
            if home.last_slot < 0 and last >= newest[id(home)] - 1:
                here.setdefault(id(home), []).append(pod)
            else:
                home.away.setdefault(uid, end)
                self._leaving[id(home)] = home
        for pods in here.values():
            home = pods[0].home
            home.uids = [*home.uids, *(pod.uid for pod in pods)]
            home.columns = np.asarray([self._pods[uid].column for uid in home.uids], dtype=np.int64)
        # The hour that went on when it was written is told anew; those before are stored.
        self._reported_hour = max(newest.values()) - 1
        self._restored = {}


def _told(pod: KnownPod, groups: Mapping[str, str], cpu: float, memory: float) -> Pod:
    group = groups.get(pod.uid, "")
    return Pod(pod.uid, pod.namespace, pod.name, pod.home.name, group, pod.tier, cpu, memory)


def _joined(parts: Sequence[PodHours]) -> PodHours:
    """Several reports as one."""
    if not parts:
        return no_hours()
    starts = np.cumsum([0, *(len(part.pods) for part in parts[:-1])])
    pod = np.concatenate([part.pod + start for part, start in zip(parts, starts, strict=True)])
    columns = zip(*(part[2:] for part in parts), strict=True)
    return PodHours([pod for part in parts for pod in part.pods], pod, *(np.concatenate(pieces) for pieces in columns))

"""The pods behind the nodes' use, by hours: what a pod took goes with it, and tells what its node is made of.

Only LS and SYSTEM pods are kept; what best effort uses is none of the forecast's business. A pod is known by its uid.
Of each slot stands, as for nodes, the 90th percentile of the windows' CPU and the highest working set; of each hour
the highest slot and the mean of its slots. The hour that is not over holds the last twelve slots instead.

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

from predictor.models.base import Floats, Integers, Members
from predictor.pods import Home, OpenSlot, PodUse, cpu_90, guess_group
from predictor.slots import SLOTS_PER_HOUR, Floats32, Rows
from predictor.store.columns import Pod, PodHours, PodReport, no_hours

LASTING_HOURS: Final = 24

_RECENT_SLOTS: Final = 2 * SLOTS_PER_HOUR
_OPEN: Final = 2
_MOST_GROUPS: Final = 500
"""Groups remembered of one node; the oldest go first."""

_REPORT_HOURS: Final = 2
"""Hours that are reported though nobody asked for so long; older ones were reported, or nobody measured them."""

_NEVER: Final = np.iinfo(np.int64).max

_MOST_GONE: Final = 50_000
"""Groups without a pod whose peak is remembered; the oldest go first."""

_HOURLY: Final = ("cpu_max", "cpu_mean", "memory_max", "memory_mean")


class Peak(NamedTuple):
    """The highest hour of a group: millicores and bytes, None = not known."""

    cpu_millis: int | None = None
    memory_bytes: int | None = None


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


@dataclasses.dataclass(slots=True)
class _Pod:
    uid: str
    namespace: str
    name: str
    tier: str
    column: int
    home: Home
    first_slot: int
    guessed: str = ""


class PodTable:
    """All pods of the fleet over the last `days`."""

    def __init__(self, days: float) -> None:
        hours = int(days * 24) + 1
        self._hours = {name: Rows(hours, SLOTS_PER_HOUR) for name in _HOURLY}
        self._recent = {name: Rows(_RECENT_SLOTS + 2, SLOTS_PER_HOUR) for name in ("cpu", "memory")}
        self._pods: dict[str, _Pod] = {}
        self._order: list[_Pod | None] = []
        self._holes = 0
        # CPU and memory by column.
        self._requested: Floats = np.full((2, 0), np.nan)
        self._groups: dict[str, str] = {}
        self._gone: dict[str, Peak] = {}
        self._index: dict[str, list[int]] | None = None
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
        # Those that are not named any more keep theirs: a pod that has just ended says what the next of it will need.
        self._groups.update((uid, sys.intern(group)) for uid, group in groups.items() if uid in self._pods)
        self._index = None

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
            cpu, memory = _floats([pod.cpu_mean for pod in used]), _floats([pod.memory_max for pod in used])
            if newest and slot not in home.open:
                # Requests of a running pod seldom change: a look once a slot is enough.
                self._requested[0, columns] = _floats([pod.requested_cpu for pod in used])
                self._requested[1, columns] = _floats([pod.requested_memory for pod in used])
            self._opened(home, slot, columns).put(columns, end_millis, cpu, memory)
        return arrived, changes

    def _list(self, home: Home, slot: int, pods: Sequence[PodUse]) -> tuple[bool, list[Change]]:
        changes: list[Change] = []
        arrived, first_look = False, not home.groups
        here: list[_Pod] = []
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

    def _set_listed(self, home: Home, here: list[_Pod], slot: int) -> None:
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

    def _create(self, key: PodUse | Pod, home: Home, slot: int) -> _Pod:
        column = len(self._order)
        pod = _Pod(key.uid, sys.intern(key.namespace), key.name, sys.intern(key.tier), column, home, slot)
        self._pods[key.uid] = pod
        self._order.append(pod)
        if column >= self._requested.shape[1]:
            more = np.full((2, max(64, column // 8)), np.nan)
            self._requested = np.concatenate([self._requested, more], axis=1)
        self._requested[:, column] = _floats([key.requested_cpu, key.requested_memory])
        if self._index is not None:
            # Pods come all the time: the index of a large fleet is not made anew for each.
            self._index.setdefault(self.group(key.uid), []).append(column)
        return pod

    def group(self, uid: str) -> str:
        """The group of a known pod."""
        return self._group_of(self._pods[uid])

    def _group_of(self, pod: _Pod) -> str:
        known = self._groups.get(pod.uid)
        if known is not None:
            return known
        if not pod.guessed:
            pod.guessed = sys.intern(guess_group(pod.namespace, pod.name))
        return pod.guessed

    def use_of(self, uid: str) -> Peak | None:
        """What the newest sample of its node says of a pod; None when that sample does not name it."""
        pod = self._pods.get(uid)
        found = () if pod is None else pod.home.listed
        return next((Peak(use.cpu_mean, use.memory_max) for use in found if use.uid == uid), None)

    def group_peak(self, group: str) -> Peak:
        """The highest hour that a pod of `group` had, whether it still is or not."""
        if self._index is None:
            self._index = {}
            for uid, pod in self._pods.items():
                self._index.setdefault(self.group(uid), []).append(pod.column)
        columns = self._index.get(group)
        gone = self._gone.get(group, Peak())
        return gone if not columns else _higher(gone, self._peak(np.asarray(columns, dtype=np.int64)))

    def _peak(self, columns: Integers) -> Peak:
        found: list[int | None] = []
        for name, recent in (("cpu_max", "cpu"), ("memory_max", "memory")):
            values = [self._hours[name].columns(columns), self._recent[recent].columns(columns)]
            known = np.concatenate([part[~np.isnan(part)] for part in values])
            found.append(round(float(known.max())) if len(known) else None)
        return Peak(*found)

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
        """Work out one slot of some nodes, all at once: a call for each would cost a large fleet seconds."""
        dirty = [home for home in homes if home.open[slot].dirty]
        if not dirty:
            return
        opened = [home.open[slot] for home in dirty]
        columns = np.concatenate([one.columns for one in opened])
        memory = np.concatenate([one.memory for one in opened])
        cpu = cpu_90(np.concatenate([one.cpu for one in opened], axis=1))
        kept = self._recent["cpu"].put_many(columns, slot, cpu)
        self._recent["memory"].put_many(columns, slot, memory)
        end = 0
        for home, one in zip(dirty, opened, strict=True):
            one.dirty = False
            start, end = end, end + len(one.columns)
            if not kept:
                self._fold_late(home, slot, one, cpu[start:end])

    def _fold_late(self, home: Home, slot: int, opened: OpenSlot, cpu: Floats32) -> None:
        """A slot that a spool brings long after its time goes into its hour directly."""
        hour = slot // SLOTS_PER_HOUR
        count = home.late[1] + 1 if home.late[0] == hour else 1
        home.late = hour, count
        if self._reported_hour is not None and hour <= self._reported_hour:
            self._late.setdefault(hour, set()).update(home.uids)
        for name, values in (("cpu", cpu), ("memory", opened.memory)):
            highest = self._hours[f"{name}_max"].row(opened.columns, hour)
            mean = self._hours[f"{name}_mean"].row(opened.columns, hour)
            weighted = np.where(np.isnan(mean), values, mean + (values - mean) / max(2, count))
            self._hours[f"{name}_max"].put_many(opened.columns, hour, np.fmax(highest, values))
            self._hours[f"{name}_mean"].put_many(opened.columns, hour, weighted)

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
        self._sum_up(hour - 1, hour * SLOTS_PER_HOUR - 1)
        self._sum_up(hour, last_slot)
        for home in list(self._leaving.values()):
            changes += self._let_go(home, last_slot)
        return changes

    def _sum_up(self, hour: int, last_slot: int) -> None:
        columns = np.arange(len(self._order))
        for name in ("cpu", "memory"):
            slots = self._recent[name].span(last_slot, len(columns), SLOTS_PER_HOUR)
            counts = np.count_nonzero(~np.isnan(slots), axis=0)
            if not counts.any():
                continue
            with np.errstate(invalid="ignore"):
                mean = np.nansum(slots, axis=0) / np.where(counts > 0, counts, np.nan)
            self._hours[f"{name}_max"].put_many(columns, hour, np.fmax.reduce(slots, axis=0))
            self._hours[f"{name}_mean"].put_many(columns, hour, mean)

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

    def _leave(self, pod: _Pod, since: int) -> list[Change]:
        group = self.group(pod.uid)
        heir = next((self._pods[uid] for uid in pod.home.uids if self.group(uid) == group), None)
        changes: list[Change] = []
        if heir is not None:
            for rows in self._hours.values():
                rows.fill(heir.column, pod.column)
            heir.first_slot = min(heir.first_slot, pod.first_slot)
        elif since - pod.first_slot >= LASTING_HOURS * SLOTS_PER_HOUR:
            changes.append(self._change(pod, pod.home, "mean", since, -1))
        self._remember(group, self._peak(np.asarray([pod.column], dtype=np.int64)))
        self._drop(pod)
        return changes

    def _remember(self, group: str, peak: Peak) -> None:
        self._gone[group] = _higher(self._gone.pop(group, Peak()), peak)
        while len(self._gone) > _MOST_GONE:
            del self._gone[next(iter(self._gone))]

    def _move(self, pod: _Pod, home: Home, slot: int) -> list[Change]:
        old = pod.home
        changes = [self._change(pod, old, "mean", slot, -1), self._change(pod, home, "max", slot, 1)]
        old.away.pop(pod.uid, None)
        if pod.uid in old.uids:
            kept = [place for place, uid in enumerate(old.uids) if uid != pod.uid]
            old.uids, old.columns = [old.uids[place] for place in kept], old.columns[kept]
        pod.home = home
        return changes

    def _change(self, pod: _Pod, home: Home, kind: str, before_slot: int, sign: int) -> Change:
        """What the pod used before a slot, by slots: of each hour the highest slot, or the mean."""
        first, cpu = self._hours[f"cpu_{kind}"].history(pod.column)
        start, memory = self._hours[f"memory_{kind}"].history(pod.column)
        base = min(first, start)
        count = max(0, before_slot - base * SLOTS_PER_HOUR)

        def by_slot(begin: int, values: Floats32) -> Floats32:
            padded = np.concatenate([np.full(begin - base, np.nan, dtype=np.float32), values])
            return sign * np.repeat(padded, SLOTS_PER_HOUR)[:count]

        return Change(home, base * SLOTS_PER_HOUR, by_slot(first, cpu), by_slot(start, memory))

    def _drop(self, pod: _Pod) -> None:
        hour = self._newest_slot // SLOTS_PER_HOUR
        for unreported in range(max(self._first_unreported(), hour - 1), hour + 1):
            self._unreported.append(self._hours_of([pod], unreported)())
        del self._pods[pod.uid]
        self._groups.pop(pod.uid, None)
        self._order[pod.column] = None
        self._holes += 1
        self._index = None

    def forget(self, home: Home) -> None:
        """The node is gone; pods that live elsewhere by now stay."""
        for uid in {*home.uids, *home.away}:
            pod = self._pods.get(uid)
            if pod is not None and pod.home is home:
                self._remember(self.group(uid), self._peak(np.asarray([pod.column], dtype=np.int64)))
                self._drop(pod)
        self._leaving.pop(id(home), None)

    def compact(self, homes: Iterable[Home]) -> None:
        """Close the gaps that gone pods left; what was handed out before stays what it was."""
        if not self._holes:
            return
        kept = np.asarray([column for column, pod in enumerate(self._order) if pod is not None], dtype=np.int64)
        places = np.full(len(self._order), -1, dtype=np.int64)
        places[kept] = np.arange(len(kept))
        for rows in (*self._hours.values(), *self._recent.values()):
            rows.keep(kept)
        self._requested = self._requested[:, kept]
        living = [pod for pod in self._order if pod is not None]
        for column, pod in enumerate(living):
            pod.column = column
        self._order = [*living]
        for home in homes:
            home.renumber(places)
        self._holes, self._index = 0, None

    def members(self, last_slot: int) -> tuple[Members, Members, Pods]:
        """The pods behind the CPU and the memory of the nodes, up to slot `last_slot`. Call `compact` before."""
        pods = [pod for pod in self._order if pod is not None]
        series = np.asarray([pod.home.column for pod in pods], dtype=np.int64)
        count, hour = len(pods), last_slot // SLOTS_PER_HOUR
        cpu, memory = (
            Members(
                series=series,
                hourly_max=self._hours[f"{name}_max"].span(hour, count),
                hourly_mean=self._hours[f"{name}_mean"].span(hour, count),
                requested=self._requested[row, :count].copy(),
            )
            for row, name in enumerate(("cpu", "memory"))
        )
        first_slot = np.asarray([pod.first_slot for pod in pods], dtype=np.int64)
        keys = [f"{pod.namespace}/{pod.name}" for pod in pods]
        groups = [self._group_of(pod) for pod in pods]
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

    def _hours_of(self, pods: Sequence[_Pod], hour: int) -> Callable[[], PodHours]:
        columns = np.asarray([pod.column for pod in pods], dtype=np.int64)
        rows = {name: self._hours[name].row(columns, hour).astype(np.float64) for name in _HOURLY}
        first = hour * SLOTS_PER_HOUR
        slots = sum(
            (~np.isnan(self._recent["cpu"].row(columns, slot))).astype(np.int64)
            for slot in range(first, first + SLOTS_PER_HOUR)
        )
        # What came late, or was read back, has no slots any more; it counts as a whole hour.
        slots = np.where(slots == 0, SLOTS_PER_HOUR, slots)
        known = np.flatnonzero(~np.isnan(rows["cpu_max"]) | ~np.isnan(rows["memory_max"]))
        requested, groups = self._requested[:, columns[known]], self._groups

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
                self._groups.setdefault(key.uid, sys.intern(key.group))
                self._index = None
            self._restored[key.uid] = max(int(last[index]), self._restored.get(key.uid, -1))
        self._restore_rows(hours, columns[hours.pod])

    def _restore_rows(self, hours: PodHours, columns: Integers) -> None:
        newest = int(hours.hour.max())
        for name in _HOURLY:
            self._hours[name].observe_at(columns, hours.hour, getattr(hours, name))
        # The slots of the newest hours are not known one by one: the first stands for the highest, the others for
        # the mean, so that the hours come out of them as they went in.
        recent = hours.hour > newest - 2
        for name in ("cpu", "memory"):
            for part in range(SLOTS_PER_HOUR):
                values = getattr(hours, f"{name}_{'mean' if part else 'max'}")[recent]
                slots = hours.hour[recent] * SLOTS_PER_HOUR + part
                self._recent[name].observe_at(columns[recent], slots, values)

    def _settle_restored(self) -> None:
        """Once all is read back: the pods of the newest hours are taken to be there still, the others left."""
        if not self._restored:
            return
        newest: dict[int, int] = {}
        here: dict[int, list[_Pod]] = {}
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


def _told(pod: _Pod, groups: Mapping[str, str], cpu: float, memory: float) -> Pod:
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


def _higher(one: Peak, other: Peak) -> Peak:
    return Peak(_max(one.cpu_millis, other.cpu_millis), _max(one.memory_bytes, other.memory_bytes))


def _max(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else max(one, other)


def _floats(values: Sequence[float | None]) -> Floats32:
    # None becomes NaN in this conversion.
    return np.asarray(values, dtype=np.float32)

"""The class of BE in resctrl: made when it can be, kept at its values, removed without a trace.

One control group for all of BE costs one class and one monitoring id; a group for each container exhausts the sixteen
classes there are (runc#1878). LS and the rest stay in the default class, which costs nothing and which we never write.

    class there               adopted: its name says that it is ours
    made                      values first, threads afterwards: a new class starts wide open
    no class left (ENOSPC)    a monitoring group in its place: BE is measured, and cannot be limited
    ids in limbo (EBUSY)      tried again after a pause that doubles
    monitoring only (EPERM)   as with no class left

Nothing need be journalled: what is ours is found by its name.
"""

from __future__ import annotations

import enum
import errno
from collections import Counter
from collections.abc import Callable
from typing import Final

from agent.host.resctrl.groups import BE_GROUP, MONITORS, Groups, RdtTree, is_ours
from agent.resctrl import RdtInfo, Schemata
from agent.schemata import blocks, completed, difference, open_values, problems
from slacktide.errors import Gone, KernelError, NotPermitted, Refused

MONITOR_GROUP: Final = f"{MONITORS}/{BE_GROUP}"
_FIRST_PAUSE_SECONDS: Final = 2.0
_LONGEST_PAUSE_SECONDS: Final = 60.0
_FIGHT: Final = 3
"""So many looks in a row at which someone had changed our values make a fight."""


class Kind(enum.Enum):
    """What BE has."""

    NONE = "none"
    MONITOR = "monitor"
    CONTROL = "control"


class Pause:
    """When something that failed may be tried again: after twice as long each time, up to a minute."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until: float | None = None
        self._seconds = _FIRST_PAUSE_SECONDS

    @property
    def over(self) -> bool:
        """Whether to try."""
        return self._until is None or self._clock() >= self._until

    def failed(self) -> None:
        """Wait, longer than before."""
        self._until = self._clock() + self._seconds
        self._seconds = min(_LONGEST_PAUSE_SECONDS, 2 * self._seconds)

    def done(self) -> None:
        """It went well."""
        self._until, self._seconds = None, _FIRST_PAUSE_SECONDS


class BeClass:
    """`counters`: rdt_made, rdt_writes, rdt_refused, rdt_drift, rdt_fights, rdt_mismatch, rdt_stale.

    `clock` is monotonic seconds, for pauses alone. `problem` is why BE has no class, empty when it has one. `settled`
    says that the class once held what was wanted, so that threads may enter.
    """

    def __init__(self, clock: Callable[[], float], counters: Counter[str]) -> None:
        self._counters = counters
        self._make = {Kind.CONTROL: Pause(clock), Kind.MONITOR: Pause(clock)}
        self._why = {Kind.CONTROL: "", Kind.MONITOR: ""}
        self._put_back = Pause(clock)
        self._retry = Pause(clock)
        self.forget()

    def forget(self) -> None:
        """The mount is another one, or none: what was known of it is void."""
        for pause in (*self._make.values(), self._put_back, self._retry):
            pause.done()
        self._why = dict.fromkeys(self._why, "")
        self._begin()

    def _begin(self) -> None:
        self.settled = False
        self._written: Schemata | None = None
        self._refused: tuple[Schemata, str] | None = None
        self._drifts = 0

    @property
    def problem(self) -> str:
        """Why BE has no class, or not even a monitoring group; empty when all is well."""
        return "; ".join(why for why in self._why.values() if why)

    def ensure(self, tree: RdtTree, info: RdtInfo, groups: Groups) -> Kind:
        """Make or find the group of BE, and remove groups of ours that are no longer of use."""
        kind = self._best(tree, info, groups)
        keep = {Kind.CONTROL: BE_GROUP, Kind.MONITOR: MONITOR_GROUP}.get(kind)
        for group in _ours(groups):
            if group != keep and not tree.guests(group):
                self._counters["rdt_stale"] += 1
                tree.remove(group)
        return kind

    def _best(self, tree: RdtTree, info: RdtInfo, groups: Groups) -> Kind:
        can_control = bool(info.caches) or info.bandwidth is not None
        if BE_GROUP in groups.classes or (can_control and self._made(tree, Kind.CONTROL, BE_GROUP)):
            self._why = dict.fromkeys(self._why, "")
            return Kind.CONTROL
        if not can_control:
            self._why[Kind.CONTROL] = "this mount controls neither cache nor memory bandwidth"
        if not info.monitors:
            return Kind.NONE
        if BE_GROUP in groups.monitors or self._made(tree, Kind.MONITOR, MONITOR_GROUP):
            self._why[Kind.MONITOR] = ""
            return Kind.MONITOR
        return Kind.NONE

    def _made(self, tree: RdtTree, kind: Kind, group: str) -> bool:
        """Whether the group is there now; what stands in the way is remembered."""
        if not self._make[kind].over:
            return False
        try:
            tree.make(group)
        except (Refused, NotPermitted) as error:
            if error.errno == errno.EEXIST and tree.has(group):
                return True
            self._make[kind].failed()
            self._why[kind] = _why_not_made(kind, error, tree.status())
            self._counters["rdt_refused"] += 1
            return False
        self._make[kind].done()
        self._begin()
        self._counters["rdt_made"] += 1
        return True

    def keep(self, tree: RdtTree, info: RdtInfo, wanted: Schemata | None) -> list[str]:
        """Bring the class to `wanted` (None: wide open). Returns what went wrong, in words.

        A value that the kernel or our own check refuses changes nothing: the class keeps what it holds. Raises
        KernelError when the class cannot be read, Gone among them.
        """
        target = completed(wanted, info)
        wrong = problems(target, info)
        if wrong:
            self._counters["rdt_refused"] += 1
            return [f"not written: {'; '.join(wrong)}"]
        held = Schemata(values=tree.schemata(BE_GROUP))
        missing = difference(target, held, info)
        told = self._judge_drift(held, info)
        if not missing.values:
            self.settled, self._written = True, target
            return told
        if target == self._written and not self._put_back.over:
            return told
        if self._refused is not None and self._refused[0] == missing and not self._retry.over:
            return [*told, self._refused[1]]
        return told + self._write(tree, info, target, missing)

    def _write(self, tree: RdtTree, info: RdtInfo, target: Schemata, missing: Schemata) -> list[str]:
        try:
            for block in blocks(missing):
                tree.write_schemata(BE_GROUP, block)
                self._counters["rdt_writes"] += 1
        except (Refused, NotPermitted) as error:
            self._counters["rdt_refused"] += 1
            self._retry.failed()
            self._refused = missing, f"{error}: {_words(missing)} {_hint(tree.status())}".rstrip()
            return [self._refused[1]]
        if self._drifts >= _FIGHT:
            self._put_back.failed()
        self._refused = None
        self._retry.done()
        self._written = target
        left = difference(target, Schemata(values=tree.schemata(BE_GROUP)), info)
        if left.values:
            self._counters["rdt_mismatch"] += 1
            return [f"the kernel took a value and holds another: {_words(left)} was written"]
        self.settled = True
        return []

    def _judge_drift(self, held: Schemata, info: RdtInfo) -> list[str]:
        """Count values of ours that someone changed; from the third look in a row on it is a fight, put back slower."""
        if self._written is None:
            return []
        if not difference(completed(self._written, info), held, info).values:
            self._drifts = 0
            self._put_back.done()
        elif self._put_back.over:
            self._drifts += 1
            self._counters["rdt_drift"] += 1
            self._counters["rdt_fights"] += self._drifts >= _FIGHT
        if self._drifts < _FIGHT:
            return []
        return [f"someone else writes {BE_GROUP}/schemata: {self._drifts} times changed behind us"]

    def remove(self, tree: RdtTree, info: RdtInfo) -> list[str]:
        """Remove every group of ours. A class in which others made monitoring groups is only opened wide.

        Returns what was left, in words.
        """
        left = []
        for group in _ours(tree.groups()):
            guests = tree.guests(group)
            if not guests:
                tree.remove(group)
                continue
            left.append(f"{group} is left, wide open: others have {len(guests)} monitoring groups in it")
            if group in tree.groups().classes:
                for block in blocks(difference(open_values(info), Schemata(values=tree.schemata(group)), info)):
                    tree.write_schemata(group, block)
        self._begin()
        return left


def drop_cpus(tree: RdtTree, counters: Counter[str]) -> list[str]:
    """CPUs in the class of BE would limit whatever runs there without a class of its own, LS too: give them back."""
    try:
        if not tree.cpus(BE_GROUP):
            return []
        tree.drop_cpus(BE_GROUP)
    except Gone:
        return []
    except KernelError as error:
        return [f"CPUs of the class of BE: {error}"]
    counters["rdt_drift"] += 1
    return [f"someone had put CPUs into {BE_GROUP}; they are the default class's again"]


def _ours(groups: Groups) -> list[str]:
    monitors = [f"{MONITORS}/{name}" for name in sorted(groups.monitors) if is_ours(name)]
    return monitors + [name for name in sorted(groups.classes) if is_ours(name)]


def _words(schemata: Schemata) -> str:
    return " ".join("".join(blocks(schemata)).split())


def _hint(status: str) -> str:
    return f"(the kernel's last status: {status})" if status else ""


def _why_not_made(kind: Kind, error: KernelError, status: str) -> str:
    what = "class" if kind is Kind.CONTROL else "monitoring group"
    if error.errno == errno.ENOSPC:
        why = f"no {what} for BE: all ids are in use"
    elif error.errno == errno.EBUSY:
        why = f"no {what} for BE yet: freed monitoring ids wait until their cache lines are gone"
    else:
        why = f"no {what} for BE: {error}"
    return f"{why} {_hint(status)}".rstrip()

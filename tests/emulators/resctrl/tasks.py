"""Which thread is in which group: children begin where their parent is, and go their own way from then on."""

from __future__ import annotations

from dataclasses import dataclass

from tests.emulators.resctrl.host import Host, Task
from tests.emulators.resctrl.state import Group


@dataclass(frozen=True)
class Label:
    """What the kernel stores in a thread."""

    closid: int
    rmid: int


ROOT = Label(0, 0)


@dataclass(frozen=True)
class _Member:
    label: Label
    start: int
    joined_at: float
    """CPU seconds that it had used when it joined."""


class Tasks:
    """Threads outside the default group; all others are in it."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._known: dict[int, int] = host.threads()
        self._members: dict[int, _Member] = {}

    def label(self, tid: int) -> Label:
        """Class and monitoring id of a thread."""
        member = self._members.get(tid)
        return member.label if member else ROOT

    def joined_at(self, tid: int) -> float:
        """CPU seconds that a thread outside the default group had used when it came there."""
        return self._members[tid].joined_at

    def put(self, tid: int, label: Label) -> None:
        """Move a thread."""
        task = self.host.task(tid)
        self._members.pop(tid, None)
        if task is not None and label != ROOT:
            self._members[tid] = _Member(label, task.start, task.cpu_seconds)

    def refresh(self, always: bool = True) -> None:
        """Give new threads the label of what made them, and forget those that ended or whose id is another's now.

        Unless `always`, nothing is looked at while every thread is in the default group.
        """
        if not self._members:
            if always:
                self._known = self.host.threads()
            return
        before, now = self._known, self.host.threads()
        for tid in list(self._members):
            task = self.host.task(tid) if tid in now else None
            if task is None or task.start != self._members[tid].start:
                del self._members[tid]
                before.pop(tid, None)
        new = {tid: self.host.task(tid) for tid in now if tid not in before}
        settled: set[int] = set()
        for tid in new:
            self._inherit(tid, new, settled)
        self._known = now

    def _inherit(self, tid: int, new: dict[int, Task | None], settled: set[int]) -> None:
        """Parents first, since a child may be seen together with what made it."""
        line: list[Task] = []
        task = new.get(tid)
        while task is not None and task.tid not in settled:
            settled.add(task.tid)
            line.append(task)
            task = new.get(task.parent)
        for child in reversed(line):
            label = self.label(child.parent)
            if label != ROOT:
                self._members[child.tid] = _Member(label, child.start, 0.0)

    def relabel(self, old: Group, new: Label) -> None:
        """All threads of a group get another label."""
        for tid in self.of(old):
            self.put(tid, new)

    def clear(self) -> None:
        """All threads go to the default group."""
        self._members.clear()

    def of(self, group: Group, allocation: bool = True, monitoring: bool = True) -> list[int]:
        """Threads that the file tasks lists: a CTRL group has those of its MON groups too.

        Without allocation only MON groups list any, without monitoring only CTRL groups do.
        """
        if group.control:
            if not allocation:
                return []
            if group.closid == 0:
                return sorted(tid for tid in self._known if self.label(tid).closid == 0)
            return sorted(tid for tid, member in self._members.items() if member.label.closid == group.closid)
        if not monitoring:
            return []
        wanted = Label(group.closid, group.rmid)
        return sorted(tid for tid, member in self._members.items() if member.label == wanted)

    def members(self) -> dict[int, Label]:
        """Threads outside the default group."""
        return {tid: member.label for tid, member in self._members.items()}

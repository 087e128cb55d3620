"""One knob of one cgroup: what it holds, and the writes that bring it to a value, in the order the kernel accepts.

Values in this module are the kernel's: idle 0 or 1, weight as is, quota in microseconds a period or None for none.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from agent.act.journal import Entry, Original
from agent.capabilities import Knob
from agent.counters import CpuKnobs
from agent.host import cpu
from agent.host.cgroup import open_group
from slacktide.kernel.hierarchy import Version

Write = Callable[[str, str | int, int | None], None]
"""(file name, value, directory descriptor); raises a KernelError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A cgroup to act on: relative path, absolute directory and inode. `depth` orders parents before children."""

    group: str
    directory: str
    inode: int

    @property
    def depth(self) -> int:
        """How deep the group lies."""
        return self.group.count("/")


@contextmanager
def opened(place: Place) -> Iterator[int]:
    """Descriptor of the very group that was listed. Raises Gone when it is another or none."""
    descriptor = open_group(place.directory, place.inode)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Bring one knob of one group to `target`; `held` is what the kernel had when this was decided."""

    place: Place
    knob: Knob
    held: CpuKnobs
    target: int | None
    original: Original
    release: bool = False
    reason: str = ""

    @property
    def key(self) -> tuple[str, Knob]:
        """Key of the journal."""
        return self.place.group, self.knob

    @property
    def entry(self) -> Entry:
        """What the journal says while this is in force. A step that lifts a quota has nothing applied."""
        assert self.target is not None
        return Entry(
            group=self.place.group,
            inode=self.place.inode,
            knob=self.knob,
            original=self.original,
            applied=self.target,
            before=held_value(self.held, self.knob),
        )

    @property
    def order(self) -> tuple[int, int]:
        """Sort key: protective knobs, then shrinking quotas from the leaves, then growing ones from the root."""
        if self.knob is not Knob.QUOTA:
            return (0 if not self.release else 3), self.place.depth
        return (1, -self.place.depth) if stricter(self.target, self.held.quota_us) else (2, self.place.depth)


def stricter(quota: int | None, than: int | None) -> bool:
    """Whether `quota` limits more than `than`; None is no limit."""
    return quota is not None and (than is None or quota < than)


def held_value(held: CpuKnobs, knob: Knob) -> int | None:
    """The kernel's value of one knob."""
    if knob is Knob.IDLE:
        return None if held.idle is None else int(held.idle)
    return held.weight if knob is Knob.WEIGHT else held.quota_us


def write_step(step: Step, version: Version, write: Write) -> CpuKnobs:
    """Do it and read back. Raises a KernelError at the first write that the kernel refuses."""
    with opened(step.place) as descriptor:
        for name, value in _writes(step, version):
            write(name, value, descriptor)
        return cpu.read_knobs(descriptor, version)


def _writes(step: Step, version: Version) -> Iterator[tuple[str, str | int]]:
    if step.knob is Knob.QUOTA:
        yield from _quota_writes(step, version)
        return
    assert step.target is not None
    name = cpu.IDLE_FILE if step.knob is Knob.IDLE else cpu.WEIGHT_FILE[version]
    yield name, step.target
    if step.knob is Knob.IDLE and step.target == 0 and step.original.weight is not None:
        yield cpu.WEIGHT_FILE[version], step.original.weight


def _quota_writes(step: Step, version: Version) -> Iterator[tuple[str, str | int]]:
    """Burst may never exceed the quota: taken to 0 before the quota falls under it, given back on release."""
    burst = step.held.burst_us or 0
    if burst and stricter(step.target, burst):
        yield cpu.burst_file(version), 0
    yield cpu.quota_write(version, step.target, step.held.period_us or cpu.DEFAULT_PERIOD_US)
    if step.release and step.original.burst_us:
        yield cpu.burst_file(version), step.original.burst_us


def in_force(step: Step, after: CpuKnobs) -> bool:
    """Whether the kernel holds what was written; it may round or clamp."""
    return held_value(after, step.knob) == step.target

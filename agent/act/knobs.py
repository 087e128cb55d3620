"""Steps of a round: one knob of one cgroup to one value, and their order. Values are the kernel's."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from agent.act.journal import Entry
from agent.capabilities import Knob, Value
from agent.host.cgroup import find_group, open_group
from agent.host.knobs import ADAPTERS, Change, Held, Original, Phase
from slacktide.kernel.hierarchy import Mount, Version, checked_group

Write = Callable[[str, str | int, int | None], None]
"""(file name, value, directory descriptor); raises a KernelError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A cgroup under one controller to act on: relative path, absolute directory and inode.

    `depth` orders parents before children.
    """

    group: str
    directory: str
    inode: int

    @property
    def depth(self) -> int:
        """How deep the group lies."""
        return self.group.count("/")


def place_at(mount: Mount, group: str, inode: int) -> Place:
    """The group with that inode below a mount. Raises ValueError for a path that leaves it."""
    return Place(group=group, directory=f"{mount.path}/{checked_group(group)}", inode=inode)


def find_place(mount: Mount, group: str) -> Place:
    """The group that is there now. Raises ValueError for a path that leaves the mount, a KernelError (Gone) for none.

    For a group that was listed under another controller's mount: the kubelet gives it the same path under each.
    """
    descriptor, inode = find_group(mount.path, group)
    os.close(descriptor)
    return place_at(mount, group, inode)


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
    """Bring one knob of one group to `target`; `held` is what the kernel had when this was decided.

    `via` is a value on the way: the round then has a step to it (`passing`) and one from it.
    """

    place: Place
    version: Version
    knob: Knob
    held: Held
    target: Value | None
    original: Original
    release: bool = False
    passing: bool = False
    via: Value | None = None
    policy: str = ""
    lasting: Value | None = None

    @property
    def key(self) -> tuple[str, Knob]:
        """Key of the journal."""
        return self.place.group, self.knob

    @property
    def entry(self) -> Entry:
        """What the journal says while this is in force."""
        assert self.target is not None
        return Entry(
            group=self.place.group,
            inode=self.place.inode,
            knob=self.knob,
            original=self.original,
            applied=self.target,
            before=self.held.value,
            via=self.via,
            policy=self.policy,
            lasting=self.lasting,
        )

    @property
    def order(self) -> tuple[Phase, int]:
        """Sort key: phases, in each of them from the root or from the leaves."""
        start = self.held if self.via is None else replace(self.held, value=self.via)
        phase = ADAPTERS[self.knob].phase(start, self.target, release=self.release)
        return phase, -self.place.depth if phase is Phase.TIGHTEN else self.place.depth


def write_step(step: Step, write: Write) -> Held:
    """Do it and read back. Raises a KernelError at the first write that the kernel refuses."""
    adapter = ADAPTERS[step.knob]
    change = Change(
        held=step.held, target=step.target, original=step.original, version=step.version, release=step.release
    )
    with opened(step.place) as descriptor:
        for name, value in adapter.writes(change):
            write(name, value, descriptor)
        return adapter.read(descriptor, step.version)

"""Looks at what the kernel holds in a round: the knobs of pods and containers, each under its own controller."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace

from agent.act.journal import Entry, Key
from agent.act.knobs import Place, Step, opened, place_at
from agent.capabilities import Knob
from agent.host.cgroup import CgroupLister, find_group
from agent.host.knobs import ADAPTERS, Held, mount_of
from agent.policy.base import Request
from agent.snapshot import PodIdentity
from slacktide.errors import Gone, KernelError
from slacktide.kernel.hierarchy import Version

Say = Callable[[Key, str], None]
"""Takes a sentence about one knob of one group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One pod or container in a round. `follow` are requests on its pod that bind it too."""

    group: str
    inode: int
    wanted: Mapping[Knob, Request]
    follow: Mapping[Knob, Request]
    identity: PodIdentity | None
    container: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One knob of one group as it is now."""

    place: Place
    version: Version
    knob: Knob
    held: Held
    identity: PodIdentity | None = None
    container: bool = False

    @property
    def key(self) -> Key:
        """Key of the journal."""
        return self.place.group, self.knob

    @property
    def hidden(self) -> bool:
        """An idle group shows no weight of its own and takes none; what it had comes back with the end of idle."""
        return self.knob is Knob.WEIGHT and self.held.idle


class Looks:
    """Reads for the executor; remembers, until the next `begin`, which groups it has seen."""

    def __init__(self, lister: CgroupLister) -> None:
        self._lister = lister
        self._hierarchy = lister.hierarchy
        self._seen: set[tuple[str, int]] = set()
        self._lists: dict[str, str] = {}

    def begin(self) -> None:
        """A round begins."""
        self._seen, self._lists = set(), {}

    def place(self, group: Group) -> Place:
        """The group as it was listed."""
        return Place(group=group.group, directory=self._lister.absolute(group.group), inode=group.inode)

    def of(
        self, group: Group, knobs: Iterable[Knob], stack: ExitStack, missing: Say, unreadable: Say
    ) -> Iterator[Look]:
        """These knobs as they are now. Raises Gone when the group that was listed is not there any more.

        `missing` hears of a wanted knob whose controller has no such group.
        """
        place = self.place(group)
        listed = place.directory
        opened_now = {listed: (place, stack.enter_context(opened(place)))}
        self._seen.add((listed, group.inode))
        for knob in (knob for knob in ADAPTERS if knob in knobs):
            mount = mount_of(self._hierarchy, knob)
            if mount is None:
                continue
            path = place_at(mount, group.group, 0).directory
            try:
                if path not in opened_now:
                    descriptor, inode = find_group(mount.path, group.group)
                    stack.callback(os.close, descriptor)
                    opened_now[path] = (place_at(mount, group.group, inode), descriptor)
                    self._seen.add((path, inode))
                place, descriptor = opened_now[path]
                held = self._within_pod(group.group, ADAPTERS[knob].read(descriptor, mount.version))
            except Gone:
                if path == listed:
                    raise
                if knob in group.wanted:
                    missing((group.group, knob), f"{group.group}: it has no cgroup under {knob.controller}")
                continue
            except KernelError as error:
                unreadable((group.group, knob), f"{group.group}: {error}")
                continue
            yield Look(
                place=place,
                version=mount.version,
                knob=knob,
                held=held,
                identity=group.identity,
                container=group.container,
            )

    def at(self, entry: Entry) -> Look | None:
        """What the kernel holds for an entry; None when its group is gone. Raises a KernelError where unreadable."""
        mount = mount_of(self._hierarchy, entry.knob)
        if mount is None:
            return None
        place = place_at(mount, entry.group, entry.inode)
        try:
            with opened(place) as descriptor:
                held = self._within_pod(entry.group, ADAPTERS[entry.knob].read(descriptor, mount.version))
        except Gone:
            return None
        return Look(place=place, version=mount.version, knob=entry.knob, held=held)

    def exists(self, entry: Entry) -> bool:
        """Whether the group of an entry is still there; one that cannot be looked at is."""
        mount = mount_of(self._hierarchy, entry.knob)
        if mount is None:
            return False
        place = place_at(mount, entry.group, entry.inode)
        if (place.directory, place.inode) in self._seen:
            return True
        try:
            with opened(place):
                return True
        except Gone:
            return False
        except KernelError:
            return True

    def keep_list(self, look: Look, last: Step | None) -> None:
        """Remember which CPUs a group has by the end of this round."""
        if look.knob is Knob.CPUSET:
            self._lists[look.place.group] = str((last.target if last else look.held.value) or "")

    def _within_pod(self, group: str, held: Held) -> Held:
        """A CPU list is bounded by what its pod has by the end of this round, not by what it has now."""
        above = self._lists.get(os.path.dirname(group)) if held.within else None
        return replace(held, within=above) if above else held

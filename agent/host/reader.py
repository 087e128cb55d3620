"""One sweep over the node: every pod cgroup's counters and the node totals, as plain values.

A group that vanishes while it is read is counted and left out. A part of a living group that cannot be read is
None. Nothing is caught beyond kernel errors. Use of CPU is read every turn; memory, I/O, pressure and knobs every
`slow_turns` (more on a node with very many pods), some pods each turn, and tasks, cpuset and freezer each third time
of these; everything of a pod that is new; and memory every turn where the node has little left. Groups are listed
when something came or went, as far as that is told (`changed`), and every few turns in any case.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from agent.counters import NodeCounters, PodReading, PsiTotals
from agent.host import psi
from agent.host.cgroup import CgroupLister, PodGroup
from agent.host.fds import FdBudget
from agent.host.lists import ThreadLists
from agent.host.podfiles import ALL, FLOWS, MEMORY, NOTHING, GroupReader, PodFiles
from agent.host.proc import Proc
from agent.snapshot import Found, Key, Sweep
from slacktide.errors import Gone, KernelError
from slacktide.kernel.hierarchy import Hierarchy, Version
from slacktide.kernel.kubepods import container_id, pod_uid

SLOW_TURNS: Final = 5
SLOW_PODS: Final = 20
"""Pods whose slow parts are read in one turn, unless that makes them older than MOST_SLOW_TURNS."""

MOST_SLOW_TURNS: Final = 15
STATE_ROUNDS: Final = 3
"""Tasks, cpuset and freezer are read each so many times that the rest is."""

LIST_TURNS: Final = 10
"""Groups are listed after so many turns although nothing is said to have changed."""

LOW_MEMORY_RATIO: Final = 0.15
_ELSEWHERE_SECONDS: Final = 30.0


class HostReader:
    """Reads pods through `lister` and the node through `proc`. `clock` is monotonic seconds. One thread uses it.

    `budget` bounds the descriptors that it holds. `changed` tells whether pods or containers may have come or gone
    since it was last asked.
    """

    def __init__(
        self,
        hierarchy: Hierarchy,
        lister: CgroupLister,
        proc: Proc,
        clock: Callable[[], float],
        *,
        budget: FdBudget | None = None,
        slow_turns: int = SLOW_TURNS,
        changed: Callable[[], bool] = lambda: True,
    ) -> None:
        self._hierarchy = hierarchy
        self._lister = lister
        self._proc = proc
        self._clock = clock
        self.budget = budget or FdBudget(clock=time.monotonic)
        self._slow_turns = self._slow_now = slow_turns
        self._changed = changed
        self._listed_turn: int | None = None
        self._psi = psi.NodePsi(proc.root, clock)
        self._thread_lists = ThreadLists(lister, proc.root, patient=True)
        self._elsewhere = Elsewhere(hierarchy, lister.root, clock)
        self._pods: dict[Key, PodFiles] = {}
        self._found: dict[Key, tuple[PodGroup, Found]] = {}
        self._half_made: set[Key] = set()
        self._turn = 0
        self.last_groups: tuple[PodGroup, ...] = ()

    def sweep(self) -> Sweep:
        """List all groups and read each. Raises a KernelError when the cgroup root itself cannot be listed."""
        at = self._clock()
        self._turn += 1
        self.budget.check()
        groups = self._groups()
        node = self._node()
        self._slow_now = max(self._slow_turns, min(MOST_SLOW_TURNS, -(-len(groups) // SLOW_PODS)))
        least = MEMORY if _memory_is_low(node) else NOTHING
        found: list[Found] = []
        readings: dict[Key, PodReading] = {}
        earlier: dict[Key, PodReading] = {}
        vanished = 0
        half_made = self._half_made_now(groups)
        for number, group in enumerate(groups):
            key = (group.group, group.inode)
            if key in half_made:
                continue
            due, files = self._due(number) | least, None
            try:
                files = self._files(key, group)
                readings[key] = files.read(due)
            except Gone:
                vanished += 1
                self._listed_turn = None
                self._drop(key)
                continue
            except KernelError:
                readings[key] = PodReading()
            else:
                if files.earlier is not None:
                    earlier[key] = files.earlier
            found.append(self._found_of(key, group, files, due))
        self._forget_others(groups)
        self.last_groups = groups
        return Sweep(
            at=at,
            node=node,
            groups=tuple(found),
            readings=readings,
            earlier=earlier,
            slow_turns=self._slow_now,
            vanished=vanished,
        )

    def _groups(self) -> tuple[PodGroup, ...]:
        """The groups there are now. A group that went away since it was listed brings a new listing next turn."""
        changed, listed = self._changed(), self._listed_turn
        if changed or listed is None or self._turn - listed >= LIST_TURNS:
            # A listing that fails is made up for in the next turn, whatever has changed by then.
            self._listed_turn = None
            groups = self._lister.pods()
            self._listed_turn = self._turn
            return groups
        return self.last_groups

    def _due(self, number: int) -> int:
        """What is read of the pod of this number in the listing: a part of the pods each turn."""
        round_, rest = divmod(number + self._turn, self._slow_now)
        if rest:
            return NOTHING
        return ALL if round_ % STATE_ROUNDS == 0 else MEMORY | FLOWS

    def threads(self, groups: Sequence[PodGroup]) -> list[int]:
        """Ids of all threads in these pods, which are asked for each turn: new ones come a few turns late."""
        return [tid for _, _, tids in self._thread_lists.of(groups) for tid in tids]

    def cpu_psi(self, group: PodGroup) -> PsiTotals | None:
        """CPU pressure totals of a pod's group (v2); None where there are none."""
        try:
            return self._files((group.group, group.inode), group).cpu_psi()
        except KernelError:
            return None

    def release(self) -> None:
        """Close all descriptors that are held."""
        for files in self._pods.values():
            files.release()

    def _files(self, key: Key, group: PodGroup) -> PodFiles:
        files = self._pods.get(key)
        if files is None:
            files = self._pods[key] = PodFiles(group, self._make)
        elif files.pod is not group:
            files.follow(group)
        return files

    def _make(self, group: str, inode: int) -> GroupReader:
        return GroupReader(self._hierarchy, group, inode, self._elsewhere.find, self.budget, self._clock)

    def _found_of(self, key: Key, group: PodGroup, files: PodFiles | None, due: int) -> Found:
        """The listing's entry, the same object as long as nothing was looked at anew."""
        known = self._found.get(key)
        if known is not None and known[0] is group and due & ~MEMORY == NOTHING:
            return known[1]
        containers = () if files is None else files.containers()
        made = Found(group=group.group, inode=group.inode, uid=group.uid, containers=containers)
        self._found[key] = (group, made)
        return made

    def _drop(self, key: Key) -> None:
        files = self._pods.pop(key, None)
        self._found.pop(key, None)
        if files is not None:
            files.release()

    def _forget_others(self, groups: Sequence[PodGroup]) -> None:
        if len(self._pods) > len(groups) or len(self._found) > len(groups):
            present = {(group.group, group.inode) for group in groups}
            for key in [key for key in {*self._pods, *self._found} if key not in present]:
                self._drop(key)

    def _half_made_now(self, groups: Sequence[PodGroup]) -> set[Key]:
        """Groups that were made under cpu and not yet under cpuacct (v1): left out, but only the first time.

        They would be pods without a measurement, and for a moment nothing would be known about their tier.
        """
        if self._lister.version is Version.V2 or "cpuacct" not in self._hierarchy.controllers:
            return set()
        new = [group for group in groups if (group.group, group.inode) not in self._pods]
        missing = {
            (group.group, group.inode)
            for group in new
            if os.path.isdir(self._lister.absolute(group.group))
            and not os.path.isdir(self._hierarchy.path("cpuacct", group.group) or "")
        }
        fresh, self._half_made = missing - self._half_made, missing
        return fresh

    def _node(self) -> NodeCounters | None:
        try:
            counters = self._proc.counters()
        except (OSError, KernelError):
            return None
        return replace(counters, psi=self._psi.read())


class Elsewhere:
    """Where a group lies under other controllers: at the same path, or where a listing of that controller finds it.

    Kubelet and runtime may follow different drivers under one controller and the same under another.
    """

    def __init__(self, hierarchy: Hierarchy, root: str, clock: Callable[[], float]) -> None:
        self._hierarchy = hierarchy
        self._root = root
        self._clock = clock
        self._listed: dict[str, tuple[float, dict[str, str]]] = {}

    def find(self, controller: str, group: str) -> str | None:
        """Directory of the group under this controller; None where there is none (yet)."""
        path = self._hierarchy.path(controller, group)
        if path is None or os.path.isdir(path):
            return path
        mount = self._hierarchy.controllers[controller]
        if mount.version is Version.V2:
            return None
        other = self._of(controller).get(_identity(group))
        return os.path.join(mount.path, other) if other is not None else None

    def _of(self, controller: str) -> dict[str, str]:
        """Groups under this controller by the name that they have whatever the driver; listed once in a while."""
        now = self._clock()
        listed = self._listed.get(controller)
        if listed is not None and now - listed[0] < _ELSEWHERE_SECONDS:
            return listed[1]
        found: dict[str, str] = {}
        try:
            for pod in CgroupLister(self._hierarchy, self._root, controller).pods():
                found[pod.uid] = pod.group
                found.update((container.id, container.group) for container in pod.containers)
        except KernelError:
            found = {}
        self._listed[controller] = (now, found)
        return found


def _identity(group: str) -> str:
    """Container id or pod UID in the last part of a path."""
    name = os.path.basename(group)
    return container_id(name) or pod_uid(name) or name


def _memory_is_low(node: NodeCounters | None) -> bool:
    if node is None or node.memory_available_bytes is None:
        return False
    return node.memory_available_bytes < LOW_MEMORY_RATIO * node.capacity_memory_bytes

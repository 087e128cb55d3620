"""Thread ids of pods, group by group, listed anew only where something may have changed.

Nothing born on the machine since the last time means no new thread anywhere; each group is listed now and then in any
case, for threads that were moved. Who can wait for new threads a little has only that. Threads that ended stay in a
list until then, unless the caller knows better.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from agent.host.births import Births
from agent.host.cgroup import CgroupLister, PodGroup, tids_in
from agent.threads import GroupKey

LIST_TURNS: Final = 4
"""A group is listed at each so many looks, whatever was born: not all at the same one."""

BARE_TURNS: Final = 16
"""So many where a pod's own group has containers and no thread: hardly anybody puts one there."""

Place = tuple[GroupKey, str]
"""A group and its directory."""

Listed = tuple[GroupKey, str, list[int]]
"""A group, its directory, and the ids of the threads in it."""


class ThreadLists:
    """Lists threads below the cgroups of `lister`. One thread uses it.

    `patient`: births do not matter, each group is listed when it is new and then every LIST_TURNS looks.
    """

    def __init__(self, lister: CgroupLister, proc_root: str, *, patient: bool = False) -> None:
        self._lister = lister
        self._births = None if patient else Births(proc_root, aftermath=2)
        self._known: dict[GroupKey, list[int]] = {}
        self._places: dict[str, tuple[PodGroup, tuple[Place, ...]]] = {}
        self._looks = 0

    def of(self, pods: Sequence[PodGroup], alive: Callable[[int], bool] = lambda _tid: True) -> list[Listed]:
        """Threads of the groups of these pods and of their containers; groups of other pods are forgotten.

        A pod with containers rarely holds threads itself: its own group is listed as if nothing were born, and rarely.
        """
        self._looks += 1
        born = self._births is not None and self._births.looked()
        known: dict[GroupKey, list[int]] = {}
        found: list[Listed] = []
        for pod in pods:
            for key, directory in self.places(pod):
                tids = self._known.get(key)
                bare = not tids and bool(pod.containers) and key.group == pod.group
                turns = BARE_TURNS if bare else LIST_TURNS
                if tids is None or (born and not bare) or (key.inode + self._looks) % turns == 0:
                    tids = self.tids(directory)
                elif tids:
                    tids = [tid for tid in tids if alive(tid)]
                known[key] = tids
                found.append((key, directory, tids))
        self._known = known
        if len(self._places) > len(pods):
            self._places = {pod.group: self._places[pod.group] for pod in pods}
        return found

    def places(self, pod: PodGroup) -> tuple[Place, ...]:
        """A pod's group and those of its containers, with their directories."""
        known = self._places.get(pod.group)
        if known is None or known[0] is not pod:
            groups = ((pod.group, pod.inode), *((one.group, one.inode) for one in pod.containers))
            known = pod, tuple((GroupKey(*group), self._lister.absolute(group[0])) for group in groups)
            self._places[pod.group] = known
        return known[1]

    def tids(self, directory: str) -> list[int]:
        """Threads in one group now; none when it went away."""
        assert self._lister.version is not None
        return tids_in(directory, self._lister.version)

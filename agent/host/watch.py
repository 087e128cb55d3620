"""Sees pods and containers come and go at once: inotify on the kubepods tree, under the cpu controller's mount.

Watched are the directory that kubepods is made in, kubepods, the QoS classes and each pod; containers are their
pods' entries. A new directory is watched *before* it is listed, so that nothing falls between. The kernel does not
tell of a cgroup's end to a watch on itself (seen on Linux 6.18: no IN_DELETE_SELF, no IN_IGNORED, and the watch
stays), so a watch is ended when the parent tells that the directory went, or when a full walk does not find it.
When the queue overflowed, all is walked anew. Without inotify (no instance or watch left: EMFILE, ENOSPC) the turn's
listing remains, `why_not` says why, and it is tried again every so many turns.
Source: inotify(7), reference/kernel.md 2.3 and 5.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from agent.host.cgroup import POD_DEPTH, CgroupLister, PodGroup, is_kubepods
from agent.host.inotify import IN_CREATE, IN_DELETE, IN_IGNORED, IN_ISDIR, IN_Q_OVERFLOW, Event, Inotify
from slacktide.errors import KernelError
from slacktide.kernel.kubepods import container_id, pod_uid

_READS: Final = 4
"""Buffers read in one go; the rest is there the next time."""

_TRY_EVERY: Final = 60
_WALK_EVERY: Final = 300
"""Turns after which all is walked anew although nothing was lost: what is never checked is not known."""

_ABOVE: Final = -1
_POD: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A pod with something new in it. `at` is when (monotonic) this was first seen."""

    pod: PodGroup
    at: float


@dataclass(frozen=True, slots=True)
class _Watched:
    """A watched directory: `depth` is how far below it pods may lie, _POD for a pod, _ABOVE for kubepods' parent."""

    group: str
    depth: int


class CgroupWatch:
    """Watches the groups that `lister` lists. One thread uses it; `clock` is monotonic.

    `counters`: events, overflows, walks. `watches` is how many directories are watched.
    """

    def __init__(
        self,
        lister: CgroupLister,
        clock: Callable[[], float],
        make: Callable[[], Inotify] = Inotify,
    ) -> None:
        self._lister = lister
        self._clock = clock
        self._make = make
        self._inotify: Inotify | None = None
        self._by_watch: dict[int, _Watched] = {}
        self._by_group: dict[str, int] = {}
        self._new: dict[str, float] = {}
        self._changed = True
        self._lost = True
        self._turns = 0
        self.why_not = ""
        self.counters = {"events": 0, "overflows": 0, "walks": 0}
        self._open()

    @property
    def watches(self) -> int:
        """How many directories are watched."""
        return len(self._by_watch)

    @property
    def pending(self) -> bool:
        """Whether something came that was not taken yet."""
        return bool(self._new)

    def fileno(self) -> int | None:
        """Descriptor that is readable when something came or went; None without inotify."""
        return None if self._inotify is None else self._inotify.fileno()

    def follow(self) -> None:
        """Once a turn, after its listing: watch kubepods where it was found meanwhile, and repair what was lost."""
        self._turns += 1
        if self._inotify is None and self._turns % _TRY_EVERY == 0:
            self._open()
        unwatched = any(group not in self._by_group for group in (self._lister.root, *self._lister.tops))
        if self._inotify is not None and (self._lost or unwatched or self._turns % _WALK_EVERY == 0):
            self._walk_all(self._clock())

    def take_changed(self) -> bool:
        """Whether pods or containers may have come or gone since this was last asked; true where nothing is watched."""
        self._drain()
        changed = self._changed or self._lost or self._inotify is None
        self._changed = False
        return changed

    def take(self, at_most: int) -> tuple[Arrival, ...]:
        """Pods with something new in them, the earliest first, at most so many; listed now. Those gone are left out."""
        self._drain()
        arrivals = []
        for group in list(self._new)[:at_most]:
            at = self._new.pop(group)
            try:
                pod = self._lister.pod(group)
            except KernelError:
                # The turn's listing will tell of a tree that cannot be read.
                continue
            if pod is not None:
                arrivals.append(Arrival(pod=pod, at=at))
        return tuple(arrivals)

    def close(self) -> None:
        """End all watches."""
        if self._inotify is not None:
            self._inotify.close()
        self._inotify = None
        self._by_watch.clear()
        self._by_group.clear()
        self._new.clear()

    def _open(self) -> None:
        if self._lister.version is None:
            self.why_not = "no cgroup cpu controller is mounted"
            return
        try:
            self._inotify = self._make()
        except OSError as error:
            self._give_up(error)
            return
        self.why_not = ""
        self._lost = True

    def _give_up(self, error: OSError) -> None:
        limits = {errno.EMFILE: "instances or descriptors", errno.ENOSPC: "watches (fs.inotify.max_user_watches)"}
        self.close()
        self.why_not = (
            f"inotify has no {limits.get(error.errno or 0, 'use here')} left: {os.strerror(error.errno or 0)}; "
            "new containers are seen at the next turn"
        )

    def _drain(self) -> None:
        for _ in range(_READS):
            events = [] if self._inotify is None else self._inotify.read()
            if not events:
                return
            now = self._clock()
            self._changed = True
            self.counters["events"] += len(events)
            for event in events:
                self._handle(event, now)

    def _handle(self, event: Event, now: float) -> None:
        if event.mask & IN_Q_OVERFLOW:
            self.counters["overflows"] += 1
            self._lost = True
            self._walk_all(now)
            return
        watched = self._by_watch.get(event.watch)
        if watched is None:
            return
        if event.mask & IN_IGNORED:
            self._forget(watched.group)
        elif not event.mask & IN_ISDIR or not event.name:
            return
        elif event.mask & IN_CREATE:
            self._came(watched, event.name, now)
        elif event.mask & IN_DELETE:
            self._end(_join(watched.group, event.name))
        else:
            self._lost = True

    def _came(self, parent: _Watched, name: str, now: float) -> None:
        group = _join(parent.group, name)
        if parent.depth == _ABOVE:
            if is_kubepods(name):
                self._walk(group, POD_DEPTH, now)
        elif parent.depth == _POD:
            if container_id(name) is not None:
                self._new.setdefault(parent.group, now)
        elif pod_uid(name) is not None:
            self._walk(group, _POD, now)
        elif parent.depth > 1:
            self._walk(group, parent.depth - 1, now)

    def _walk_all(self, now: float) -> None:
        """Watch the whole tree, and end the watches of what is not there any more."""
        lost, self._lost = self._lost, False
        self.counters["walks"] += 1
        before = set(self._by_group)
        above = {self._lister.root, *(os.path.dirname(top) for top in self._lister.tops)}
        seen = {group for group in above if self._watch(group, _ABOVE)}
        for top in self._lister.tops:
            seen |= self._walk(top, POD_DEPTH, now, every=lost)
        for group in before - seen:
            self._end(group)

    def _walk(self, group: str, depth: int, now: float, *, every: bool = False) -> set[str]:
        """Watch `group`, then what is in it already: the groups that are watched now.

        A pod that was not watched before is new, with `every` all are.
        """
        old = self._by_group.get(group)
        if not self._watch(group, depth):
            return set()
        seen = {group}
        if depth == _POD:
            if every or self._by_group[group] != old:
                self._new.setdefault(group, now)
            return seen
        for name in self._names(group):
            if pod_uid(name) is not None:
                seen |= self._walk(_join(group, name), _POD, now, every=every)
            elif depth > 1:
                seen |= self._walk(_join(group, name), depth - 1, now, every=every)
        return seen

    def _watch(self, group: str, depth: int) -> bool:
        """Whether the group is watched now; false when it is gone, or without inotify."""
        if self._inotify is None:
            return False
        try:
            watch = self._inotify.add(self._lister.absolute(group) if group else self._lister.mount)
        except ValueError:
            # A name that no kubelet gives.
            return False
        except OSError as error:
            if error.errno in {errno.ENOSPC, errno.ENOMEM, errno.EMFILE}:
                self._give_up(error)
            return False
        old = self._by_group.get(group)
        if old is not None and old != watch:
            self._end(group)
        self._by_group[group] = watch
        self._by_watch[watch] = _Watched(group, depth)
        return True

    def _end(self, group: str) -> None:
        watch = self._by_group.get(group)
        if watch is not None and self._inotify is not None:
            self._inotify.remove(watch)
        self._forget(group)

    def _forget(self, group: str) -> None:
        self._by_watch.pop(self._by_group.pop(group, -1), None)
        self._new.pop(group, None)

    def _names(self, group: str) -> Iterator[str]:
        try:
            yield from (name for name, _ in self._lister.children(group))
        except KernelError:
            # It cannot be listed now; the turn's listing tells, and the next walk tries again.
            self._lost = True


def _join(group: str, name: str) -> str:
    return f"{group}/{name}" if group else name

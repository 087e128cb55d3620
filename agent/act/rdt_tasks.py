"""Which threads are in the class of BE: all of BE's, and no others.

resctrl knows threads, not cgroups. New ones inherit the class of the thread that made them, so moving is repeated until
nothing new is found. A thread that somebody put into a group of his own stays there. A thread of ours that is BE's no
more goes back to the default class, but only when every cgroup of BE could be read: a hole in what we see must not
loosen anything. Source: reference/kernel.md 1.5.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from agent.host.cgroup import CgroupLister, PodGroup
from agent.host.resctrl import parse
from agent.host.resctrl.groups import MONITORS, Groups, RdtTree, is_ours
from slacktide.errors import Gone, KernelError
from slacktide.kernel.files import read_text, translate
from slacktide.kernel.hierarchy import Version

_ROUNDS: Final = 5
_MAX_GROUPS: Final = 1000
"""Cgroups looked at below one pod: nested ones (kata, systemd) count, a storm of them must not stop us."""


@dataclass(frozen=True, slots=True)
class Found:
    """Threads of BE. `complete` is false where some cgroup of BE could not be read."""

    tids: frozenset[int]
    complete: bool


class BeThreads:
    """Finds threads below pods' cgroups. `lister` says where these are."""

    def __init__(self, lister: CgroupLister) -> None:
        self._lister = lister

    def find(self, pods: Sequence[PodGroup]) -> Found:
        """All threads of these pods, nested cgroups included. A group that went away or was made anew has none."""
        tids: set[int] = set()
        complete = True
        for pod in pods:
            try:
                tids |= self._of(pod)
            except Gone:
                continue
            except KernelError:
                complete = False
        return Found(frozenset(tids), complete)

    def _of(self, pod: PodGroup) -> set[int]:
        path = self._lister.absolute(pod.group)
        if _inode(path) != pod.inode:
            raise Gone(path, None, "the cgroup was removed and made again")
        name = "cgroup.threads" if self._lister.version is Version.V2 else "tasks"
        tids: set[int] = set()
        for count, directory in enumerate(_below(path)):
            if count >= _MAX_GROUPS:
                raise KernelError(path, None, f"more than {_MAX_GROUPS} cgroups below one pod")
            file = os.path.join(directory, name)
            try:
                tids |= parse.tasks(read_text(file), file)
            except Gone:
                continue
        return tids


def _inode(path: str) -> int:
    try:
        return os.stat(path, follow_symlinks=False).st_ino
    except OSError as error:
        raise translate(path, error) from error


def _below(path: str) -> Iterator[str]:
    """`path` and all directories below it; one that goes away meanwhile has none."""
    yield path
    try:
        with os.scandir(path) as entries:
            children = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError as error:
        problem = translate(path, error)
        if isinstance(problem, Gone):
            return
        raise problem from error
    for name in children:
        yield from _below(os.path.join(path, name))


class Membership:
    """Keeps the threads of a group as they ought to be. `counters`: rdt_moved, rdt_returned, rdt_left, rdt_refused."""

    def __init__(self, threads: BeThreads, counters: Counter[str]) -> None:
        self._threads = threads
        self._counters = counters
        self._left: frozenset[int] = frozenset()

    def keep(self, tree: RdtTree, group: str, groups: Groups, pods: Sequence[PodGroup]) -> list[str]:
        """One look at `group`, a class of ours or a monitoring group of the default class. Returns what went wrong.

        The list of the group is read after the writes, so that the kernel itself says who is in. Raises Gone when
        the group or the mount went away.
        """
        refused: tuple[KernelError, ...] = ()
        others = ended = frozenset[int]()
        for _ in range(_ROUNDS):
            inside = tree.tasks(group)
            found = self._threads.find(pods)
            waiting = found.tids - inside - ended
            others = _in_others(tree, groups) & waiting if waiting else others
            waiting -= others
            if not waiting:
                break
            attached = tree.attach(group, sorted(waiting))
            ended, refused = ended | attached.ended, attached.refused
            self._counters["rdt_moved"] += attached.moved
        if found.complete:
            refused += self._give_back(tree, group, inside - found.tids)
        self._counters["rdt_refused"] += len(refused)
        self._counters["rdt_left"] += len(others - self._left)
        self._left = others
        return _told(group, waiting, others, refused, complete=found.complete)

    def _give_back(self, tree: RdtTree, group: str, strays: frozenset[int]) -> tuple[KernelError, ...]:
        """Threads that are not BE's go to the default class, those that are still in the group now."""
        if not strays:
            return ()
        attached = tree.attach("", sorted(strays & tree.tasks(group)))
        self._counters["rdt_returned"] += attached.moved
        return attached.refused


def _in_others(tree: RdtTree, groups: Groups) -> frozenset[int]:
    """Threads in groups that are not ours, at both levels: moving one would take it out of its group there."""
    names = [name for name in groups.classes if not is_ours(name)]
    names += [f"{MONITORS}/{name}" for name in groups.monitors if not is_ours(name)]
    found: set[int] = set()
    for name in names:
        try:
            found |= tree.tasks(name)
        except Gone:
            continue
    return frozenset(found)


def _told(
    group: str, waiting: frozenset[int], others: frozenset[int], refused: Sequence[KernelError], *, complete: bool
) -> list[str]:
    problems = [f"{len(waiting)} threads of BE are not in {group} yet"] if waiting else []
    if others:
        problems.append(f"{len(others)} threads of BE are in groups of others, and are left there")
    if refused:
        problems.append(f"{len(refused)} threads could not be moved: {refused[0]}")
    if not complete:
        problems.append("some cgroup of BE could not be read: no thread is moved back")
    return problems

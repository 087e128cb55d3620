"""Finds cgroups of pods and containers by listing below kubepods, under the mount of each controller.

Paths are never computed: kubelet and runtime may follow different drivers, and kind nests kubepods deeper. A group
is its path together with its inode, because a path that was removed and made again is another group. One pod's
group has the same relative path under every controller with both drivers; a controller where it is missing just
has no readings.

Where the kubelet uses systemd and the runtime does not, a container's cgroup lies outside its pod's and carries both
names (`kubepods-...-podUID.slice:cri-containerd:ID`, koordinator#661): such a *stray* is listed with its pod.

A directory's link count tells when a group came or went below it, so that a pod is listed anew only then, and now
and then, as one container in place of another leaves the count. Source: reference/kernel.md 2.3; kubernetes
pkg/kubelet/cm.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from agent.host.parse import is_count
from slacktide.errors import Gone, KernelError
from slacktide.kernel.files import read_text, translate
from slacktide.kernel.hierarchy import Hierarchy, Version, checked_group
from slacktide.kernel.kubepods import container_id, pod_uid, stray

_OF_USERS: Final = "user.slice"
"""Login sessions: systemd may have given its users parts of it, where they make cgroups of any name."""

_ROOT_DEPTH: Final = 4
"""kubepods is looked for this deep below the root: kind nests it two levels down."""

POD_DEPTH: Final = 3
"""A pod lies at most this deep below kubepods."""

_SEARCH_EVERY: Final = 30
"""The search for kubepods walks every cgroup near the root: once found, it is repeated only each so many listings."""

_RELIST_EVERY: Final = 5
"""A pod whose link count says nothing new is listed anew after so many listings."""


@dataclass(frozen=True, slots=True)
class ContainerGroup:
    """Cgroup of one container of a pod."""

    group: str
    inode: int
    id: str


@dataclass(frozen=True, slots=True)
class PodGroup:
    """Cgroup of one pod, as listed under the cpu controller, with its containers."""

    group: str
    inode: int
    uid: str
    containers: tuple[ContainerGroup, ...] = ()


class _Listed(NamedTuple):
    """A pod as last listed, its link count then, and which listing that was."""

    pod: PodGroup
    links: int
    number: int


class CgroupLister:
    """Lists pod cgroups under the cpu controller's mount (or `controller`), below `root` if that is not empty.

    `root` is the project's own cgroup on a machine without Kubernetes ("slacktide-1a2b3c4d"); empty means the whole
    mount. Raises ValueError for a root that leaves the mount.
    """

    def __init__(self, hierarchy: Hierarchy, root: str = "", controller: str = "cpu") -> None:
        self.root = checked_group(root) if root else ""
        self.hierarchy = hierarchy
        self._mount = hierarchy.controllers.get(controller)
        self.version: Version | None = self._mount.version if self._mount else None
        self.tops: tuple[str, ...] = ()
        self._stray_parents: tuple[str, ...] = ()
        self._known: dict[str, _Listed] = {}
        self._listings = 0

    def pods(self) -> tuple[PodGroup, ...]:
        """All pod groups there are now, sorted by path; empty when there is no kubepods (yet).

        Raises a KernelError when the root exists but cannot be listed: that is no "no pods". `tops` are then the
        groups called kubepods that were found.
        """
        if self._mount is None:
            return ()
        if not self.tops or self._listings % _SEARCH_EVERY == 0:
            self._search()
        self._listings += 1
        pods = [pod for top in self.tops for pod in self._pods_below(top, POD_DEPTH)]
        self._known = {pod.group: self._known[pod.group] for pod in pods}
        if self._stray_parents:
            pods = self._with_strays(pods)
        return tuple(sorted(pods, key=lambda pod: pod.group))

    def pod(self, group: str) -> PodGroup | None:
        """One pod's group as it is now; None when it is gone, or no pod's. Raises a KernelError as `pods` does."""
        uid = pod_uid(os.path.basename(group))
        if self._mount is None or uid is None:
            return None
        path = self.absolute(group)
        try:
            found = os.lstat(path)
        except OSError as error:
            problem = translate(path, error)
            if isinstance(problem, Gone):
                return None
            raise problem from error
        return PodGroup(group, found.st_ino, uid, self._containers(group)) if stat.S_ISDIR(found.st_mode) else None

    @property
    def mount(self) -> str:
        """Where the controller is mounted."""
        assert self._mount is not None
        return self._mount.path

    def absolute(self, group: str) -> str:
        """Directory of `group` under this lister's mount."""
        assert self._mount is not None
        return os.path.join(self._mount.path, checked_group(group))

    def _search(self) -> None:
        """Find kubepods, and where containers lie outside their pods."""
        tops: list[str] = []
        parents: set[str] = set()
        for path in self._find(self.root, _ROOT_DEPTH):
            if stray(os.path.basename(path)) is None:
                tops.append(path)
            else:
                parents.add(os.path.dirname(path))
        self.tops, self._stray_parents = tuple(tops), tuple(sorted(parents))

    def _find(self, group: str, depth: int) -> Iterator[str]:
        for name, _inode in self.children(group):
            path = f"{group}/{name}" if group else name
            if path == _OF_USERS:
                continue
            if is_kubepods(name) or stray(name) is not None:
                yield path
            elif depth > 1:
                yield from self._find(path, depth - 1)

    def _with_strays(self, pods: list[PodGroup]) -> list[PodGroup]:
        """Pods with the containers that lie outside of them."""
        strays: dict[str, list[ContainerGroup]] = {}
        for parent in self._stray_parents:
            for name, inode in self.children(parent):
                found = stray(name)
                if found is not None:
                    group = f"{parent}/{name}" if parent else name
                    strays.setdefault(found.uid, []).append(ContainerGroup(group, inode, found.container))
        return [
            replace(pod, containers=(*pod.containers, *strays[pod.uid])) if pod.uid in strays else pod for pod in pods
        ]

    def _pods_below(self, group: str, depth: int) -> Iterator[PodGroup]:
        for name, inode in self.children(group):
            path = f"{group}/{name}"
            uid = pod_uid(name)
            if uid is not None:
                yield self._pod(path, inode, uid)
            elif depth > 1:
                yield from self._pods_below(path, depth - 1)

    def _pod(self, path: str, inode: int, uid: str) -> PodGroup:
        """A pod with its containers: as it was where nothing came or went since, else listed anew."""
        known, links = self._known.get(path), self._links(path)
        if known is not None and (known.pod.inode, known.links) == (inode, links):
            age = self._listings - known.number
            if links > 1 and age < _RELIST_EVERY:
                return known.pod
        pod = PodGroup(path, inode, uid, self._containers(path))
        if known is not None and known.pod == pod:
            # The same object as before, so that whoever made something from it sees that nothing changed.
            pod = known.pod
        # Pods that are listed together for the first time come due one after another.
        number = self._listings if known is not None else self._listings - inode % _RELIST_EVERY
        self._known[path] = _Listed(pod, links, number)
        return pod

    def _links(self, group: str) -> int:
        """Link count of a directory, 2 + directories in it; file systems that do not count give 1, a gone one 0."""
        assert self._mount is not None
        try:
            return os.stat(f"{self._mount.path}/{group}").st_nlink
        except OSError:
            return 0

    def _containers(self, group: str) -> tuple[ContainerGroup, ...]:
        found = []
        for name, inode in self.children(group):
            leaf = container_id(name)
            if leaf is not None:
                found.append(ContainerGroup(f"{group}/{name}", inode, leaf))
        return tuple(sorted(found, key=lambda container: container.group))

    def children(self, group: str) -> list[tuple[str, int]]:
        """Sub-directories of a group ("" is the mount) with their inodes; one that went away has none.

        Names that cannot be printed are left out: no kubelet or runtime makes them, but whoever was given a cgroup may.
        Raises a KernelError when it is there and cannot be listed.
        """
        assert self._mount is not None
        path = os.path.join(self._mount.path, group) if group else self._mount.path
        try:
            with os.scandir(path) as entries:
                return sorted(
                    (entry.name, entry.inode())
                    for entry in entries
                    if entry.is_dir(follow_symlinks=False) and entry.name.isprintable()
                )
        except OSError as error:
            problem = translate(path, error)
            if isinstance(problem, Gone):
                return []
            raise problem from error


def is_kubepods(name: str) -> bool:
    """Whether a directory of this name holds the pods of a kubelet."""
    return name == "kubepods" or name == "kubepods.slice" or name.endswith("-kubepods.slice")


def open_group(directory: str, inode: int) -> int:
    """Descriptor of a cgroup directory that must still be the one with `inode`; the caller closes it.

    Raises Gone when it went away or another group stands in its place.
    """
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise translate(directory, error) from error
    if os.fstat(descriptor).st_ino != inode:
        os.close(descriptor)
        raise Gone(directory, None, "the cgroup was removed and made again")
    return descriptor


def find_group(mount: str, group: str) -> tuple[int, int]:
    """Descriptor and inode of `group` below `mount`, for a group whose inode is not known; the caller closes it.

    Walks down part by part and follows no symbolic link. Raises ValueError for a path that leaves the mount, Gone
    when there is no such group.
    """
    parts = checked_group(group).split("/")
    descriptor = _open_part(mount, None)
    for part in parts:
        try:
            below = _open_part(part, descriptor)
        finally:
            os.close(descriptor)
        descriptor = below
    return descriptor, os.fstat(descriptor).st_ino


def _open_part(name: str, above: int | None) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (0 if above is None else os.O_NOFOLLOW)
    try:
        return os.open(name, flags, dir_fd=above)
    except OSError as error:
        raise translate(name, error) from error


def threads_of(directory: str, version: Version, containers: tuple[str, ...] = ()) -> list[int]:
    """Thread ids in a pod's group and in its containers' groups; those that went away have none."""
    return [tid for path in (directory, *containers) for tid in tids_in(path, version)]


def tids_in(directory: str, version: Version) -> list[int]:
    """Thread ids in one cgroup; none when it went away. Threads of a pid namespace that we cannot see are left out."""
    try:
        text = read_text(os.path.join(directory, "cgroup.threads" if version is Version.V2 else "tasks"))
    except KernelError:
        return []
    return [int(word) for word in text.split() if is_count(word) and word != "0"]

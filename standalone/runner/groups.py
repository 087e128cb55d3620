"""Cgroups of pods below one root of our own, in kubepods layout, on v1, v2 and both at once.

```
<mount>/<root>/kubepods[/burstable|/besteffort]/pod<uid>/<container id>
```
v1 has one such tree for each controller, v2 one for all with controllers enabled from the top down and processes only
in the leaves. Only the runner makes and removes these directories; knobs are written once, when a directory is made,
because the agent works on them afterwards.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from slacktide.errors import Gone, KernelError, Refused
from slacktide.kernel import kubepods
from slacktide.kernel.files import read_text, translate, write_value
from slacktide.kernel.hierarchy import Hierarchy, Version, checked_group
from slacktide.weights import weight_of
from standalone.runner.attempts import ContainerId, PodUid
from standalone.runner.limits import PERIOD_MICROS, Limits
from standalone.runner.shim.groups import Target, kill_pass

USED: Final = ("cpu", "cpuacct", "cpuset", "memory", "pids", "freezer")
_CPUSET_FILES: Final = ("cpuset.mems", "cpuset.cpus")


@dataclass(frozen=True, slots=True)
class Tree:
    """One mount: v1 with the controllers mounted there, or v2 with those it offers."""

    mount: str
    version: Version
    controllers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Container:
    """Where a container's processes go: directories to join, and the files that concern its end."""

    dirs: list[str]
    kill_file: str
    freezer: str
    oom_file: str

    @property
    def target(self) -> Target:
        """What has to be killed."""
        return Target(self.dirs, self.kill_file, self.freezer)


class Groups:
    """Makes, lists, kills and removes cgroups below `root`. mkdir and rmdir are injected for tests on plain trees.

    Methods raise KernelError where the kernel says no.
    """

    def __init__(
        self,
        hierarchy: Hierarchy,
        root: str,
        mkdir: Callable[[str], None] = os.mkdir,
        rmdir: Callable[[str], None] = os.rmdir,
    ) -> None:
        self.root = checked_group(root)
        self._mkdir = mkdir
        self._rmdir = rmdir
        self.trees = _trees(hierarchy)

    def prepare(self, node_shares: int) -> None:
        """Make the class directories. Raises KernelError, Unsupported-like Refused when there is no controller."""
        if not any("cpu" in tree.controllers for tree in self.trees):
            raise Refused("/proc/self/mountinfo", None, "no cgroup cpu controller is mounted")
        for qos in kubepods.QOS_CLASSES:
            self._make(f"{self.root}/{kubepods.qos_parent(qos)}")
        self._knob("cpu", f"{self.root}/kubepods", "cpu.shares", "cpu.weight", node_shares)
        self.set_class_shares("BestEffort", 2)

    def set_class_shares(self, qos: str, shares: int) -> None:
        """Write the weight of a QoS class; an idle class (cpu.idle) refuses it, which changes nothing."""
        self._knob("cpu", f"{self.root}/{kubepods.qos_parent(qos)}", "cpu.shares", "cpu.weight", shares)

    def make_pod(self, qos: str, uid: PodUid, limits: Limits) -> None:
        """Make a pod's directories and write its knobs, unless they exist."""
        group = f"{self.root}/{kubepods.pod_path(qos, uid)}"
        if self._make(group):
            self._apply(group, limits)

    def make_container(self, qos: str, uid: PodUid, container_id: ContainerId, limits: Limits) -> None:
        """Make a container's directories and write its knobs."""
        group = f"{self.root}/{kubepods.pod_path(qos, uid)}/{checked_group(container_id)}"
        self._make(group, leaf=True)
        self._apply(group, limits)

    def container(self, qos: str, uid: PodUid, container_id: ContainerId) -> Container:
        """Paths of a container's cgroup, whether it exists yet or not."""
        return self._container(f"{kubepods.pod_path(qos, uid)}/{checked_group(container_id)}")

    def listed(self) -> Mapping[PodUid, frozenset[ContainerId]]:
        """Pods and containers that have a directory, by any class. Empty when nothing is there."""
        return {
            uid: frozenset(ContainerId(name) for name in self._children(path) if kubepods.container_id(name))
            for uid, path in self._pods().items()
        }

    def kill(self, uid: PodUid, container_id: ContainerId) -> int:
        """Kill once what is in a container's cgroup; returns how many processes were seen."""
        path = self._pods().get(uid)
        return kill_pass(self._container(f"{path}/{container_id}").target) if path else 0

    def remove_container(self, uid: PodUid, container_id: ContainerId) -> bool:
        """Kill what is left and remove the directories. False when something is still dying: try again."""
        path = self._pods().get(uid)
        if path is None:
            return True
        if kill_pass(self._container(f"{path}/{container_id}").target):
            return False
        return self._remove(f"{path}/{container_id}")

    def remove_pod(self, uid: PodUid) -> bool:
        """Remove a pod's directories, which must hold no container any more. False: try again."""
        path = self._pods().get(uid)
        return path is None or self._remove(path)

    def _container(self, relative: str) -> Container:
        dirs = [os.path.join(tree.mount, self.root, relative) for tree in self.trees]
        kill_file = freezer = oom_file = ""
        for tree, directory in zip(self.trees, dirs, strict=True):
            if tree.version is Version.V2:
                kill_file = f"{directory}/cgroup.kill"
            elif "freezer" in tree.controllers:
                freezer = f"{directory}"
            if "memory" in tree.controllers:
                oom_file = f"{directory}/{'memory.oom_control' if tree.version is Version.V1 else 'memory.events'}"
        return Container(dirs, kill_file, freezer, oom_file)

    def _pods(self) -> dict[PodUid, str]:
        """Pod directories below the root in any tree: uid -> path relative to the root."""
        found: dict[PodUid, str] = {}
        for qos in kubepods.QOS_CLASSES:
            parent = kubepods.qos_parent(qos)
            for name in self._children(parent):
                uid = kubepods.pod_uid(name)
                if uid:
                    found[PodUid(uid)] = f"{parent}/{name}"
        return found

    def _children(self, relative: str) -> set[str]:
        names: set[str] = set()
        for tree in self.trees:
            try:
                with os.scandir(os.path.join(tree.mount, self.root, relative)) as entries:
                    names.update(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
            except OSError as error:
                if error.errno not in {errno.ENOENT, errno.ENODEV}:
                    raise translate(relative, error) from error
        return names

    def _make(self, group: str, *, leaf: bool = False) -> bool:
        """Make `group` and what is above it in every tree. True when at least one directory of it was new."""
        made = [_make_in(tree, group, self._mkdir, leaf=leaf) for tree in self.trees]
        return any(made)

    def _remove(self, relative: str) -> bool:
        gone = True
        for tree in self.trees:
            for directory, _, _ in os.walk(os.path.join(tree.mount, self.root, relative), topdown=False):
                try:
                    self._rmdir(directory)
                except OSError as error:
                    if error.errno in {errno.EBUSY, errno.ENOTEMPTY}:
                        gone = False
                    elif error.errno not in {errno.ENOENT, errno.ENODEV}:
                        raise translate(directory, error) from error
        return gone

    def _apply(self, group: str, limits: Limits) -> None:
        if limits.shares is not None:
            self._knob("cpu", group, "cpu.shares", "cpu.weight", limits.shares)
        if limits.quota_micros is not None:
            self._quota(group, limits.quota_micros)
        if limits.memory_bytes is not None:
            self._knob("memory", group, "memory.limit_in_bytes", "memory.max", limits.memory_bytes)
        if limits.whole_group_oom:
            self._knob("memory", group, "", "memory.oom.group", 1)

    def _quota(self, group: str, quota: int) -> None:
        tree = self._tree("cpu")
        if tree is None:
            return
        directory = os.path.join(tree.mount, group)
        if tree.version is Version.V2:
            write_value(f"{directory}/cpu.max", f"{quota} {PERIOD_MICROS}")
            return
        write_value(f"{directory}/cpu.cfs_period_us", PERIOD_MICROS)
        try:
            write_value(f"{directory}/cpu.cfs_quota_us", quota)
        except Refused as refused:
            # v1 refuses a child above its parent, and the agent may have narrowed the pod; the pod's limit then holds.
            if refused.errno != errno.EINVAL:
                raise

    def _knob(self, controller: str, group: str, v1: str, v2: str, value: int) -> None:
        tree = self._tree(controller)
        name = (v1 if tree.version is Version.V1 else v2) if tree else ""
        if tree is None or not name:
            return
        path = os.path.join(tree.mount, group, name)
        written = weight_of(value) if name == "cpu.weight" else value
        try:
            write_value(path, written)
        except Refused:
            if name not in {"cpu.shares", "cpu.weight"}:
                raise
        except Gone:
            # memory.oom.group came with Linux 4.19; a directory that is gone altogether shows when it is joined.
            if name != "memory.oom.group":
                raise

    def _tree(self, controller: str) -> Tree | None:
        return next((tree for tree in self.trees if controller in tree.controllers), None)


def _trees(hierarchy: Hierarchy) -> tuple[Tree, ...]:
    by_mount: dict[tuple[str, Version], list[str]] = {}
    for name in USED:
        mount = hierarchy.controllers.get(name)
        if mount is not None:
            by_mount.setdefault((mount.path, mount.version), []).append(name)
    return tuple(Tree(path, version, tuple(names)) for (path, version), names in by_mount.items())


def _make_in(tree: Tree, group: str, mkdir: Callable[[str], None], *, leaf: bool) -> bool:
    made = False
    path = tree.mount
    parts = group.split("/")
    for index, part in enumerate(parts):
        parent, path = path, os.path.join(path, part)
        try:
            if tree.version is Version.V2:
                _enable(tree, parent)
            try:
                mkdir(path)
                made = index == len(parts) - 1
            except FileExistsError:
                pass
            if "cpuset" in tree.controllers and tree.version is Version.V1:
                _inherit_cpuset(parent, path)
        except OSError as error:
            raise translate(path, error) from error
    if tree.version is Version.V2 and not leaf:
        _enable(tree, path)
    return made


def _enable(tree: Tree, directory: str) -> None:
    """Let the children of `directory` have the controllers that we use."""
    path = f"{directory}/cgroup.subtree_control"
    enabled = set(read_text(path).split())
    offered = set(read_text(f"{directory}/cgroup.controllers").split())
    for name in tree.controllers:
        if name in offered and name not in enabled:
            write_value(path, f"+{name}")


def _inherit_cpuset(parent: str, directory: str) -> None:
    """On v1 a new cpuset is empty, and nothing can join it (ENOSPC) before it has CPUs and memory nodes."""
    for name in _CPUSET_FILES:
        if not read_text(f"{directory}/{name}").strip():
            write_value(f"{directory}/{name}", read_text(f"{parent}/{name}").strip())


def why_not(error: KernelError) -> str:
    """One sentence on why cgroups cannot be used, for the node's condition and the log."""
    return f"cgroups are off: {error}; pods run without weights and limits (run the runner as root to have them)"

"""resctrl without a kernel: paths, opens, reads and writes as processes see them, and what a test may script.

Everything is in one process and behind one lock; filesystem.py puts it under a directory.
"""

from __future__ import annotations

import errno
import itertools
import math
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tests.emulators.resctrl.errors import ResctrlError
from tests.emulators.resctrl.files import CLOSED, PAGE, Directory, File, group_files, info, mon_data
from tests.emulators.resctrl.hardware import CpuModel, Demand
from tests.emulators.resctrl.host import Caller, Host, ProcHost
from tests.emulators.resctrl.monitoring import MBM, OCCUPANCY, Script
from tests.emulators.resctrl.mount import Mount
from tests.emulators.resctrl.profiles import Profile
from tests.emulators.resctrl.state import LOCKSETUP, Group

ROOT, CONTROL, MON_GROUPS, MONITOR, OTHER, FILE = "root", "control", "mon_groups", "monitor", "other", "file"
SELF = Caller(1)
READ_AGE = 0.05
"""Seconds during which counters stay as they are: a burst of reads sees one moment."""


@dataclass(frozen=True)
class Node:
    """What a path names."""

    kind: str
    mode: int
    inode: int
    group: Group | None
    """Whose it is; None below info."""
    mount: Mount
    file: File | None = None
    content: Directory | None = None
    relative: str = ""
    """Path below the group."""


@dataclass
class Fault:
    """An error that a test wants: `operation` is read, write, open, mkdir or rmdir."""

    path: str
    operation: str
    code: int
    times: int | None = None


@dataclass
class Clock:
    """Monotonic seconds, or a time that only moves when told."""

    source: Callable[[], float] = time.monotonic
    frozen: float | None = None

    def now(self) -> float:
        """Seconds."""
        return self.source() if self.frozen is None else self.frozen

    def freeze(self) -> None:
        """From here on time only moves by advance()."""
        self.frozen = self.now()

    def advance(self, seconds: float) -> None:
        """Let frozen time pass."""
        self.frozen = self.now() + seconds


@dataclass
class Opened:
    """An open file: one write is one command, reads see one text until they start over."""

    model: Model
    path: str
    node: Node
    _text: bytes = b""
    _started: bool = False

    def read(self, size: int = 1 << 30, offset: int = 0, caller: Caller = SELF) -> bytes:
        """Raises ResctrlError: ENODEV or ENOENT where the group went away meanwhile."""
        self.model.linger(self.path)
        with self.model.lock:
            if offset == 0 or not self._started:
                self._text, cut = self.model.read_node(self.node, self.path, caller)
                self._started = True
                if cut is not None:
                    return self._text[offset : min(offset + size, cut)]
            else:
                self.model.alive(self.node)
            return self._text[offset : offset + size]

    def write(self, data: bytes, caller: Caller = SELF) -> int:
        """One command. Raises ResctrlError."""
        self.model.linger(self.path)
        with self.model.lock:
            self.model.write_node(self.node, self.path, data, caller)
        return len(data)


@dataclass
class _Attributes:
    mode: int | None = None
    uid: int = 0
    gid: int = 0


@dataclass
class Model:
    """A machine with resctrl mounted."""

    profile: Profile
    host: Host = field(default_factory=ProcHost)
    clock: Clock = field(default_factory=Clock)
    cpu_model: CpuModel = field(default_factory=CpuModel)
    options: frozenset[str] | None = None
    """Mount options; those of the profile where None."""

    def __post_init__(self) -> None:
        self.lock = threading.RLock()
        self.faults: list[Fault] = []
        self._delays_changed = threading.Condition()
        self.delays: dict[str, float] = {}
        """Seconds that reads and writes of a path take."""
        self.cuts: dict[str, int] = {}
        """Reads that end after so many bytes, with the group's removal."""
        self.gone_code = errno.ENODEV
        """What an open file of a removed group answers; the kernel has two paths, the other one says ENOENT."""
        self._serials = itertools.count(1)
        self._inodes: dict[tuple[int, str], int] = {}
        self._next_inode = itertools.count(2)
        self._attributes: dict[int, _Attributes] = {}
        self._mount: Mount | None = None
        self._ticked = -math.inf
        self._options = self.profile.options if self.options is None else self.options
        self.mount_up(self._options)

    def mount_up(self, options: Iterable[str]) -> None:
        """Mount. Raises ResctrlError EBUSY when mounted, EINVAL for an option that the machine cannot give."""
        with self.lock:
            if self._mount is not None:
                raise ResctrlError(errno.EBUSY)
            mount = Mount(self.profile, frozenset(options), self.host, lambda: next(self._serials), self.cpu_model)
            self._mount = mount
            for foreign in self.profile.foreign:
                self.mkdir(foreign.path)
                if foreign.schemata:
                    self.write(f"{foreign.path}/schemata", foreign.schemata.encode())
            mount.pass_time(self.clock.now())

    def unmount(self) -> None:
        """Every group is gone, all threads are in the default group, all controls are wide open."""
        with self.lock:
            for group in self.mounted.groups():
                group.live = False
            self._mount = None

    def remount(self, options: Iterable[str] | None = None) -> None:
        """Someone unmounted and mounted again."""
        with self.lock:
            options = self.mounted.options if options is None else options
            self.unmount()
            self.mount_up(options)

    def reset(self) -> None:
        """As it was at the start: mounted anew, no script, time that passes."""
        with self.lock:
            self.faults.clear()
            self.cuts.clear()
            self.gone_code = errno.ENODEV
            self.clock.frozen = None
            self._ticked = -math.inf
            for path in self.delays:
                self.delay(path, 0.0)
            self.remount(self._options)

    @property
    def mounted(self) -> Mount:
        """The mount. Raises ResctrlError ENODEV when there is none."""
        if self._mount is None:
            raise ResctrlError(errno.ENODEV)
        return self._mount

    @property
    def mount_options(self) -> tuple[str, ...]:
        """As /proc/mounts shows them."""
        return tuple(option for option in ("cdp", "cdpl2", "mba_MBps", "debug") if option in self.mounted.options)

    def tick(self, age: float = 0.0) -> None:
        """Let threads be born, hardware count and limbo end, unless that was done in the last `age` seconds."""
        with self.lock:
            now = self.clock.now()
            if self._mount is not None and now - self._ticked >= age:
                self._ticked = now
                self._mount.pass_time(now)

    def find(self, path: str) -> Node:
        """What `path` names. Raises ResctrlError ENOENT or ENOTDIR."""
        with self.lock:
            mount = self.mounted
            node = self._group_node(mount.root)
            for name in filter(None, path.split("/")):
                if node.kind == FILE:
                    raise ResctrlError(errno.ENOTDIR)
                child = self._children(node).get(name)
                if child is None:
                    raise ResctrlError(errno.ENOENT)
                node = child()
            return node

    def list(self, path: str) -> dict[str, Node]:
        """Entries of a directory. Raises ResctrlError ENOENT or ENOTDIR."""
        with self.lock:
            node = self.find(path)
            if node.kind == FILE:
                raise ResctrlError(errno.ENOTDIR)
            return {name: child() for name, child in self._children(node).items()}

    def _inode(self, serial: int, relative: str) -> int:
        key = (serial, relative)
        if key not in self._inodes:
            self._inodes[key] = next(self._next_inode)
        return self._inodes[key]

    def _group_node(self, group: Group) -> Node:
        kind = MONITOR if not group.control else CONTROL if group.name else ROOT
        return Node(kind, 0o755, self._inode(group.serial, ""), group, self.mounted)

    def _inner(self, group: Group, owner: Group | None, relative: str, entry: File | Directory) -> Node:
        inode = self._inode(group.serial, relative)
        if isinstance(entry, File):
            return Node(FILE, entry.mode, inode, owner, self.mounted, file=entry, relative=relative)
        return Node(OTHER, 0o755, inode, owner, self.mounted, content=entry, relative=relative)

    def _children(self, node: Node) -> dict[str, Callable[[], Node]]:
        group, mount = node.group, self.mounted
        if node.kind == MON_GROUPS:
            assert group is not None
            return {name: _later(self._group_node, child) for name, child in group.children.items()}
        if node.content is not None:
            home = group or mount.root
            return {
                name: _later(self._inner, home, group, f"{node.relative}/{name}", entry)
                for name, entry in node.content.items()
            }
        assert group is not None
        return self._group_children(mount, node.kind, group)

    def _group_children(self, mount: Mount, kind: str, group: Group) -> dict[str, Callable[[], Node]]:
        found: dict[str, Callable[[], Node]] = {
            name: _later(self._inner, group, group, name, file)
            for name, file in group_files(mount, group, self.clock.now).items()
            if mount.allocates or name not in {"schemata", "mode", "size", "ctrl_hw_id"} or kind == ROOT
        }
        if kind == ROOT:
            found["info"] = lambda: self._inner(group, None, "info", info(mount))
            found |= {name: _later(self._group_node, child) for name, child in mount.control.items()}
        if mount.monitor is not None:
            found["mon_data"] = lambda: self._inner(group, group, "mon_data", mon_data(mount, group))
            if group.control:
                mode = CLOSED if group.mode == LOCKSETUP else 0o755
                found["mon_groups"] = lambda: Node(
                    MON_GROUPS, mode, self._inode(group.serial, "mon_groups"), group, mount, relative="mon_groups"
                )
        return found

    def attributes(self, node: Node) -> tuple[int, int, int]:
        """Mode bits, owner and group of a node."""
        changed = self._attributes.get(node.inode, _Attributes())
        return node.mode if changed.mode is None else changed.mode, changed.uid, changed.gid

    def change(self, path: str, mode: int | None = None, uid: int | None = None, gid: int | None = None) -> None:
        """chmod and chown: both hold until the group goes."""
        with self.lock:
            changed = self._attributes.setdefault(self.find(path).inode, _Attributes())
            changed.mode = changed.mode if mode is None else mode & 0o7777
            changed.uid = changed.uid if uid is None else uid
            changed.gid = changed.gid if gid is None else gid

    def open(self, path: str, write: bool = False, read: bool = True) -> Opened:
        """Raises ResctrlError ENOENT, EISDIR, or EACCES where the mode forbids it, to root as well."""
        with self.lock:
            self._fault(path, "open")
            node = self.find(path)
            if node.kind != FILE:
                raise ResctrlError(errno.EISDIR)
            mode = self.attributes(node)[0]
            if (write and not mode & 0o222) or (read and not mode & 0o444):
                raise ResctrlError(errno.EACCES)
            return Opened(self, path, node)

    def create(self, path: str) -> None:
        """Make a plain file. Raises ResctrlError EACCES always, ENOENT without a directory for it."""
        with self.lock:
            self.find(path.rpartition("/")[0])
            raise ResctrlError(errno.EACCES)

    def read(self, path: str, caller: Caller = SELF) -> str:
        """Whole text of a file. Raises ResctrlError."""
        return self.open(path).read(caller=caller).decode("latin-1")

    def write(self, path: str, data: bytes, caller: Caller = SELF) -> int:
        """Open and write once. Raises ResctrlError."""
        return self.open(path, write=True, read=False).write(data, caller)

    def delay(self, path: str, seconds: float) -> None:
        """Reads and writes of `path` take so long; 0 ends that, for those that wait as well."""
        with self._delays_changed:
            self.delays[path.strip("/")] = seconds
            self._delays_changed.notify_all()

    def linger(self, path: str) -> None:
        """Take the time that a test wants this path to take, without keeping others from theirs."""
        path = path.strip("/")
        wanted = self.delays.get(path, 0.0)
        if wanted > 0:
            with self._delays_changed:
                self._delays_changed.wait_for(lambda: self.delays.get(path) != wanted, wanted)

    def alive(self, node: Node) -> None:
        """Raises ResctrlError ENODEV (or ENOENT where a test wants that) when what was opened went away."""
        if node.mount is not self._mount or (node.group is not None and not node.group.live):
            raise ResctrlError(self.gone_code)

    def read_node(self, node: Node, path: str, caller: Caller) -> tuple[bytes, int | None]:
        """Text of an open file, and after how many bytes the group vanishes where a test wants that."""
        self.alive(node)
        self._fault(path, "read")
        assert node.file is not None
        if node.relative.startswith("mon_data"):
            self.tick(READ_AGE)
        text = node.file.read(caller).encode("latin-1")
        cut = self.cuts.pop(path.strip("/"), None)
        if cut is not None and node.group is not None:
            node.mount.remove(node.group, self.clock.now())
        return text, cut

    def write_node(self, node: Node, path: str, data: bytes, caller: Caller) -> None:
        """One command to an open file. Raises ResctrlError E2BIG above a page."""
        if len(data) > PAGE:
            raise ResctrlError(errno.E2BIG)
        self.alive(node)
        self._fault(path, "write")
        assert node.file is not None
        if node.file.write is None:
            raise ResctrlError(errno.EINVAL)
        self.tick()
        node.file.write(data, caller)

    def mkdir(self, path: str) -> None:
        """Make a group. Raises ResctrlError EEXIST, EINVAL, EPERM, ENODEV, ENOSPC or EBUSY."""
        with self.lock:
            above, _, name = path.strip("/").rpartition("/")
            parent, mount = self.find(above), self.mounted
            self._fault(path, "mkdir")
            if parent.kind == FILE:
                raise ResctrlError(errno.ENOTDIR)
            if name in self._children(parent):
                raise ResctrlError(errno.EEXIST)
            if "\n" in name:
                raise ResctrlError(errno.EINVAL)
            if len(name.encode("utf-8", "surrogateescape")) > 255:
                raise ResctrlError(errno.ENAMETOOLONG)
            self.tick()
            if mount.allocates and parent.kind == ROOT:
                mount.make_control(name, self.clock.now())
            elif mount.monitor is None:
                raise ResctrlError(errno.EPERM)
            else:
                self._mkdir_monitor(mount, parent, name)

    def _mkdir_monitor(self, mount: Mount, parent: Node, name: str) -> None:
        if parent.group is None:
            raise ResctrlError(errno.ENODEV)
        mount.status.clear()
        if parent.kind != MON_GROUPS or name == "mon_groups":
            raise ResctrlError(errno.EPERM)
        mount.make_monitor(parent.group, name, self.clock.now())

    def rmdir(self, path: str) -> None:
        """Remove a group, whatever is in it. Raises ResctrlError ENOTDIR, or EPERM for what is no group."""
        with self.lock:
            node = self.find(path)
            self._fault(path, "rmdir")
            if node.kind == FILE:
                raise ResctrlError(errno.ENOTDIR)
            if node.kind not in {CONTROL, MONITOR} or node.group is None:
                raise ResctrlError(errno.EPERM)
            self.tick()
            node.mount.remove(node.group, self.clock.now())

    def rename(self, old: str, new: str) -> None:
        """Move a MON group. Raises ResctrlError EPERM, EEXIST or ENOENT."""
        with self.lock:
            source = self.find(old)
            above, _, name = new.strip("/").rpartition("/")
            target, status = self.find(above), self.mounted.status
            taken = name in self._children(target)
            if source.group is None or target.group is None:
                raise ResctrlError(errno.ENOENT)
            status.clear()
            if source.kind == FILE:
                raise status.fail(errno.EPERM, "Source and destination must be directories")
            if source.kind != MONITOR:
                raise status.fail(errno.EPERM, "Source must be a MON group")
            if target.kind != MON_GROUPS or name == "mon_groups":
                raise status.fail(errno.EPERM, "Destination must be a mon_groups subdirectory")
            if taken:
                raise ResctrlError(errno.EEXIST)
            self.tick()
            self.mounted.move(source.group, target.group, name)

    def _fault(self, path: str, operation: str) -> None:
        for fault in self.faults:
            if fault.operation == operation and fault.path.strip("/") == path.strip("/"):
                if fault.times is not None:
                    fault.times -= 1
                    if fault.times <= 0:
                        self.faults.remove(fault)
                raise ResctrlError(fault.code)

    def group(self, path: str) -> Group:
        """The group at `path`. Raises ResctrlError ENOENT."""
        node = self.find(path)
        if node.group is None or node.kind not in {ROOT, CONTROL, MONITOR}:
            raise ResctrlError(errno.ENOENT)
        return node.group

    def demand(self, path: str, demand: Demand | None, domain: int | None = None) -> None:
        """What the group at `path` asks of one domain or of all; None: what its threads' CPU time says."""
        with self.lock:
            self.tick()
            hardware, group = self.mounted.hardware, self.group(path)
            for each in hardware.domains if domain is None else (domain,):
                if demand is None:
                    hardware.scripted.pop((group.rmid, each), None)
                else:
                    hardware.scripted[group.rmid, each] = demand

    def count(self, path: str, domain: int, event: str, value: float) -> None:
        """Set a counter of the group itself, without its MON groups."""
        with self.lock:
            self.tick()
            mount, group = self.mounted, self.group(path)
            counter = mount.hardware.counter(group.rmid, domain)
            name = {OCCUPANCY: "occupancy", MBM[0]: "total", MBM[1]: "local"}[event]
            base = mount.monitor.base(group.rmid, domain, event) if mount.monitor else 0.0
            setattr(counter, name, value + base)

    def say(self, path: str, domain: int, event: str, text: str, times: int | None = None) -> None:
        """Let an event of the group itself read as `text`, so many times."""
        with self.lock:
            monitor = self.mounted.monitor
            assert monitor is not None
            monitor.scripts[self.group(path).rmid, domain, event] = Script(text, times)

    def take_domain(self, domain: int) -> None:
        """The last CPU of a cache domain went away."""
        with self.lock:
            self.mounted.controls.offline.add(domain)
            if self.mounted.monitor is not None:
                self.mounted.monitor.offline.add(domain)


def _later(make: Callable[..., Node], *arguments: object) -> Callable[[], Node]:
    """A child that is only made when it is looked at."""
    return lambda: make(*arguments)

"""One mount: its groups and what may be done with them."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator

from tests.emulators.resctrl.assignments import Assignments
from tests.emulators.resctrl.errors import ResctrlError
from tests.emulators.resctrl.hardware import CpuModel, Hardware
from tests.emulators.resctrl.host import Caller, Host
from tests.emulators.resctrl.io_alloc import IoAlloc
from tests.emulators.resctrl.monitoring import LOCAL, MBM, OCCUPANCY, TOTAL, Monitor
from tests.emulators.resctrl.parsing import (
    SPACE,
    format_list,
    format_mask,
    kernel_int,
    parse_list,
    parse_mask,
    set_bits,
)
from tests.emulators.resctrl.profiles import Profile
from tests.emulators.resctrl.schemata import Controls
from tests.emulators.resctrl.state import (
    EXCLUSIVE,
    LOCKED,
    LOCKSETUP,
    SHAREABLE,
    Closids,
    Group,
    LastCommand,
    Rmids,
)
from tests.emulators.resctrl.tasks import ROOT, Label, Tasks

OPTIONS = ("cdp", "cdpl2", "mba_MBps", "debug")


def check_options(profile: Profile, options: frozenset[str]) -> None:
    """Raises ResctrlError EINVAL for an option that the machine cannot give."""
    cdp = {cache.name for cache in profile.caches if cache.cdp_capable}
    if options - set(OPTIONS) or ("cdp" in options and "L3" not in cdp) or ("cdpl2" in options and "L2" not in cdp):
        raise ResctrlError(errno.EINVAL)
    linear = any(bandwidth.name == "MB" and bandwidth.linear for bandwidth in profile.bandwidths)
    counted = profile.monitoring is not None and any(event in MBM for event in profile.monitoring.events)
    if "mba_MBps" in options and not (linear and counted and profile.same_scope):
        raise ResctrlError(errno.EINVAL)


class Mount:
    """Everything between mount and unmount. All methods expect the model's lock to be held."""

    def __init__(
        self, profile: Profile, options: frozenset[str], host: Host, serial: Callable[[], int], model: CpuModel
    ) -> None:
        check_options(profile, options)
        self.profile = profile
        self.options = options
        self.status = LastCommand(profile.old_words)
        self.controls = Controls(profile, options, self.status)
        self.hardware = Hardware(profile, self.controls, model)
        self.monitor = Monitor(profile.monitoring, self.hardware, self.status) if profile.monitoring else None
        self.tasks = Tasks(host)
        self.online = profile.online
        self._serial = serial
        self.root = Group("", serial(), 0, 0, cpus=self.online, mbps_event=self._default_event())
        self.control: dict[str, Group] = {}
        self.controls.groups = self.control_groups
        self.closids = Closids(self.controls.closids)
        facts = profile.monitoring
        self.io_alloc = IoAlloc(self.controls, self.closids, self.status)
        self.threshold = 0
        if facts is not None:
            self.threshold = facts.cache_bytes // facts.num_rmids // facts.unit * facts.unit
        self.rmids = Rmids(
            facts.num_rmids if facts else 1,
            facts is not None and OCCUPANCY in facts.events,
            lambda rmid: self.hardware.dirty(rmid, self.threshold),
        )

        self.assignments: Assignments | None = None
        if self.monitor is not None and self.monitor.facts.abmc_counters:
            self.assignments = Assignments(self.monitor, self.status, self.groups)
            self.assignments.begin(self.root)

    @property
    def allocates(self) -> bool:
        """Whether there is any control."""
        return bool(self.controls.schemas)

    def _default_event(self) -> str:
        events = self.profile.monitoring.events if self.profile.monitoring else ()
        return LOCAL if LOCAL in events else TOTAL

    def control_groups(self) -> list[Group]:
        """The root and all CTRL groups."""
        return [self.root, *self.control.values()]

    def groups(self) -> Iterator[Group]:
        """Every group."""
        for group in self.control_groups():
            yield from group.members()

    def pass_time(self, now: float) -> None:
        """Let threads be born and hardware count up to `now`."""
        self.tasks.refresh(always=False)
        owners: dict[int, Label] = {}
        for group in self.groups():
            label = Label(group.closid, group.rmid)
            # A MON group comes after its parent, whose CPUs include its own.
            owners |= dict.fromkeys(set_bits(group.cpus), label)
        labels = [Label(group.closid, group.rmid) for group in self.groups() if group.mode in {SHAREABLE, EXCLUSIVE}]
        self.hardware.advance(now, self.tasks, owners, labels)
        self.rmids.check(now)

    def make_control(self, name: str, now: float) -> Group:
        """mkdir in the root. Raises ResctrlError ENOSPC, or EBUSY where only limbo has monitoring ids."""
        self.status.clear()
        try:
            closid = self.closids.take()
        except ResctrlError as error:
            raise self.status.fail(error.errno or 0, "Out of CLOSIDs") from None
        try:
            rmid = self._take_rmid(now)
            try:
                self.controls.start(closid)
            except ResctrlError:
                self._free_rmid(rmid, now)
                raise
        except ResctrlError:
            self.closids.free(closid)
            raise
        group = Group(name, self._serial(), closid, rmid, mbps_event=self._default_event())
        self.control[name] = group
        self._assign(group)
        return group

    def make_monitor(self, parent: Group, name: str, now: float) -> Group:
        """mkdir in mon_groups. Raises ResctrlError ENOSPC, EBUSY, or EINVAL below a pseudo-lock group."""
        if parent.mode in {LOCKSETUP, LOCKED}:
            raise self.status.fail(errno.EINVAL, "Pseudo-locking in progress")
        group = Group(name, self._serial(), parent.closid, self._take_rmid(now), parent)
        parent.children[name] = group
        self._assign(group)
        return group

    def _assign(self, group: Group) -> None:
        if self.assignments is not None:
            self.assignments.begin(group)

    def _take_rmid(self, now: float) -> int:
        if self.monitor is None:
            return 0
        try:
            rmid = self.rmids.take(now)
        except ResctrlError as error:
            raise self.status.fail(error.errno or 0, "Out of RMIDs") from None
        self.monitor.begin(rmid)
        return rmid

    def _free_rmid(self, rmid: int, now: float) -> None:
        if self.monitor is not None:
            for domain in self.monitor.facts.domains:
                self.hardware.scripted.pop((rmid, domain), None)
            self.rmids.free(rmid, now)

    def remove(self, group: Group, now: float) -> None:
        """rmdir of a group: its threads and CPUs go to the default group, those of a MON group to its parent."""
        group.live = False
        if self.assignments is not None:
            for member in group.members():
                self.assignments.end(member)
        if group.parent is not None:
            self.tasks.relabel(group, Label(group.parent.closid, group.parent.rmid))
            self._free_rmid(group.rmid, now)
            del group.parent.children[group.name]
            return
        for child in group.children.values():
            child.live = False
        if group.mode in {SHAREABLE, EXCLUSIVE}:
            self.tasks.relabel(group, ROOT)
            self.root.cpus |= group.cpus
            self._free_rmid(group.rmid, now)
        if group.mode != LOCKED:
            self.closids.free(group.closid)
        for child in group.children.values():
            self._free_rmid(child.rmid, now)
        del self.control[group.name]

    def move(self, group: Group, parent: Group, name: str) -> None:
        """Rename a MON group, its threads follow into the class of `parent`. Raises ResctrlError EPERM."""
        assert group.parent is not None
        if group.cpus and group.parent is not parent:
            raise self.status.fail(errno.EPERM, "Cannot move a MON group that monitors CPUs")
        members = self.tasks.of(group)
        del group.parent.children[group.name]
        group.name, group.parent, group.closid = name, parent, parent.closid
        parent.children[name] = group
        for tid in members:
            self.tasks.put(tid, Label(group.closid, group.rmid))

    def write_tasks(self, group: Group, text: str, caller: Caller) -> None:
        """A comma list, left to right until the first that fails. Raises ResctrlError EINVAL, ESRCH or EPERM."""
        self.status.clear()
        self._not_locked(group)
        self.tasks.refresh()
        while text and text[0] not in "\0\n":
            token, _, text = text.partition(",")
            token = token.strip(SPACE)
            try:
                pid = kernel_int(token)
            except ResctrlError:
                raise self.status.fail(errno.EINVAL, f"Task list parsing error pid {token}") from None
            if pid < 0:
                raise self.status.fail(errno.EINVAL, f"Invalid pid {pid}")
            try:
                self._move_task(group, pid, caller)
            except ResctrlError:
                self.status.say(f"Error while processing task {pid}")
                raise

    def _move_task(self, group: Group, pid: int, caller: Caller) -> None:
        host = self.tasks.host
        tid = host.outside(pid, caller) if pid else caller.tid
        owner = None if tid is None else host.owner(tid)
        if tid is None or owner is None:
            raise self.status.fail(errno.ESRCH, f"No task {pid}")
        if caller.uid != 0 and caller.uid not in owner:
            raise self.status.fail(errno.EPERM, f"No permission to move task {tid}")
        if group.parent is not None and self.tasks.label(tid).closid != group.parent.closid:
            raise self.status.fail(errno.EINVAL, "Can't move task to different control group")
        self.tasks.put(tid, Label(group.closid, group.rmid))

    def tasks_text(self, group: Group, caller: Caller) -> str:
        """The file tasks, in the caller's numbers; threads that it cannot see are left out."""
        self.tasks.refresh()
        names = (
            self.tasks.host.inside(tid, caller)
            for tid in self.tasks.of(group, self.allocates, self.monitor is not None)
        )
        return "".join(f"{name}\n" for name in names if name)

    def _not_locked(self, group: Group) -> None:
        if group.mode in {LOCKSETUP, LOCKED}:
            raise self.status.fail(errno.EINVAL, "Pseudo-locking in progress")

    def cpus_text(self, group: Group, as_list: bool) -> str:
        """The files cpus and cpus_list."""
        mask = group.cpus
        if group.mode == LOCKED:
            name, domain, _ = self.controls.locked(group)
            schema = self.controls.schema(name)
            assert schema is not None
            mask = self.profile.domain_cpus(schema.resource.domains, domain)
        return (format_list(mask) if as_list else format_mask(mask, self.profile.cpus)) + "\n"

    def write_cpus(self, group: Group, text: str, as_list: bool) -> None:
        """Give a group its CPUs. Raises ResctrlError EINVAL, ERANGE or EOVERFLOW."""
        self.status.clear()
        self._not_locked(group)
        try:
            mask = (parse_list if as_list else parse_mask)(text, self.profile.cpus)
        except ResctrlError as error:
            raise self.status.fail(error.errno or 0, "Bad CPU list/mask") from None
        if mask & ~self.online:
            raise self.status.fail(errno.EINVAL, "Can only assign online CPUs")
        if group.parent is None:
            self._control_cpus(group, mask)
        else:
            self._monitor_cpus(group, group.parent, mask)

    def _control_cpus(self, group: Group, mask: int) -> None:
        dropped, added = group.cpus & ~mask, mask & ~group.cpus
        if dropped and group is self.root:
            raise self.status.fail(errno.EINVAL, "Can't drop CPUs from default group")
        self.root.cpus |= dropped
        for other in self.control_groups():
            if other is not group and other.cpus & added:
                other.cpus &= ~added
                for child in other.children.values():
                    child.cpus &= other.cpus
        group.cpus = mask
        for child in group.children.values():
            child.cpus = 0

    def _monitor_cpus(self, group: Group, parent: Group, mask: int) -> None:
        if mask & ~parent.cpus:
            line = "Can only add CPUs to mongroup that belong to parent"
            raise self.status.fail(errno.EINVAL, line)
        parent.cpus |= group.cpus & ~mask
        added = mask & ~group.cpus
        for sibling in parent.children.values():
            if sibling is not group:
                sibling.cpus &= ~added
        group.cpus = mask

    def plug(self, cpu: int, online: bool) -> None:
        """A CPU goes or comes back; it comes back to the default group."""
        bit = 1 << cpu
        if online:
            self.online |= bit
            self.root.cpus |= bit
            return
        self.online &= ~bit
        for group in self.groups():
            group.cpus &= ~bit

    def write_schemata(self, group: Group, text: str) -> None:
        """One block of lines. Raises ResctrlError EINVAL."""
        self.status.clear()
        self.controls.write(group, text)
        if group.mode == LOCKSETUP:
            group.mode = LOCKED
            self.closids.free(group.closid)

    def write_mode(self, group: Group, text: str, now: float) -> None:
        """shareable, exclusive or pseudo-locksetup. Raises ResctrlError EINVAL and what taking an RMID raises."""
        self.status.clear()
        if text == group.mode:
            return
        if group.mode == LOCKED:
            raise self.status.fail(errno.EINVAL, "Cannot change pseudo-locked group")
        if text == LOCKSETUP:
            self._begin_lock(group, now)
        elif text in {SHAREABLE, EXCLUSIVE}:
            if text == EXCLUSIVE:
                self.controls.may_be_exclusive(group)
            if group.mode == LOCKSETUP:
                group.rmid = self._take_rmid(now)
        else:
            raise self.status.fail(errno.EINVAL, "Unknown or unsupported mode")
        group.mode = text

    def _begin_lock(self, group: Group, now: float) -> None:
        reasons = (
            (group is self.root, "Cannot pseudo-lock default group"),
            (bool({"cdp", "cdpl2"} & self.options), "CDP enabled"),
            (not self.profile.pseudo_lock, "Pseudo-locking not supported"),
            (bool(group.children), "Monitoring in progress"),
            (bool(self.tasks.of(group)), "Tasks assigned to resource group"),
            (bool(group.cpus), "CPUs assigned to resource group"),
        )
        for holds, line in reasons:
            if holds:
                raise self.status.fail(errno.EINVAL, line)
        self._free_rmid(group.rmid, now)

    def proc_text(self, tid: int) -> str:
        """What /proc/PID/cpu_resctrl_groups says of a thread."""
        self.tasks.refresh()
        label = self.tasks.label(tid)
        for group in self.control_groups():
            if group.closid == label.closid and group.mode in {SHAREABLE, EXCLUSIVE}:
                child = next((child.name for child in group.children.values() if child.rmid == label.rmid), "")
                return f"res:{group.name or '/'}\nmon:{child}\n"
        raise ResctrlError(errno.ENOENT)

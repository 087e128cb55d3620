"""Steers resctrl from a thread of its own: calls into it may hang for seconds, and the control loop must not.

The loop leaves what it wants (`want`, the newest wins) and takes the last reading (`view`). Each look: find the mount,
read what it offers, make or find the class of BE, write the values that differ, move threads, read counters. A thread
that hangs leaves a reading that grows old, and nothing else.

    not mounted, unmounted      told in the reading; what was wanted is kept, and put in force once there is a mount
    groups vanished             made again in the same look (an unmount wipes every group)
    another tool has the lock   this look writes nothing
    a wish made blind           a wish that came before anybody took a reading is dropped: it knows nothing of what an
                                earlier agent left in force
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from agent.act.rdt_class import MONITOR_GROUP, BeClass, Kind, drop_cpus
from agent.act.rdt_tasks import BeThreads, Membership
from agent.host.cgroup import CgroupLister, PodGroup
from agent.host.resctrl import monitor
from agent.host.resctrl.groups import BE_GROUP, Busy, Groups, RdtTree, Write, locked
from agent.host.resctrl.monitor import Sample
from agent.host.resctrl.mount import Offer, RdtMount, RdtPlaces, find_mount, read_offer
from agent.resctrl import RdtGroupReading, RdtInfo, RdtReading, Schemata
from slacktide.errors import Gone, KernelError
from slacktide.kernel.files import write_value
from slacktide.observe import get_logger

_LOG: Final = get_logger("agent.resctrl")
_NOT_MOUNTED: Final = "resctrl is not mounted"
_LOCK_WAIT_SECONDS: Final = 1.0
_LOCK_STEP_SECONDS: Final = 0.05
_MAX_GAP_PERIODS: Final = 3.0
_SAMPLE_PERIODS: Final = 0.5
"""Looks that follow each other faster share one reading of the counters: a rate over a moment is noise."""

COUNTED: Final = {
    "rdt_made": "Groups of resctrl that were made, again after an unmount included.",
    "rdt_stale": "Groups of resctrl that an earlier agent left and that were removed.",
    "rdt_writes": "Writes to the values of the class of BE.",
    "rdt_refused": "Groups, values and threads that resctrl refused.",
    "rdt_drift": "Values of the class of BE that someone else had changed.",
    "rdt_fights": "Values of the class of BE changed by someone else in three looks in a row or more.",
    "rdt_mismatch": "Writes to the class of BE that read back as another value.",
    "rdt_moved": "Threads of BE moved into their class.",
    "rdt_returned": "Threads that are not BE's (any more) moved back to the default class.",
    "rdt_left": "Threads of BE that were found in groups of others and left there.",
    "rdt_lost": "Times the mount of resctrl went away.",
    "rdt_locked": "Looks at resctrl that wrote nothing, since another tool held its lock.",
    "rdt_errors": "Looks at resctrl that failed.",
}
"""Counters of the writer and what they mean."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the loop wants. `schemata` None is wide open; `pods` None is not known: no thread is moved then."""

    schemata: Schemata | None
    pods: tuple[PodGroup, ...] | None


class RdtWriter:
    """`want`, `view`, `start` and `stop` are for the control thread, `look` for the thread that `start` makes (or a
    test). `counters` are totals since start, see COUNTED. With `observe` it only reads.
    """

    def __init__(
        self,
        places: RdtPlaces,
        lister: CgroupLister,
        clock: Callable[[], float] = time.monotonic,
        *,
        period_seconds: float = 2.0,
        write: Write = write_value,
        observe: bool = False,
    ) -> None:
        self._places = places
        self._clock = clock
        self._period = period_seconds
        self._write = write
        self._observe = observe
        self.counters: Counter[str] = Counter()
        self._be = BeClass(clock, self.counters)
        self._members = Membership(BeThreads(lister), self.counters)
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._wanted: Wanted | None = None
        self._reading: RdtReading | None = None
        self._taken = False
        self._mount: RdtMount | None = None
        self._samples: dict[str, Sample] = {}
        self._sampled_at: float | None = None
        self._told = ""
        self._noted: tuple[str, ...] = ()
        self._thread: threading.Thread | None = None
        self._restore = False

    def want(self, schemata: Schemata | None, pods: Sequence[PodGroup] | None) -> None:
        """Leave what is wanted from now on. `pods` are all groups of BE pods, None when they are not known."""
        wanted = Wanted(schemata, tuple(pods) if pods is not None else None)
        with self._lock:
            if not self._taken or wanted == self._wanted:
                return
            self._wanted = wanted
        self._wake.set()

    def view(self) -> RdtReading | None:
        """The last reading; its `at` tells how old it is. None before the first look ended."""
        with self._lock:
            self._taken = self._taken or self._reading is not None
            return self._reading

    def start(self) -> None:
        """Begin to look."""
        self._thread = threading.Thread(target=self._run, name="resctrl", daemon=True)
        self._thread.start()

    def stop(self, *, restore: bool, timeout_seconds: float = 5.0) -> bool:
        """End it; with `restore` all groups of ours are removed. False when the thread hangs in the kernel."""
        self._restore = restore
        self._stopping.set()
        self._wake.set()
        if self._thread is None:
            return True
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            self._guarded(self.look)
            self._wake.wait(self._period)
        if self._restore:
            self._guarded(self.restore)

    def _guarded(self, act: Callable[[], object]) -> None:
        try:
            act()
        except Exception as error:  # noqa: BLE001 - the one guard of the thread; logged and counted
            self.counters["rdt_errors"] += 1
            _LOG.error("resctrl could not be looked at", error=repr(error))

    def look(self) -> RdtReading:
        """One whole look; see the module. Never raises for what the kernel says."""
        with self._lock:
            wanted, last = self._wanted, self._reading
        try:
            reading = self._look(wanted)
        except KernelError as error:
            self.counters["rdt_errors"] += 1
            problem = f"went away while it was looked at: {error}" if isinstance(error, Gone) else str(error)
            reading = replace(last, problem=problem) if last else RdtReading(info=RdtInfo(), problem=problem)
        self._tell(reading.problem)
        with self._lock:
            self._reading = reading
        return reading

    def _look(self, wanted: Wanted | None) -> RdtReading:
        mount = find_mount(self._places)
        if mount != self._mount:
            self._forget(mount)
        if mount is None:
            return RdtReading(info=RdtInfo(), problem=_NOT_MOUNTED, at=self._clock())
        offer = read_offer(mount)
        tree = RdtTree(mount.path, self._write)
        groups = tree.groups()
        made = self.counters["rdt_made"]
        kind = _present(groups)
        problems: list[str] = []
        self._note(offer)
        if wanted is not None and not self._observe:
            try:
                with locked(mount.path):
                    kind = self._be.ensure(tree, offer.info, groups)
                    problems += self._act(tree, offer, kind, groups, wanted)
            except Busy:
                self.counters["rdt_locked"] += 1
                problems.append("another tool holds the lock of resctrl")
        if self.counters["rdt_made"] != made:
            self._samples.clear()
        return self._measured(tree, offer.info, kind, problems)

    def _act(self, tree: RdtTree, offer: Offer, kind: Kind, groups: Groups, wanted: Wanted) -> list[str]:
        """Values first, threads afterwards."""
        problems = [self._be.problem] if self._be.problem else []
        if kind is Kind.CONTROL:
            problems += drop_cpus(tree, self.counters)
            problems += self._be.keep(tree, offer.info, wanted.schemata)
            if not self._be.settled:
                return problems
        if kind is not Kind.NONE and wanted.pods is not None:
            group = BE_GROUP if kind is Kind.CONTROL else MONITOR_GROUP
            problems += self._members.keep(tree, group, groups, wanted.pods)
        return problems

    def _measured(self, tree: RdtTree, info: RdtInfo, kind: Kind, problems: Sequence[str]) -> RdtReading:
        groups = tree.groups()
        now = self._clock()
        due = self._sampled_at is None or now - self._sampled_at >= _SAMPLE_PERIODS * self._period
        if info.monitors and (due or not self._samples):
            self._sample(tree, info, kind, groups, now)
        ls, be = self._sampled("ls"), self._sampled("be")
        if ls is not None and be is not None and kind is Kind.MONITOR:
            ls = monitor.less(ls, be)
        return RdtReading(
            info=info,
            be=be,
            ls=ls,
            be_bandwidth_rate=monitor.summed(be.rates) if be else None,
            ls_bandwidth_rate=monitor.summed(ls.rates) if ls else None,
            ls_occupancy_bytes=_whole(monitor.summed(ls.occupancy_bytes)) if ls else None,
            be_occupancy_bytes=_whole(monitor.summed(be.occupancy_bytes)) if be else None,
            held=Schemata(values=tree.schemata(BE_GROUP)) if kind is Kind.CONTROL else None,
            foreign=groups.foreign,
            problem="; ".join(problems),
            at=self._clock(),
        )

    def _sample(self, tree: RdtTree, info: RdtInfo, kind: Kind, groups: Groups, now: float) -> None:
        """Read the counters of the default class and of BE, each with the groups that its total includes."""
        read = {"ls": ("", groups.monitors)}
        if kind is not Kind.NONE:
            group = BE_GROUP if kind is Kind.CONTROL else MONITOR_GROUP
            read["be"] = (group, tree.guests(group) if kind is Kind.CONTROL else frozenset())
        samples = {
            key: monitor.with_rates(
                self._samples.get(key),
                Sample(
                    reading=monitor.read_group(f"{tree.root}/{group}" if group else tree.root, info.monitors, now),
                    children=children,
                ),
                _MAX_GAP_PERIODS * self._period,
            )
            for key, (group, children) in read.items()
        }
        self._samples, self._sampled_at = samples, now

    def _sampled(self, key: str) -> RdtGroupReading | None:
        sample = self._samples.get(key)
        return sample.reading if sample else None

    def _forget(self, mount: RdtMount | None) -> None:
        if self._mount is not None:
            self.counters["rdt_lost"] += 1
        self._mount = mount
        self._be.forget()
        self._samples.clear()
        self._sampled_at = None

    def _tell(self, problem: str) -> None:
        if problem == self._told:
            return
        self._told = problem
        if problem == _NOT_MOUNTED:
            _LOG.info(problem)
        elif problem:
            _LOG.warning("resctrl is not as it should be", problem=problem)
        else:
            _LOG.info("resctrl is as it should be")

    def _note(self, offer: Offer) -> None:
        """Say once what this mount lacks."""
        if offer.notes != self._noted:
            self._noted = offer.notes
            for note in offer.notes:
                _LOG.info("resctrl is used in part", note=note)

    def restore(self) -> list[str]:
        """Remove all groups of ours; their threads are in the default class then. Returns what had to be left."""
        return remove_all(self._places, self._write)


def remove_all(places: RdtPlaces, write: Write = write_value) -> list[str]:
    """Remove every group that an agent of ours made (`slacktide agent restore`). Returns what had to be left, in words.

    Another tool's lock is waited for a moment and then passed: a removal is one command. Raises KernelError.
    """
    mount = find_mount(places)
    if mount is None:
        return []
    tree, info = RdtTree(mount.path, write), read_offer(mount).info
    removal = BeClass(time.monotonic, Counter())
    deadline = time.monotonic() + _LOCK_WAIT_SECONDS
    while time.monotonic() < deadline:
        try:
            with locked(mount.path):
                return removal.remove(tree, info)
        except Busy:
            time.sleep(_LOCK_STEP_SECONDS)
    return removal.remove(tree, info)


def _present(groups: Groups) -> Kind:
    """What BE has as long as nothing may be written."""
    if BE_GROUP in groups.classes:
        return Kind.CONTROL
    return Kind.MONITOR if BE_GROUP in groups.monitors else Kind.NONE


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)

"""Makes a plan true in the kernel: the only code of the agent that writes to cgroups and threads.

One round: check the whole plan; read what the kernel holds *now* (kubelet and systemd rewrite cgroups behind us, so
nothing is cached); journal; write only what differs, in the order the kernel accepts; read back. A knob that is ours
and no longer wanted gets its original back. A group that vanished is skipped and counted. A value that someone else
wrote meanwhile is *drift*: it becomes the original and ours is put back; drift of the same knob in successive rounds is
a *fight*.

Rules that hold whatever a plan says: a quota of ours never loosens one that was there; a container's quota is brought
under its pod's first on v1 (a parent below its child is EINVAL); the group must still be the one that was listed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from agent.act.journal import Entry, Journal, Original
from agent.act.knobs import Place, Step, Write, held_value, in_force, opened, stricter, write_step
from agent.act.masks import MaskWriter
from agent.capabilities import Capabilities, Knob
from agent.counters import CpuKnobs
from agent.host import cpu
from agent.host.affinity import Affinity
from agent.host.cgroup import CgroupLister, ContainerGroup, PodGroup
from agent.policy.base import Plan, Request
from agent.snapshot import PodIdentity
from agent.threads import MaskPlan, ThreadKey
from slacktide.errors import Gone, KernelError
from slacktide.kernel.files import write_value
from slacktide.kernel.hierarchy import Version
from slacktide.tier import Tier

_RANGES = {Knob.IDLE: range(2), Knob.WEIGHT: range(1, 262_145), Knob.QUOTA: range(10, 100_000_001)}


_NEVER = -2
"""Stands for "not written by this process" where None means "no limit"."""


class PlanError(ValueError):
    """A plan that must not be carried out; nothing of it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a round did. `problems` are sentences for the log, `refused` threads whose mask the kernel refused."""

    writes: int = 0
    problems: tuple[str, ...] = ()
    refused: frozenset[ThreadKey] = frozenset()


class Executor:
    """Owns the journal. `counters` are totals since start: writes, drift, fights, vanished, refused, mismatch,
    journal_errors, and those of MaskWriter. Not thread-safe: the control thread owns it.
    """

    def __init__(
        self,
        lister: CgroupLister,
        journal: Journal,
        capabilities: Capabilities,
        write: Write = write_value,
        affinity: Affinity | None = None,
    ) -> None:
        self._lister = lister
        self._journal = journal
        self._capabilities = capabilities
        self._write = write
        self._confirmed: dict[tuple[str, Knob, int], int | None] = {}
        self._drifted: set[tuple[str, Knob]] = set()
        self._drifting: set[tuple[str, Knob]] = set()
        self._problems: list[str] = []
        self.counters: Counter[str] = Counter()
        self._masks = MaskWriter(lister, journal, affinity or Affinity("/proc"), self.counters)

    @property
    def _version(self) -> Version:
        assert self._lister.version is not None
        return self._lister.version

    def adopt(self) -> int | None:
        """Take over what an earlier agent left: drop entries of vanished groups, and sum up BE's quotas in millicores.

        None when no quota of ours is in force.
        """
        limits = []
        for entry in self._journal.load():
            held = self._held(entry)
            if held is None:
                self._forget([(entry.group, entry.knob)])
            elif entry.knob is Knob.QUOTA and entry.explains(held.quota_us) and held.quota_millis is not None:
                limits.append((entry.group, held.quota_millis))
        pods = [millis for group, millis in limits if not any(_is_below(group, other) for other, _ in limits)]
        return sum(pods) if pods else None

    def apply(self, plan: Plan, groups: Mapping[str, PodGroup], identities: Mapping[str, PodIdentity]) -> Outcome:
        """One round. `groups` are all pods that the API and the kernel agree on; entries of other groups are left
        as they are. `identities` (by group) give originals when the journal was lost. Raises PlanError.
        """
        self._check(plan, groups, identities)
        self._problems = []
        self._drifting = set()
        steps = [step for group in groups.values() for step in self._steps(group, plan, identities.get(group.group))]
        self._forget_vanished()
        fights = self._drifting & self._drifted
        self.counters["fights"] += len(fights)
        self._drifted = self._drifting
        self._journal.lost = False
        return self._carry_out(steps)

    def place(self, plan: MaskPlan, groups: Mapping[str, PodGroup], identities: Mapping[str, PodIdentity]) -> Outcome:
        """Put masks in force on threads of BE pods; arguments as of `apply`. Raises PlanError.

        Threads of a pod that is BE no more get back what they had.
        """
        be = {group: pod for group, pod in groups.items() if group in identities and identities[group].tier is Tier.BE}
        for wish in plan.wishes:
            if not any(wish.group.group == group or _is_below(wish.group.group, group) for group in be):
                raise PlanError(f"thread {wish.key.tid} is to be pinned, and {wish.group.group!r} is no BE pod's")
        problems: list[str] = []
        writes = self._masks.release_beside(be, groups, problems) + self._masks.apply(plan, problems)
        self.counters["writes"] += writes
        return Outcome(writes=writes, problems=tuple(problems), refused=self._masks.take_refused())

    def restore_masks(self) -> Outcome:
        """Give all threads their masks back; part of `restore`, alone where spread was switched off."""
        problems: list[str] = []
        writes = self._masks.restore(problems)
        self.counters["writes"] += writes
        return Outcome(writes=writes, problems=tuple(problems))

    def restore(self) -> Outcome:
        """Give every knob its original back, and every thread its mask (stop of the agent)."""
        masks = self.restore_masks()
        self._problems = list(masks.problems)
        steps = []
        for entry in self._journal.entries():
            held = self._held(entry)
            if held is None:
                self._forget([(entry.group, entry.knob)])
                continue
            step = self._release(self._place(entry.group, entry.inode), entry, held)
            steps.extend([step] if step else [])
        outcome = self._carry_out(steps)
        return Outcome(writes=outcome.writes + masks.writes, problems=outcome.problems)

    def _check(self, plan: Plan, groups: Mapping[str, PodGroup], identities: Mapping[str, PodIdentity]) -> None:
        for (group, knob), request in plan.settings.items():
            if group not in groups:
                raise PlanError(f"policy {request.policy} names cgroup {group!r}, which is no pod of this node")
            if group in identities and identities[group].tier is not Tier.BE:
                raise PlanError(f"policy {request.policy} wants to limit {group}, which is not BE")
            if knob not in self._capabilities.writable:
                raise PlanError(f"policy {request.policy} wants {knob.value}, which this node does not have")
            if knob not in _RANGES or request.value not in _RANGES[knob]:
                raise PlanError(f"policy {request.policy} wants {knob.value} = {request.value} for {group}")

    def _steps(self, pod: PodGroup, plan: Plan, identity: PodIdentity | None) -> list[Step]:
        """What differs for one pod; its containers follow its quota."""
        place = self._place(pod.group, pod.inode)
        wanted = {knob: plan.settings.get((pod.group, knob)) for knob in _RANGES}
        entries = [self._journal.get(pod.group, knob) for knob in _RANGES]
        try:
            if not any(wanted.values()) and not any(entries):
                return []
            with opened(place) as descriptor:
                held = cpu.read_knobs(descriptor, self._version)
        except Gone:
            self.counters["vanished"] += 1
            return []
        except KernelError as error:
            self._refused(str(error))
            return []
        steps = [self._step(place, held, knob, request, identity) for knob, request in wanted.items()]
        quota = wanted[Knob.QUOTA]
        if self._version is Version.V1:
            millis = int(quota.value) if quota else None
            steps.extend(self._container_step(container, millis) for container in pod.containers)
        return [step for step in steps if step is not None]

    def _step(
        self, place: Place, held: CpuKnobs, knob: Knob, request: Request | None, identity: PodIdentity | None
    ) -> Step | None:
        entry = self._entry(place, knob)
        if request is None:
            entry = entry or self._left_over(place, held, knob, identity)
            return self._release(place, entry, held) if entry else None
        if knob is Knob.WEIGHT and held.idle:
            return None
        original = self._original(place, held, knob, entry, identity)
        target = int(request.value)
        if knob is Knob.QUOTA:
            target = _strictest(original.value, quota_us(target, held.period_us))
        if held_value(held, knob) == target:
            if entry is None and self._journal.lost:
                self._remember([Step(place=place, knob=knob, held=held, target=target, original=original)])
            return None
        return Step(place=place, knob=knob, held=held, target=target, original=original, reason=request.reason)

    def _container_step(self, container: ContainerGroup, pod_millis: int | None) -> Step | None:
        """A container's own quota stays, but never above its pod's."""
        place = self._place(container.group, container.inode)
        entry = self._entry(place, Knob.QUOTA)
        if pod_millis is None and entry is None:
            return None
        try:
            with opened(place) as descriptor:
                held = cpu.read_knobs(descriptor, self._version)
        except KernelError:
            # Vanished, or unreadable: a write to the pod will tell if it matters.
            return None
        if pod_millis is None:
            return self._release(place, entry, held) if entry else None
        original = self._original(place, held, Knob.QUOTA, entry, None)
        if original.value is None:
            return None
        target = _strictest(original.value, quota_us(pod_millis, held.period_us))
        if held.quota_us == target:
            return None
        return Step(
            place=place, knob=Knob.QUOTA, held=held, target=target, original=original, reason="follows its pod's quota"
        )

    def _original(
        self, place: Place, held: CpuKnobs, knob: Knob, entry: Entry | None, identity: PodIdentity | None
    ) -> Original:
        """What was there before us; a value that is not ours any more was written by someone else and counts."""
        if entry is None:
            if self._journal.lost and identity is not None:
                return expected_original(knob, identity, held, self._version)
            return _as_original(held, knob)
        now = held_value(held, knob)
        confirmed = self._confirmed.get((place.group, knob, place.inode), _NEVER)
        ours = now == confirmed if confirmed is not _NEVER else entry.explains(now) or now == entry.original.value
        if ours:
            return entry.original
        self.counters["drift"] += 1
        self._drifting.add((place.group, knob))
        self._problems.append(f"{place.group}: {knob.value} was set to {now} by someone else, ours was {entry.applied}")
        return entry.original if knob is Knob.IDLE else _as_original(held, knob)

    def _left_over(self, place: Place, held: CpuKnobs, knob: Knob, identity: PodIdentity | None) -> Entry | None:
        """After a lost journal: a BE limit beyond the kubelet's rules was ours, and is to be undone."""
        if not self._journal.lost or identity is None or identity.tier is not Tier.BE or knob is Knob.WEIGHT:
            return None
        now, original = held_value(held, knob), expected_original(knob, identity, held, self._version)
        if now is None or now == original.value:
            return None
        return Entry(group=place.group, inode=place.inode, knob=knob, original=original, applied=now)

    def _release(self, place: Place, entry: Entry, held: CpuKnobs) -> Step | None:
        """The step back to the original; None (and forgotten) when someone else already wrote another value."""
        now = held_value(held, entry.knob)
        if not entry.explains(now) or now == entry.original.value:
            self._forget([(entry.group, entry.knob)])
            return None
        return Step(
            place=place,
            knob=entry.knob,
            held=held,
            target=entry.original.value,
            original=entry.original,
            release=True,
            reason="no longer wanted",
        )

    def _carry_out(self, steps: Iterable[Step]) -> Outcome:
        ordered = sorted(steps, key=lambda step: step.order)
        self._remember([step for step in ordered if not step.release])
        written = sum(self._do(step) for step in ordered)
        self.counters["writes"] += written
        return Outcome(writes=written, problems=tuple(self._problems))

    def _do(self, step: Step) -> bool:
        try:
            after = write_step(step, self._version, self._write)
        except Gone:
            self.counters["vanished"] += 1
            self._forget([step.key])
            return False
        except KernelError as error:
            self._refused(f"{step.place.group}: {step.knob.value} = {step.target}: {error}")
            return False
        self._confirmed[(*step.key, step.place.inode)] = held_value(after, step.knob)
        if not in_force(step, after):
            self.counters["mismatch"] += 1
            self._problems.append(
                f"{step.place.group}: {step.knob.value} = {step.target} was written, "
                f"the kernel holds {held_value(after, step.knob)}"
            )
        if step.release:
            self._forget([step.key])
            del self._confirmed[(*step.key, step.place.inode)]
        return True

    def _refused(self, sentence: str) -> None:
        self.counters["refused"] += 1
        self._problems.append(sentence)

    def _remember(self, steps: Iterable[Step]) -> None:
        """Journal steps. A disk that refuses does not keep LS unprotected: the entries are in memory, and told."""
        try:
            self._journal.record([step.entry for step in steps])
        except OSError as error:
            self.counters["journal_errors"] += 1
            self._problems.append(f"the journal could not be written: {error}; a killed agent could not undo this")

    def _forget(self, keys: Iterable[tuple[str, Knob]]) -> None:
        try:
            self._journal.forget(keys)
        except OSError as error:
            self.counters["journal_errors"] += 1
            self._problems.append(f"the journal could not be written: {error}")

    def _forget_vanished(self) -> None:
        gone = [entry for entry in self._journal.entries() if not self._exists(entry)]
        self._forget([(entry.group, entry.knob) for entry in gone])
        for entry in gone:
            self._confirmed.pop((entry.group, entry.knob, entry.inode), None)

    def _exists(self, entry: Entry) -> bool:
        try:
            with opened(self._place(entry.group, entry.inode)):
                return True
        except Gone:
            return False
        except KernelError:
            return True

    def _entry(self, place: Place, knob: Knob) -> Entry | None:
        entry = self._journal.get(place.group, knob)
        return entry if entry is not None and entry.inode == place.inode else None

    def _place(self, group: str, inode: int) -> Place:
        return Place(group=group, directory=self._lister.absolute(group), inode=inode)

    def _held(self, entry: Entry) -> CpuKnobs | None:
        """What the kernel holds for an entry; None when its group is gone or unreadable."""
        try:
            with opened(self._place(entry.group, entry.inode)) as descriptor:
                return cpu.read_knobs(descriptor, self._version)
        except KernelError:
            return None


def relax(lister: CgroupLister, entries: Iterable[Entry], write: Write = write_value) -> int:
    """Give quotas their originals back, parents first; weight and idle stay. Returns how many were lifted.

    For the watchdog: uses no state of the executor, so it works while the control thread hangs.
    """
    assert lister.version is not None
    lifted = 0
    quotas = [entry for entry in entries if entry.knob is Knob.QUOTA]
    for entry in sorted(quotas, key=lambda entry: entry.group.count("/")):
        place = Place(group=entry.group, directory=lister.absolute(entry.group), inode=entry.inode)
        try:
            with opened(place) as descriptor:
                held = cpu.read_knobs(descriptor, lister.version)
            if not entry.explains(held.quota_us) or held.quota_us == entry.original.value:
                continue
            step = Step(
                place=place,
                knob=Knob.QUOTA,
                held=held,
                target=entry.original.value,
                original=entry.original,
                release=True,
            )
            write_step(step, lister.version, write)
        except KernelError:
            # The group went away or refuses: the others must still be lifted.
            continue
        lifted += 1
    return lifted


def quota_us(millis: int, period_us: int | None) -> int:
    """Millicores as microseconds a period, not below what the kernel takes."""
    return max(cpu.MIN_QUOTA_US, millis * (period_us or cpu.DEFAULT_PERIOD_US) // 1000)


def _strictest(original: int | None, wanted: int) -> int:
    return wanted if stricter(wanted, original) or original is None else original


def _as_original(held: CpuKnobs, knob: Knob) -> Original:
    return Original(
        value=held_value(held, knob),
        burst_us=held.burst_us if knob is Knob.QUOTA and held.burst_us else None,
        weight=held.weight if knob is Knob.IDLE and not held.idle else None,
    )


def expected_original(knob: Knob, identity: PodIdentity, held: CpuKnobs, version: Version) -> Original:
    """What the kubelet's rules say a pod's group has, for when the journal was lost.

    Shares = request * 1024 / 1000, at least 2; v2 weight by the linear map (runtimes differ; it is the smaller one).
    """
    shares = max(2, identity.cpu_request_millis * 1024 // 1000)
    weight = shares if version is Version.V1 else 1 + (min(shares, 262_144) - 2) * 9999 // 262_142
    if knob is Knob.IDLE:
        return Original(value=0, weight=weight)
    if knob is Knob.WEIGHT:
        return Original(value=weight)
    limit = identity.cpu_limit_millis
    return Original(value=None if limit is None else quota_us(limit, held.period_us))


def _is_below(group: str, other: str) -> bool:
    return group.startswith(f"{other}/")

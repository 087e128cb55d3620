"""Makes a plan true in the kernel: the only code of the agent that writes to cgroups and threads.

One round: check the whole plan; read what the kernel holds *now* (kubelet and systemd rewrite cgroups behind us, so
nothing is cached); journal; write only what differs, in the order the kernel accepts; read back. A knob that is ours
and no longer wanted gets its original back. A group that vanished is skipped and counted. A value that someone else
wrote meanwhile is *drift*: it becomes the original and ours is put back (`agent.act.backoff` says when).

Rules that hold whatever a plan says: a limit of ours never loosens one that was there; where the kernel allows no child
more than its parent (quota and CPU list on v1), containers are brought under their pod's; the group must still be the
one that was listed.
"""

from __future__ import annotations

import random as random_source
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import MappingProxyType

import msgspec

from agent.act.backoff import Backoff
from agent.act.calm import Calm, signature_of
from agent.act.check import PlanError, wishes_by_group
from agent.act.journal import Entry, Journal, Key
from agent.act.knobs import Step, Write, write_step
from agent.act.looks import Group, Look, Looks
from agent.act.masks import MaskWriter
from agent.act.originals import expected_original
from agent.capabilities import Capabilities, Knob, Value
from agent.host.affinity import Affinity
from agent.host.cgroup import CgroupLister, PodGroup
from agent.host.fds import FdBudget
from agent.host.knobs import ADAPTERS, Held, Original, mount_of
from agent.policy.base import Plan, Request, strictest
from agent.snapshot import PodIdentity
from agent.threads import MaskPlan, ThreadKey, parse_cpus
from slacktide.errors import Gone, KernelError
from slacktide.kernel.files import write_value
from slacktide.tier import Tier

__all__ = ["Executor", "Given", "Outcome", "PlanError"]

_LIMITING = frozenset({"suppress", "contention"})
"""Policies whose quotas together are the limit on BE that a restarted agent goes on from."""

_NO_WISHES: Mapping[Knob, Request] = MappingProxyType({})

_NOT_LEFT_OVER = frozenset({Knob.WEIGHT, Knob.IO_WEIGHT, Knob.BURST, Knob.BVT})
"""After a lost journal these stay: they cost nobody anything, and nothing tells ours from another's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """One knob that was given back, or could not be: `why_not` then says so. Values are the kernel's."""

    group: str
    knob: Knob
    held: Value | None
    original: Value | None
    why_not: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a round did. `problems` are sentences for the log, `refused` threads whose mask the kernel refused.

    `given` is what a restore gave back.
    """

    writes: int = 0
    problems: tuple[str, ...] = ()
    refused: frozenset[ThreadKey] = frozenset()
    given: tuple[Given, ...] = ()


class Executor:
    """Owns the journal. `counters` are totals since start: writes, drift, fights, vanished, refused, mismatch,
    journal_errors, and those of MaskWriter. `relaxed` tells how often the watchdog lifted limits. `budget` bounds the
    descriptors that are held. Not thread-safe: the control thread owns it.
    """

    def __init__(
        self,
        lister: CgroupLister,
        journal: Journal,
        capabilities: Capabilities,
        write: Write = write_value,
        affinity: Affinity | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = random_source.random,
        relaxed: Callable[[], int] = lambda: 0,
        budget: FdBudget | None = None,
    ) -> None:
        self._lister = lister
        self._looks = Looks(lister)
        self._binding = frozenset(
            knob
            for knob, adapter in ADAPTERS.items()
            if (mount := mount_of(lister.hierarchy, knob)) is not None and mount.version in adapter.binds_children
        )
        """Knobs with which a pod's value binds those of its containers on this node."""
        self._journal = journal
        self._capabilities = capabilities
        self._write = write
        self._clock = clock
        self._relaxed = relaxed
        self._relaxed_before = 0
        self._confirmed: dict[tuple[str, Knob, int], Value | None] = {}
        self._backoff = Backoff(random)
        self._said: dict[Key, str] = {}
        self._problems: list[str] = []
        self._notes: list[Entry] = []
        self._glanced: set[str] = set()
        self._calm = Calm(budget)
        self._content: list[Look] = []
        self._plan = Plan()
        self._now = 0.0
        self.counters: Counter[str] = Counter()
        self._masks = MaskWriter(lister, journal, affinity or Affinity("/proc"), self.counters)

    @property
    def fighting(self) -> int:
        """Knobs that someone else keeps changing at the moment."""
        return self._backoff.fighting

    def adopt(self) -> int | None:
        """Take over what an earlier agent left: drop entries of vanished groups, and sum up BE's quotas in millicores.

        Only quotas that limit BE as a whole count. None when there are none.
        """
        limits = []
        for entry in self._journal.load():
            try:
                look = self._looks.at(entry)
            except KernelError:
                # Whatever it holds, it may be given back later.
                continue
            if look is None:
                self._forget([(entry.group, entry.knob)])
                continue
            value, period_us = look.held.value, look.held.period_us
            limits_be = entry.knob is Knob.QUOTA and entry.policy in _LIMITING and entry.explains(value)
            if limits_be and value is not None and period_us:
                limits.append((entry.group, int(value) * 1000 // period_us))
        pods = [millis for group, millis in limits if not any(_is_below(group, other) for other, _ in limits)]
        return sum(pods) if pods else None

    def apply(
        self,
        plan: Plan,
        groups: Mapping[str, PodGroup],
        identities: Mapping[str, PodIdentity],
        *,
        whole: bool = True,
    ) -> Outcome:
        """One round. `groups` are all pods that the API and the kernel agree on, or (not `whole`) some of them; entries
        of other groups are left as they are. `identities` (by group of the pod) say what may be done to whom, and give
        originals when the journal was lost. Raises PlanError.
        """
        wishes, gone = wishes_by_group(plan, groups, identities, self._capabilities.writable)
        self.counters["vanished"] += gone
        self._begin(plan)
        steps = [
            step
            for pod in groups.values()
            for group in self._members(pod, wishes, identities.get(pod.group))
            for step in self._steps(group)
        ]
        if whole:
            self._forget_vanished()
            self._journal.lost = False
            self._catch_up()
        return self._carry_out(steps)

    def place(self, plan: MaskPlan, groups: Mapping[str, PodGroup], identities: Mapping[str, PodIdentity]) -> Outcome:
        """Put masks in force on threads of BE pods; arguments as of `apply`. Raises PlanError.

        Threads of a pod that is BE no more get back what they had.
        """
        be = {group: pod for group, pod in groups.items() if group in identities and identities[group].tier is Tier.BE}
        may = {*be, *(container.group for pod in be.values() for container in pod.containers)}
        for wish in plan.wishes:
            if wish.group.group not in may:
                raise PlanError("spread", f"would pin thread {wish.key.tid}, and {wish.group.group!r} is no BE pod's")
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
        """Give every knob its original back, and every thread its mask (stop of the agent, and on demand)."""
        masks, knobs = self.restore_masks(), self.restore_knobs()
        return replace(knobs, writes=masks.writes + knobs.writes, problems=(*masks.problems, *knobs.problems))

    def restore_knobs(self) -> Outcome:
        """Give every knob its original back; part of `restore`."""
        self._begin(Plan())
        unreadable: list[Given] = []
        entries = sorted(self._journal.entries(), key=lambda entry: entry.group.count("/"))
        steps = [step for entry in entries if (step := self._undoing(entry, unreadable)) is not None]
        outcome = self._carry_out(steps)
        given = [
            Given(
                group=step.place.group,
                knob=step.knob,
                held=step.held.value,
                original=step.target,
                why_not=self._said.get(step.key, "") if self._journal.get(*step.key) else "",
            )
            for step in steps
        ]
        return replace(outcome, given=(*given, *unreadable))

    def _undoing(self, entry: Entry, unreadable: list[Given]) -> Step | None:
        """The step that undoes an entry; None where there is nothing to undo, or another's undoing includes it."""
        try:
            look = self._looks.at(entry)
        except KernelError as error:
            original = entry.original.value
            unreadable.append(
                Given(group=entry.group, knob=entry.knob, held=None, original=original, why_not=str(error))
            )
            return None
        if look is None:
            self._forget([(entry.group, entry.knob)])
            return None
        step = None if look.hidden else self._release(look, entry)
        self._looks.keep_list(look, step)
        return step

    def _begin(self, plan: Plan) -> None:
        self._plan, self._now = plan, self._clock()
        self._problems, self._notes, self._glanced = [], [], set()
        self._looks.begin()
        relaxed = self._relaxed()
        if relaxed != self._relaxed_before:
            # What the watchdog gave back is no one else's doing.
            self._relaxed_before = relaxed
            self._confirmed = {key: value for key, value in self._confirmed.items() if not key[1].hard}

    def _members(
        self, pod: PodGroup, wishes: Mapping[str, Mapping[Knob, Request]], identity: PodIdentity | None
    ) -> Iterator[Group]:
        """The pod's group and those of its containers, where anything is wanted or ours."""
        own = wishes.get(pod.group, _NO_WISHES)
        if own or self._is_ours_at(pod.group):
            yield Group(group=pod.group, inode=pod.inode, wanted=own, follow={}, identity=identity, container=False)
        follow = {knob: request for knob, request in own.items() if knob in self._binding}
        for container in pod.containers:
            wanted = wishes.get(container.group, _NO_WISHES)
            if wanted or follow or self._is_ours_at(container.group):
                yield Group(
                    group=container.group,
                    inode=container.inode,
                    wanted=wanted,
                    follow=follow,
                    identity=identity,
                    container=True,
                )

    def _is_ours_at(self, group: str) -> bool:
        """Whether something of this group may have to be given back."""
        return self._journal.lost or bool(self._journal.of(group))

    def _steps(self, group: Group) -> list[Step]:
        """What differs for one group."""
        knobs = {*group.wanted, *group.follow, *self._journal.of(group.group), *self._suspects(group)}
        if not knobs:
            return []
        signature = signature_of(group.inode, group.wanted, group.follow, self._lasting_of(group.group, knobs))
        if not self._journal.lost and self._calm.glance(group.group, signature):
            self._glanced.add(group.group)
            return []
        steps: list[Step] = []
        self._content = []
        try:
            with ExitStack() as stack:
                for look in self._looks.of(group, knobs, stack, self._say, self._refused):
                    own = self._decide(look, self._request(group, look))
                    steps.extend(own)
                    self._looks.keep_list(look, own[-1] if own else None)
        except Gone:
            self.counters["vanished"] += 1
        except KernelError as error:
            self._refused((group.group, Knob.IDLE), f"{group.group}: {error}")
        if len(self._content) == len(knobs) and not self._journal.lost:
            listed, version = self._looks.place(group), self._lister.version
            assert version is not None
            # A knob that this kernel lacks is looked for in the full look alone.
            there = [look for look in self._content if not look.held.absent]
            self._calm.remember(group.group, signature, listed, version, there)
        return steps

    def _lasting_of(self, group: str, knobs: Iterable[Knob]) -> dict[Knob, Request]:
        if not self._plan.lasting:
            return {}
        found = {knob: self._plan.lasting.get((group, knob)) for knob in knobs}
        return {knob: request for knob, request in found.items() if request is not None}

    def _suspects(self, group: Group) -> frozenset[Knob]:
        """Knobs to look at after a lost journal."""
        if not self._journal.lost or group.identity is None or group.identity.tier is not Tier.BE:
            return frozenset()
        return self._capabilities.writable - _NOT_LEFT_OVER

    def _request(self, group: Group, look: Look) -> Request | None:
        """What is wanted of one knob: its own request, brought under its pod's where the kernel wants that."""
        own, pods = group.wanted.get(look.knob), group.follow.get(look.knob)
        if pods is None or (own is None and look.held.value is None):
            # A container without a limit of its own is bound by its pod's anyway.
            return own
        if own is None:
            return replace(pods, group=group.group)
        value = strictest(look.knob, own.value, pods.value)
        if look.knob is Knob.CPUSET and not parse_cpus(str(value)) <= parse_cpus(str(pods.value)):
            # Nothing in common: what its pod has is all that it can have.
            value = pods.value
        return own if value == own.value else replace(pods, group=group.group, value=value)

    def _decide(self, look: Look, request: Request | None) -> list[Step]:
        adapter, entry = ADAPTERS[look.knob], self._entry(look)
        if look.hidden:
            self._content.append(look)
            return []
        if request is None:
            entry = entry or self._left_over(look)
            if entry is None:
                self._content.append(look)
            step = self._release(look, entry) if entry is not None else None
            return [step] if step is not None and self._backoff.ready(step.key, step.target, self._now) else []
        if look.held.absent:
            self._say(look.key, f"{look.place.group}: {look.held.absent}")
            return []
        original = self._original(look, entry)
        target = adapter.target(request.value, look.held, original)
        if target is None:
            self._say(look.key, f"{look.place.group}: {look.knob.value} = {request.value} is nothing it may have")
            return []
        step = Step(
            place=look.place,
            version=look.version,
            knob=look.knob,
            held=look.held,
            target=target,
            original=original,
            policy=request.policy,
            lasting=self._lasting(look, original),
        )
        if look.held.value == target:
            self._note(step, entry)
            if not self._backoff.fought(look.key):
                self._content.append(look)
            return []
        return list(_staged(step)) if self._backoff.ready(look.key, target, self._now) else []

    def _lasting(self, look: Look, original: Original) -> Value | None:
        """What stays in force without an agent."""
        request = self._plan.lasting.get(look.key)
        return None if request is None else ADAPTERS[look.knob].target(request.value, look.held, original)

    def _note(self, step: Step, entry: Entry | None) -> None:
        """The kernel holds what is wanted; the journal may not know so, or not who wants it now."""
        if entry is None:
            if self._journal.lost and step.original.value != step.target:
                self._notes.append(step.entry)
        elif (entry.policy, entry.lasting) != (step.policy, step.lasting):
            self._notes.append(msgspec.structs.replace(entry, policy=step.policy, lasting=step.lasting))

    def _original(self, look: Look, entry: Entry | None) -> Original:
        """What was there before us; a value that is not ours any more was written by someone else and counts."""
        adapter = ADAPTERS[look.knob]
        if entry is None:
            expected = self._expected(look) if self._journal.lost else None
            return expected or adapter.original(look.held)
        if self._is_ours(look, entry):
            self._tell(self._backoff.steady(look.key, self._now))
            return entry.original
        if look.knob is Knob.WEIGHT and self._journal.get(look.place.group, Knob.IDLE) is not None:
            # It was taken out of the idle class, which resets the weight.
            return entry.original
        what = f"{look.knob.value} was set to {look.held.value} by someone else, ours was {entry.applied}"
        self._tell(self._backoff.drifted(look.key, f"{look.place.group}: {what}", self._now))
        return adapter.original(look.held) if adapter.foreign_is_original else entry.original

    def _is_ours(self, look: Look, entry: Entry) -> bool:
        now = look.held.value
        key = (look.place.group, look.knob, look.place.inode)
        if key in self._confirmed:
            return now == self._confirmed[key]
        return entry.explains(now) or now == entry.original.value or (now is not None and now == entry.lasting)

    def _expected(self, look: Look) -> Original | None:
        if look.identity is None:
            return None
        return expected_original(look.knob, look.identity, look.held, look.version, container=look.container)

    def _left_over(self, look: Look) -> Entry | None:
        """After a lost journal: a BE limit beyond the kubelet's rules was ours, and is to be undone."""
        if look.held.absent or not self._journal.lost or look.knob in _NOT_LEFT_OVER:
            return None
        now, original = look.held.value, self._expected(look)
        if now is None or original is None or not ADAPTERS[look.knob].stricter(now, original.value):
            return None
        return Entry(group=look.place.group, inode=look.place.inode, knob=look.knob, original=original, applied=now)

    def _release(self, look: Look, entry: Entry) -> Step | None:
        """The step back to the original; None (and forgotten) when someone else already wrote another value."""
        now, original = look.held.value, entry.original
        target = ADAPTERS[look.knob].giving_back(look.held, original)
        if look.held.absent or now in (original.value, target) or not self._is_ours(look, entry):
            self._forget([look.key])
            return None
        weight = self._journal.get(look.place.group, Knob.WEIGHT) if look.knob is Knob.IDLE else None
        if weight is not None and isinstance(weight.original.value, int):
            original = msgspec.structs.replace(original, weight=weight.original.value)
        return Step(
            place=look.place,
            version=look.version,
            knob=look.knob,
            held=look.held,
            target=target,
            original=original,
            release=True,
        )

    def _carry_out(self, steps: Iterable[Step]) -> Outcome:
        ordered = sorted(steps, key=lambda step: step.order)
        self._remember([*self._notes, *(step.entry for step in ordered if not step.release and not step.passing)])
        written = sum(self._do(step) for step in ordered)
        self.counters["writes"] += written
        self.counters["drift"], self.counters["fights"] = self._backoff.drifts, self._backoff.fights
        return Outcome(writes=written, problems=tuple(self._problems))

    def _do(self, step: Step) -> bool:
        try:
            after = write_step(step, self._write)
        except Gone:
            self.counters["vanished"] += 1
            self._forget([step.key])
            return False
        except KernelError as error:
            self._refused(step.key, f"{step.place.group}: {step.knob.value} = {step.target}: {error}")
            self._backoff.refused(step.key, step.target, self._now)
            return False
        if not step.passing:
            self._done(step, after)
        return True

    def _done(self, step: Step, after: Held) -> None:
        self._said.pop(step.key, None)
        self._backoff.wrote(step.key, step.target, self._now)
        if after.value != step.target:
            self.counters["mismatch"] += 1
            what = f"{step.knob.value} = {step.target} was written, the kernel holds {after.value}"
            self._say(step.key, f"{step.place.group}: {what}")
        confirmed = (*step.key, step.place.inode)
        self._confirmed[confirmed] = after.value
        if step.release:
            del self._confirmed[confirmed]
            # The weight was given back when the group left the idle class.
            also = [(step.place.group, Knob.WEIGHT)] if step.knob is Knob.IDLE else []
            self._forget([step.key, *also])

    def _refused(self, key: Key, sentence: str) -> None:
        self.counters["refused"] += 1
        self._say(key, sentence)

    def _say(self, key: Key, sentence: str) -> None:
        """Told when it is news for this knob."""
        if self._said.get(key) != sentence:
            self._said[key] = sentence
            self._problems.append(sentence)

    def _tell(self, sentence: str) -> None:
        if sentence:
            self._problems.append(sentence)

    def _remember(self, entries: Iterable[Entry]) -> None:
        """Journal them. A disk that refuses does not keep LS unprotected: the entries are in memory, and told."""
        try:
            self._journal.record(entries)
        except OSError as error:
            self.counters["journal_errors"] += 1
            self._problems.append(f"the journal could not be written: {error}; a killed agent could not undo this")

    def _forget(self, keys: Iterable[Key]) -> None:
        try:
            self._journal.forget(keys)
        except OSError as error:
            self.counters["journal_errors"] += 1
            self._problems.append(f"the journal could not be written: {error}")

    def _catch_up(self) -> None:
        """Write down what a full disk had refused, as soon as it takes it: until then a killed agent forgets it."""
        if not self._journal.behind:
            return
        try:
            self._journal.catch_up()
        except OSError:
            self.counters["journal_errors"] += 1

    def _forget_vanished(self) -> None:
        unseen = [entry for entry in self._journal.entries() if entry.group not in self._glanced]
        gone = [entry for entry in unseen if not self._looks.exists(entry)]
        self._forget([(entry.group, entry.knob) for entry in gone])
        for entry in gone:
            self._confirmed.pop((entry.group, entry.knob, entry.inode), None)
        known = {entry.group for entry in self._journal.entries()} | {group for group, _ in self._plan.settings}
        self._backoff.keep(known)
        self._calm.keep(known)
        self._said = {key: sentence for key, sentence in self._said.items() if key[0] in known}

    def _entry(self, look: Look) -> Entry | None:
        entry = self._journal.get(look.place.group, look.knob)
        return entry if entry is not None and entry.inode == look.place.inode else None


def _staged(step: Step) -> Iterator[Step]:
    *passing, last = ADAPTERS[step.knob].stages(step.held, step.target)
    for value in passing:
        yield replace(step, target=value, passing=True)
    yield replace(step, target=last, via=passing[-1] if passing else None)


def _is_below(group: str, other: str) -> bool:
    return group.startswith(f"{other}/")

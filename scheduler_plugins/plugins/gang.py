"""Gang: pods of one group are placed together, its minimum at once or none.

PreEnqueue keeps pods out while their gang has too few. PreFilter refuses a gang that cannot be complete now: that can
never fit (said at once), that has no room, of which a pod fits nowhere, or that rests after a failed round. Permit lets
a placed pod wait, its place held, until the minimum has places; then all are let go in one moment. Where a pod fits
nowhere and the minimum cannot be reached without it, PostFilter gives the places back, and so does a pod that loses its
place while others wait for it.

Two gangs that each hold half of what both need cannot block each other: a gang that holds places and cannot go on gives
way to an older one, or takes the places of a younger one where these would help it.

What the plugin knows it reads from the API's pods and from those that wait at Permit; see `gang_book` for the rest.
Source of the rules: kubernetes-sigs/scheduler-plugins coscheduling; of the names: `gang_group`.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from scheduler_plugins.framework.diagnosis import Diagnosis
from scheduler_plugins.framework.events import Registration
from scheduler_plugins.framework.interfaces import (
    EnqueueExtensions,
    Handle,
    PermitPlugin,
    PermitResult,
    PostFilterPlugin,
    PostFilterResult,
    PreEnqueuePlugin,
    PreFilterPlugin,
    PreFilterResult,
    QueueSortPlugin,
    ReservePlugin,
    WaitingPod,
    WhatIf,
)
from scheduler_plugins.framework.pod_info import PodInfo, PodReader
from scheduler_plugins.framework.queued import QueuedPod
from scheduler_plugins.framework.registry import NoArgs, Registry
from scheduler_plugins.framework.reusable import Reusable
from scheduler_plugins.framework.snapshot import Snapshot
from scheduler_plugins.framework.state import PODS_TO_ACTIVATE, CycleState, StateKey
from scheduler_plugins.framework.status import SKIP, SUCCESS, Code, Reason, Status, unresolvable, unschedulable
from scheduler_plugins.plugins.amounts import in_words
from scheduler_plugins.plugins.gang_book import GangBook
from scheduler_plugins.plugins.gang_events import gang_events
from scheduler_plugins.plugins.gang_group import LONGEST_SECONDS, GangId, Member, gang_of, statement_problem
from scheduler_plugins.plugins.gang_order import GangOrder, GangSort
from scheduler_plugins.plugins.gang_room import not_free, too_much
from scheduler_plugins.plugins.gang_state import GangNow, look, members_of, waiting_of
from scheduler_plugins.plugins.gang_yield import in_the_way
from scheduler_plugins.plugins.kinds import POD_GROUPS, SIGS_POD_GROUPS
from slacktide.cluster.kinds import PODS, Kind
from slacktide.settings import ResourceNames

NO_GROUP: Final = "the PodGroup of the pod is not there"
NEVER: Final = "gang can never fit"
NO_ROOM: Final = "gang does not fit now"
NOT_FREE: Final = "minimum resources of the gang are not free"
RESTS: Final = "gang rests after it could not be placed"
UNFIT: Final = "pods that the gang needs fit nowhere"
RULES: Final = "rules of the gang cannot be read"

_NOT_OURS: Final = PreFilterResult(SKIP)
_ALLOWED: Final = PermitResult(SUCCESS)
_NO_HELP: Final = PostFilterResult(unschedulable())
_TRIES: Final = 8
_REVIVED: Final = StateKey[bool]("Gang/revived")
_REFUSED: Final = StateKey[bool]("Gang/refused")


class GangArgs(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Arguments, under the names of the coscheduling plugin."""

    permit_waiting_time_seconds: Annotated[
        int, Meta(ge=1, le=LONGEST_SECONDS, description="How long placed pods wait, where the gang does not say.")
    ] = 60
    pod_group_backoff_seconds: Annotated[
        int, Meta(ge=0, le=3600, description="Least rest of a gang after a failed round; 1 to 10 s by itself.")
    ] = 0
    pod_group_reject_percentage: Annotated[
        int, Meta(ge=0, le=100, description="A gang that lacks no more of its minimum keeps its places for a while.")
    ] = 10


class Gang(
    PreEnqueuePlugin, PreFilterPlugin, PostFilterPlugin, ReservePlugin, PermitPlugin, EnqueueExtensions, Reusable
):
    """Judges pods of a gang only."""

    name = "Gang"

    def __init__(self, args: GangArgs, handle: Handle) -> None:
        self._args = args
        self._handle = handle
        self._book = GangBook(lambda gang: members_of(handle, gang), float(args.pod_group_backoff_seconds))
        self._reader = PodReader(ResourceNames(cpu=handle.cpu_resource, memory=handle.memory_resource))
        self._words = functools.partial(
            in_words, millis=frozenset({handle.cpu_resource}), in_bytes=frozenset({handle.memory_resource})
        )

    def kinds(self) -> Sequence[Kind[Any]]:
        """All pods, and both kinds of groups."""
        return (PODS, SIGS_POD_GROUPS, POD_GROUPS)

    def events_to_register(self) -> Sequence[Registration]:
        """See `gang_events`."""
        return gang_events(self._could_start, self._book.lacking)

    def _could_start(self, gang: GangId) -> bool:
        now = self._look(gang)
        return isinstance(now, str) or (now is not None and now.too_few() is None)

    def _look(self, gang: GangId) -> GangNow | str | None:
        return look(self._handle, self._book, gang, self.name)

    # Before a node is looked for.

    def pre_enqueue(self, pod: PodInfo) -> Status:
        """Keeps the pod out while its gang is not there."""
        gang = gang_of(pod)
        if gang is None:
            return SUCCESS
        now = self._look(gang)
        if now is None:
            return unresolvable(Reason(NO_GROUP, gang.key))
        # What cannot be read is told to people, which a gate would not do.
        too_few = None if isinstance(now, str) or statement_problem(pod.pod) else now.too_few()
        if too_few is not None:
            self._book.keep_out(gang, pod.uid)
            return unresolvable(too_few)
        if self._book.enters(gang, pod.uid):
            # A change of one pod is told to that pod alone. Not here: the queue asks while it moves pods.
            self._handle.waiting.later(0, lambda: self._let_in(gang))
        return SUCCESS

    def pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> PreFilterResult:
        """Skip for a pod of no gang; a group that is not there is left to Permit."""
        gang = gang_of(pod)
        if gang is None:
            return _NOT_OURS
        now = self._look(gang)
        if now is None:
            return PreFilterResult()
        now = statement_problem(pod.pod) or now
        refusal = Reason(RULES, now) if isinstance(now, str) else self._refusal(now, state, pod, snapshot)
        if refusal is None:
            return PreFilterResult()
        state.write(_REFUSED, value=True)
        return PreFilterResult(unresolvable(refusal))

    def reuse_key(self, pod: PodInfo) -> Hashable | None:
        """Pods of no gang are alike."""
        return () if gang_of(pod) is None else None

    def _refusal(self, now: GangNow, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> Reason | None:
        """Why no pod of the gang is to be placed now."""
        if now.complete:
            return None
        gang = now.gang
        too_few = now.too_few()
        if too_few is not None:
            return too_few
        rest = self._book.rests(gang, self._handle.monotonic())
        if rest > 0:
            self._book.ask(gang)
            return Reason(RESTS, f"gang {gang.key} for another {rest:.0f} s")
        revived = self._book.tried(gang, pod.uid)
        state.write(_REVIVED, revived)
        unfit = self._book.all_unfit(gang)
        able = now.able(unfit)
        if len(able) < now.rules.minimum:
            return Reason(UNFIT, f"gang {gang.key}: {len(able)} of {now.rules.minimum} are left")
        return self._lack(now, able, pod, snapshot)

    def _lack(self, now: GangNow, able: Sequence[Member], pod: PodInfo, snapshot: Snapshot) -> Reason | None:
        """What the nodes lack. Asked before the first pod is placed; the others then need no such look."""
        if now.waiting:
            return None
        minimum, text = now.rules.minimum, NEVER
        lack = too_much([one.requests for one in able], minimum, snapshot, self._words, free=False)
        if lack is None and now.rules.needs:
            text = NOT_FREE
            own = [one.requests for one in now.members if one.uid in now.going]
            lack = not_free(now.rules.needs, own, snapshot, self._words)
        if lack is None and not _may_preempt(pod):
            text = NO_ROOM
            open_ = [one.requests for one in able if one.uid not in now.going]
            lack = too_much(open_, minimum - len(now.going), snapshot, self._words, free=True)
        self._book.lacks(now.gang, lack.resources if lack else frozenset())
        return Reason(text, f"gang {now.gang.key}: {lack.detail}") if lack else None

    # Where a pod fits nowhere.

    def post_filter(
        self,
        state: CycleState,
        pod: PodInfo,
        snapshot: Snapshot,
        diagnosis: Diagnosis,
        what_if: WhatIf,  # noqa: ARG002  # part of the extension point
    ) -> PostFilterResult:
        """Gives places back that cannot be of use; makes no room itself."""
        gang = gang_of(pod)
        now = None if gang is None else self._look(gang)
        if not isinstance(now, GangNow):
            return _NO_HELP
        if _REFUSED in state:
            if now.waiting and now.too_few() is not None:
                self._give_back(now, "its gang has too few pods")
            return _NO_HELP
        if now.complete:
            return _NO_HELP
        unfit = self._book.unfit(now.gang, pod.uid)
        if len(now.able(unfit)) >= now.rules.minimum:
            if not now.waiting:
                # It may be the only one whom a change has woken.
                self._try_others(now, state, pod)
            return PostFilterResult(unschedulable(Reason("gang goes on without the pod")))
        return PostFilterResult(unschedulable(self._stuck(now, snapshot, diagnosis)))

    def _stuck(self, now: GangNow, snapshot: Snapshot, diagnosis: Diagnosis) -> Reason:
        """The gang cannot be complete without a pod that fits nowhere."""
        placed, minimum = now.placed, now.rules.minimum
        detail = f"gang {now.gang.key} has {placed} of {minimum} places"
        others = [one for one in self._half_placed() if one.gang != now.gang] if now.waiting else []
        younger = [one for one in others if one.age > now.age and in_the_way(one, snapshot, diagnosis)]
        if younger:
            youngest = max(younger, key=lambda one: one.age)
            self._book.ask(youngest.gang)
            self._give_back(youngest, f"gang {now.gang.key} is older and cannot go on without the place")
            return Reason("gang keeps its places, a younger one gives way", f"{detail}; younger: {youngest.gang.key}")
        older = any(one.age < now.age for one in others)
        if 100 * (minimum - placed) <= self._args.pod_group_reject_percentage * minimum and not older:
            return Reason("gang keeps its places for a while", detail)
        self._give_back(now, "a pod that its gang needs fits nowhere")
        return Reason("gang gives its places back", detail)

    def _half_placed(self) -> Iterable[GangNow]:
        """Gangs of which pods wait."""
        gangs = {gang for one in self._handle.waiting.all() if (gang := gang_of(one.pod)) is not None}
        return [now for now in map(self._look, sorted(gangs)) if isinstance(now, GangNow) and now.waiting]

    def _give_back(self, now: GangNow, why: str) -> None:
        self._rest(now.gang)
        self._reject(now.gang, now.waiting, why)

    def _reject(self, gang: GangId, waiting: Sequence[WaitingPod], why: str) -> None:
        self._book.reject(gang, [one.pod.uid for one in waiting])
        for one in waiting:
            one.reject(self.name, f"gave its place back: {why}")

    def _rest(self, gang: GangId) -> None:
        seconds = self._book.failed(gang, self._handle.monotonic())
        self._handle.waiting.later(seconds, lambda: self._wake(gang))

    def _wake(self, gang: GangId) -> None:
        """The gang has rested. Others of its pods may have been refused meanwhile, whom no event would wake."""
        if not self._book.rested(gang, self._handle.monotonic()):
            return
        now = self._look(gang)
        if isinstance(now, GangNow):
            self._handle.activate([self._reader.read(one.pod) for one in now.pending()])

    def _let_in(self, gang: GangId) -> None:
        """The gang is there now: its pods that were kept out are let in, also where no event has told of it."""
        kept_out = self._book.let_in(gang)
        members = members_of(self._handle, gang) if kept_out else []
        self._handle.activate([self._reader.read(one.pod) for one in members if one.uid in kept_out])

    # Once a pod has a node.

    def reserve(self, state: CycleState, pod: PodInfo, node_name: str) -> Status:  # noqa: ARG002  # part of the extension point
        """Nothing to book."""
        return SUCCESS

    def unreserve(self, state: CycleState, pod: PodInfo, node_name: str) -> None:  # noqa: ARG002  # part of the extension point
        """Others of the gang that wait for the pod need wait no longer."""
        gang = gang_of(pod)
        if gang is None or not self._book.undone(gang, pod.uid):
            return
        self._book.ask(gang)
        self._rest(gang)
        self._reject(gang, waiting_of(self._handle, gang, self.name), f"pod {pod.pod.metadata.name} lost its place")

    def permit(self, state: CycleState, pod: PodInfo, node_name: str) -> PermitResult:  # noqa: ARG002  # part of the extension point
        """Lets the gang go once its minimum has places; till then the pod waits."""
        gang = gang_of(pod)
        if gang is None:
            return _ALLOWED
        # A pod that waits may lose its place while it is being counted: then it is counted again.
        for tries in range(_TRIES):
            now = self._look(gang)
            if now is None:
                return PermitResult(unschedulable(Reason(NO_GROUP, gang.key)))
            if isinstance(now, str):
                return PermitResult(unschedulable(Reason(RULES, now)))
            if now.placed_beside(pod.uid) + 1 < now.rules.minimum:
                return self._wait(now, state, pod, again=tries > 0)
            if self._release(now, pod):
                return _ALLOWED
        return PermitResult(
            unschedulable(Reason("pods of the gang lost their places while it was being let go", gang.key))
        )

    def _release(self, now: GangNow, pod: PodInfo) -> bool:
        waiting = [one.pod.uid for one in now.waiting if one.pod.uid != pod.uid]
        self._book.release(now.gang, [*waiting, pod.uid])
        if self._handle.waiting.allow_together(waiting, self.name):
            return True
        self._book.take_back(now.gang, [*waiting, pod.uid])
        return False

    def _wait(self, now: GangNow, state: CycleState, pod: PodInfo, *, again: bool) -> PermitResult:
        """The first pod that waits gets the others tried, and so does one for which they were held up (`again`)."""
        if again or not now.waiting or (_REVIVED in state and state.read(_REVIVED)):
            self._try_others(now, state, pod)
        seconds = now.rules.timeout_seconds or float(self._args.permit_waiting_time_seconds)
        return PermitResult(Status(Code.WAIT), seconds)

    def _try_others(self, now: GangNow, state: CycleState, pod: PodInfo) -> None:
        unfit = self._book.all_unfit(now.gang)
        others = [one for one in now.pending() if one.uid != pod.uid and one.uid not in unfit and one.able]
        asked: Mapping[str, PodInfo] = state.read(PODS_TO_ACTIVATE) if PODS_TO_ACTIVATE in state else {}
        infos = [self._reader.read(one.pod) for one in others]
        state.write(PODS_TO_ACTIVATE, {**asked, **{info.key: info for info in infos}})


class Coscheduling(Gang, QueueSortPlugin):
    """Gang under the name and with the queue order of the plugin of scheduler-plugins."""

    name = "Coscheduling"

    def __init__(self, args: GangArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._order = GangOrder(handle)

    def sort_key(self, queued: QueuedPod) -> tuple[Any, ...]:
        """See `GangOrder`."""
        return self._order.sort_key(queued)


def _may_preempt(pod: PodInfo) -> bool:
    """Whether others may have to give way to the pod: then what is free now is not all that it can have."""
    return pod.priority > 0 and pod.pod.spec.preemption_policy != "Never"


def register(registry: Registry) -> None:
    """Make the plugins known by their names."""
    registry.register(Gang.name, Gang, GangArgs)
    registry.register(Coscheduling.name, Coscheduling, GangArgs)
    registry.register(GangSort.name, lambda _args, handle: GangSort(handle), NoArgs)

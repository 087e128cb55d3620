"""Pure: what the runner should do next, from what should run and what does.

`plan` has no memory of its own: everything it needs (restart counts, back-off, grace periods that have begun) is in
the attempts, which come from files. So a restarted runner continues where the killed one was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slacktide.objects import Container, Pod, is_terminal, is_terminating
from standalone.runner.attempts import Attempt, ContainerId, Phase, PodUid, latest
from standalone.runner.lifecycle import BackOff, Progress, progress


@dataclass(frozen=True, slots=True)
class Start:
    """Start a container of a pod as its attempt `number`."""

    pod: Pod
    container: Container
    number: int
    crashes: int


@dataclass(frozen=True, slots=True)
class Terminate:
    """Send SIGTERM to the payload and note that the grace period has begun."""

    attempt: Attempt
    grace_seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class Kill:
    """Kill everything of a container."""

    attempt: Attempt


@dataclass(frozen=True, slots=True)
class Bury:
    """The shim is gone: kill what is left and write the exit record in its place."""

    attempt: Attempt


@dataclass(frozen=True, slots=True)
class RemoveContainerGroup:
    """Remove the cgroup of an ended or unknown container (killing what is left in it)."""

    pod_uid: PodUid
    id: ContainerId


@dataclass(frozen=True, slots=True)
class RemovePodGroup:
    """Remove the cgroup of a pod that runs nothing any more."""

    pod_uid: PodUid


@dataclass(frozen=True, slots=True)
class Forget:
    """Remove the record of an attempt that nobody asks for any more."""

    attempt: Attempt


@dataclass(frozen=True, slots=True)
class ForgetPod:
    """The pod is gone from the API and nothing of it runs: remove its records and logs."""

    uid: PodUid
    namespace: str
    pod: str
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True)
class DeletePod:
    """The pod was asked to go and nothing of it runs: confirm to the API."""

    pod: Pod


Action = Start | Terminate | Kill | Bury | RemoveContainerGroup | RemovePodGroup | Forget | ForgetPod | DeletePod


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFailure:
    """A start that failed before the payload could run: why, how often, and when (monotonic) to try again.

    `number` is the attempt that could not be made.
    """

    number: int = 0
    reason: str
    message: str
    count: int
    retry_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Durations. `default_grace_seconds` is the API's default for pods that name none."""

    back_off: BackOff = field(default_factory=BackOff)
    default_grace_seconds: float = 30.0
    orphan_grace_seconds: float = 2.0
    """For containers of pods that are gone from the API: somebody removed them by force."""
    kept_attempts: int = 2
    """Per container: the newest and the one before it (lastState)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Desired:
    """Pods of this node that were admitted. `synced` is False until the API has answered a list once: an empty or
    failed list is not "no pods" (kubernetes#81324)."""

    synced: bool
    pods: tuple[Pod, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What is on this machine: attempts by their records, cgroups (pod uid -> container ids) by listing."""

    attempts: tuple[Attempt, ...] = ()
    groups: Mapping[PodUid, frozenset[ContainerId]] = field(default_factory=dict)
    failures: Mapping[tuple[PodUid, str], StartFailure] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Actions in order, and the monotonic time at which to plan again even if nothing happens (None: no deadline)."""

    actions: tuple[Action, ...]
    wake_at: float | None


class _Draft:
    """Actions and deadlines as they are collected."""

    def __init__(self, observed: Observed, now: float, rules: Rules) -> None:
        self.actions: list[Action] = []
        self.deadlines: list[float] = []
        self.observed = observed
        self.now = now
        self.rules = rules

    def due(self, at: float | None) -> bool:
        """Whether `at` has come; if not, it becomes a deadline."""
        if at is None or at <= self.now:
            return True
        self.deadlines.append(at)
        return False

    def stop(self, attempt: Attempt, grace_seconds: float, reason: str) -> None:
        """The next step towards the end of a live attempt."""
        if attempt.phase is Phase.LOST:
            return
        if attempt.stopping is None:
            self.actions.append(Terminate(attempt, grace_seconds, reason) if grace_seconds > 0 else Kill(attempt))
        elif self.due(attempt.stopping.kill_at(grace_seconds)):
            self.actions.append(Kill(attempt))


def plan(desired: Desired, observed: Observed, now: float, rules: Rules) -> Plan:
    """The actions that bring what runs closer to what should run. Planning twice gives the same plan."""
    draft = _Draft(observed, now, rules)
    by_pod: dict[PodUid, list[Attempt]] = {}
    for attempt in observed.attempts:
        by_pod.setdefault(attempt.pod_uid, []).append(attempt)
        if attempt.phase is Phase.LOST:
            draft.actions.append(Bury(attempt))
    if not desired.synced:
        for attempt in observed.attempts:
            if attempt.live and attempt.stopping is not None:
                draft.stop(attempt, attempt.stopping.grace_seconds, "")
        return _finished(draft)
    for pod in desired.pods:
        uid = PodUid(pod.metadata.uid)
        _plan_pod(draft, pod, tuple(by_pod.pop(uid, ())))
    known = {PodUid(pod.metadata.uid) for pod in desired.pods}
    for uid, attempts in by_pod.items():
        _plan_orphan(draft, uid, tuple(attempts))
    for uid in observed.groups:
        if uid not in known and uid not in by_pod:
            _clean(draft, uid, (), whole=True)
    return _finished(draft)


def grace_of(pod: Pod, rules: Rules) -> float:
    """Grace period of a pod in seconds: that of its deletion, else its own, else the default."""
    for grace in (pod.metadata.deletion_grace_period_seconds, pod.spec.termination_grace_period_seconds):
        if grace is not None:
            return float(max(0, grace))
    return rules.default_grace_seconds


def _finished(draft: _Draft) -> Plan:
    return Plan(actions=tuple(draft.actions), wake_at=min(draft.deadlines, default=None))


def _plan_pod(draft: _Draft, pod: Pod, attempts: tuple[Attempt, ...]) -> None:
    uid, newest = PodUid(pod.metadata.uid), latest(attempts)
    live = [attempt for attempt in attempts if attempt.live]
    done = progress(pod, newest)
    ending = is_terminating(pod) or is_terminal(pod) or done.finished
    if ending:
        for attempt in live:
            draft.stop(
                attempt, grace_of(pod, draft.rules), "the pod is deleted" if is_terminating(pod) else "the pod ended"
            )
    else:
        _plan_starts(draft, pod, newest, done)
        for attempt in live:
            # A termination that began must end, whatever became of its cause.
            if attempt.stopping is not None:
                draft.stop(attempt, attempt.stopping.grace_seconds, "")
    _clean(draft, uid, attempts, whole=ending and not live)
    for attempt in attempts:
        if not attempt.live and attempt.number <= newest[attempt.container].number - draft.rules.kept_attempts:
            draft.actions.append(Forget(attempt))
    if is_terminating(pod) and not live and uid not in draft.observed.groups:
        draft.actions.append(DeletePod(pod))


def _plan_starts(draft: _Draft, pod: Pod, newest: Mapping[str, Attempt], done: Progress) -> None:
    uid, back_off = PodUid(pod.metadata.uid), draft.rules.back_off
    for container in done.wanted:
        failure = draft.observed.failures.get((uid, container.name))
        before = newest.get(container.name)
        ready = draft.due(failure.retry_at) if failure else True
        if before is None:
            number, crashes = _known_restarts(pod, container), 0
        else:
            assert before.exit is not None
            number, crashes = before.number + 1, back_off.crashes_after(before)
            ready = draft.due(back_off.restart_at(before, before.exit)) and ready
        if ready:
            draft.actions.append(Start(pod, container, number, crashes))


def _known_restarts(pod: Pod, container: Container) -> int:
    """Attempt number where there is no record: the API may remember attempts whose records were lost."""
    for status in (*pod.status.container_statuses, *pod.status.init_container_statuses):
        if status.name == container.name and status.container_id:
            return status.restart_count + 1
    return 0


def _plan_orphan(draft: _Draft, uid: PodUid, attempts: tuple[Attempt, ...]) -> None:
    live = [attempt for attempt in attempts if attempt.live]
    for attempt in live:
        draft.stop(attempt, draft.rules.orphan_grace_seconds, "the pod is gone from the API")
    _clean(draft, uid, attempts, whole=not live)
    if not live and uid not in draft.observed.groups:
        draft.actions.append(ForgetPod(uid, attempts[0].namespace, attempts[0].pod, attempts))


def _clean(draft: _Draft, uid: PodUid, attempts: tuple[Attempt, ...], *, whole: bool) -> None:
    """Remove cgroups of containers that are not live, and the pod's own when `whole`."""
    live = {attempt.id for attempt in attempts if attempt.live}
    groups = draft.observed.groups.get(uid)
    if groups is None:
        return
    draft.actions += [RemoveContainerGroup(uid, one) for one in sorted(groups - live)]
    if whole:
        draft.actions.append(RemovePodGroup(uid))

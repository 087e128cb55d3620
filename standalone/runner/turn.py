"""The imperative shell: look, decide (pure), act, report. One object, one thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from slacktide.errors import KernelError
from slacktide.objects import Pod, PodCondition, is_terminal, is_terminating, pod_key
from slacktide.observe import get_logger
from standalone.runner import plan as planning
from standalone.runner.admission import Verdict, admit
from standalone.runner.api import PodSource
from standalone.runner.attempts import Attempt, ContainerId, Phase, PodUid
from standalone.runner.containers import Containers, StartError
from standalone.runner.limits import burstable_shares
from standalone.runner.metrics import Metrics
from standalone.runner.narrator import Narrator
from standalone.runner.outbox import Outbox
from standalone.runner.plan import Desired, Observed, Rules, StartFailure, plan
from standalone.runner.podstatus import Facts, differs, pod_status
from standalone.runner.probes import Prober, ProbeTarget

_REPEAT_STATUS_SECONDS: Final = 30.0
_SOON_SECONDS: Final = 0.02
_MAX_SOON_SECONDS: Final = 1.0
_MAX_START_RETRY_SECONDS: Final = 60.0

Allocatable = Callable[[bool], Mapping[str, int] | None]
"""What the node can allocate; True asks the API itself instead of a cache. None is unknown."""

log = get_logger("runner.turn")


@dataclass(slots=True)
class _Sent:
    patch: dict[str, Any]
    at: float


class Turns:
    """The runner's loop body. `turn` returns the monotonic time at which the next one is due at the latest."""

    def __init__(
        self,
        *,
        pods: PodSource,
        containers: Containers,
        outbox: Outbox,
        narrator: Narrator,
        prober: Prober,
        allocatable: Allocatable,
        metrics: Metrics,
        rules: Rules,
        address: str,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._pods = pods
        self._containers = containers
        self._outbox = outbox
        self._narrator = narrator
        self._prober = prober
        self._allocatable = allocatable
        self._metrics = metrics
        self._rules = rules
        self._address = address
        self._clock = clock
        self._wall = wall
        self._verdict = Verdict(admitted=frozenset(), rejected={})
        self._failures: dict[tuple[PodUid, str], StartFailure] = {}
        self._first_seen: dict[PodUid, float] = {}
        self._sent: dict[PodUid, _Sent] = {}
        self._shares: int | None = None
        self._soon_seconds = _SOON_SECONDS

    def turn(self) -> float | None:
        """One turn. Raises KernelError when the cgroup trees cannot even be listed."""
        begun = self._clock()
        # Synced is asked first: a list that arrives in between only means that we see more.
        synced = self._pods.synced
        pods = {PodUid(pod.metadata.uid): pod for pod in self._pods.items()}
        attempts = self._containers.observe()
        self._say_corrupt()
        self._narrator.look(attempts, pods)
        self._judge(pods, attempts)
        self._forget_gone(pods, attempts)
        desired = Desired(synced=synced, pods=tuple(self._served(pods)))
        observed = Observed(attempts=attempts, groups=self._containers.listed(), failures=dict(self._failures))
        next_plan = plan(desired, observed, self._clock(), self._rules)
        soon = False
        for action in next_plan.actions:
            soon = self._act(action, pods) or soon
        self._weigh(desired.pods)
        self._probe(desired.pods, attempts)
        if synced:
            self._report(pods, attempts)
        self._metrics.turns.observe(self._clock() - begun)
        if not soon:
            self._soon_seconds = _SOON_SECONDS
            return next_plan.wake_at
        # Something that will not end (a process in uninterruptible sleep) must not make the loop spin.
        pause, self._soon_seconds = self._soon_seconds, min(self._soon_seconds * 2, _MAX_SOON_SECONDS)
        return self._clock() + pause

    def _say_corrupt(self) -> None:
        for sentence in self._containers.corrupt:
            self._metrics.corrupt.inc()
            log.error("a container record cannot be read", detail=sentence)
        self._containers.corrupt.clear()

    def _judge(self, pods: Mapping[PodUid, Pod], attempts: tuple[Attempt, ...]) -> None:
        """Admission of new pods; without knowing what the node offers they wait."""
        running = {attempt.pod_uid for attempt in attempts}
        seen = {uid for uid, pod in pods.items() if pod.status.start_time is not None and not is_terminal(pod)}
        before = frozenset((self._verdict.admitted | running | seen) & pods.keys())
        rejected = {uid: why for uid, why in self._verdict.rejected.items() if uid in pods}
        self._verdict = Verdict(admitted=before, rejected=rejected)
        if not pods.keys() - before - rejected.keys():
            return
        for fresh in (False, True):
            offered = self._allocatable(fresh)
            if offered is None:
                return
            verdict = admit(pods.values(), before, rejected, offered)
            new = verdict.rejected.keys() - rejected.keys()
            # A refusal is final, so it takes the node as the API shows it now, not as a cache had it.
            if fresh or not new:
                break
        for uid in new:
            refusal = verdict.rejected[uid]
            log.info("pod refused", pod=pod_key(pods[uid]), reason=refusal.reason, message=refusal.message)
            self._metrics.rejections.labels(refusal.reason).inc()
            self._narrator.rejected(pods[uid], refusal.reason, refusal.message)
        self._verdict = verdict

    def _served(self, pods: Mapping[PodUid, Pod]) -> list[Pod]:
        """Pods that the plan may act on: those admitted, and those that only need to go."""
        rejected, admitted = self._verdict.rejected, self._verdict.admitted
        return [
            pod
            for uid, pod in pods.items()
            if is_terminal(pod) or is_terminating(pod) or (uid in admitted and uid not in rejected)
        ]

    def _forget_gone(self, pods: Mapping[PodUid, Pod], attempts: tuple[Attempt, ...]) -> None:
        now = self._wall()
        self._first_seen = {uid: self._first_seen.get(uid, now) for uid in pods}
        self._sent = {uid: sent for uid, sent in self._sent.items() if uid in pods}
        made = {
            (one.pod_uid, one.container): one.number
            for one in sorted(attempts, key=lambda one: one.number)
            if one.phase in {Phase.RUNNING, Phase.EXITED}
        }
        self._failures = {
            key: failure
            for key, failure in self._failures.items()
            if key[0] in pods and made.get(key, -1) < failure.number
        }

    def _act(self, action: planning.Action, pods: Mapping[PodUid, Pod]) -> bool:
        """Do one thing; True when it should be looked at again soon."""
        try:
            return self._do(action, pods)
        except (KernelError, OSError) as error:
            log.warning("action failed", action=type(action).__name__, error=str(error))
            return False

    def _do(self, action: planning.Action, pods: Mapping[PodUid, Pod]) -> bool:
        match action:
            case planning.Start():
                return self._start(action)
            case planning.Terminate():
                sent = self._containers.terminate(action.attempt, action.grace_seconds)
                if sent:
                    pod = pods.get(action.attempt.pod_uid)
                    self._narrator.killing(pod, action.attempt.container, action.reason)
                return not sent
            case planning.Kill():
                self._metrics.kills.inc()
                self._containers.kill(action.attempt)
            case planning.Bury():
                return self._bury(action.attempt, pods.get(action.attempt.pod_uid))
            case planning.RemoveContainerGroup():
                self._containers.remove_container_group(action.pod_uid, action.id)
            case planning.RemovePodGroup():
                self._containers.remove_pod_group(action.pod_uid)
            case planning.Forget():
                self._containers.forget(action.attempt)
            case planning.ForgetPod():
                for attempt in action.attempts:
                    self._containers.forget(attempt)
                self._containers.remove_logs(action.namespace, action.pod, action.uid)
                self._outbox.forget(action.uid)
                return False
            case planning.DeletePod():
                self._report_pod(
                    action.pod,
                    tuple(one for one in self._containers.observe() if one.pod_uid == action.pod.metadata.uid),
                )
                self._outbox.delete(action.pod)
                return False
        return True

    def _start(self, start: planning.Start) -> bool:
        self._narrator.starting(start.pod)
        try:
            self._containers.start(start)
        except StartError as error:
            self._start_failed(start.pod, start.container.name, start.number, error)
            return False
        self._metrics.starts.labels("started").inc()
        return False

    def _bury(self, attempt: Attempt, pod: Pod | None) -> bool:
        try:
            self._containers.bury(attempt)
        except StartError as error:
            if pod is not None:
                self._start_failed(pod, attempt.container, attempt.number, error)
        return True

    def _start_failed(self, pod: Pod, container: str, number: int, error: StartError) -> None:
        key = (PodUid(pod.metadata.uid), container)
        before = self._failures.get(key)
        count = before.count + 1 if before else 1
        pause = min(_MAX_START_RETRY_SECONDS, 2.0 ** min(count, 10))
        self._failures[key] = StartFailure(
            number=number, reason=error.reason, message=str(error), count=count, retry_at=self._clock() + pause
        )
        log.warning("container not started", pod=pod_key(pod), container=container, error=str(error))
        self._narrator.failed(pod, container, error.reason, str(error))

    def _weigh(self, pods: tuple[Pod, ...]) -> None:
        admitted = self._verdict.admitted
        shares = burstable_shares(pod for pod in pods if pod.metadata.uid in admitted and not is_terminal(pod))
        if shares == self._shares:
            return
        try:
            self._containers.set_burstable_shares(shares)
        except KernelError as error:
            log.warning("weight of the Burstable class not set", error=str(error))
            return
        self._shares = shares

    def _probe(self, pods: tuple[Pod, ...], attempts: tuple[Attempt, ...]) -> None:
        probes = {
            (PodUid(pod.metadata.uid), one.name): one.readiness_probe
            for pod in pods
            if not is_terminating(pod) and not is_terminal(pod)
            for one in (*pod.spec.containers, *pod.spec.init_containers)
            if one.readiness_probe is not None
        }
        targets: dict[ContainerId, Callable[[], ProbeTarget]] = {}
        for attempt in attempts:
            probe = probes.get((attempt.pod_uid, attempt.container))
            if probe is not None and attempt.phase is Phase.RUNNING:

                def build(attempt: Attempt = attempt, probe: Any = probe) -> ProbeTarget:
                    env, cwd = self._containers.environment(attempt.id)
                    dirs = tuple(self._containers.dirs(attempt.id))
                    return ProbeTarget(probe=probe, dirs=dirs, env=env, cwd=cwd, address=self._address)

                targets[attempt.id] = build
        self._prober.sync(targets)

    def _report(self, pods: Mapping[PodUid, Pod], attempts: tuple[Attempt, ...]) -> None:
        by_pod: dict[PodUid, list[Attempt]] = {}
        for attempt in attempts:
            by_pod.setdefault(attempt.pod_uid, []).append(attempt)
        for uid, pod in pods.items():
            known = uid in self._verdict.admitted or uid in self._verdict.rejected
            if known and (uid in by_pod or not is_terminal(pod)):
                self._report_pod(pod, tuple(by_pod.get(uid, ())))

    def _report_pod(self, pod: Pod, attempts: tuple[Attempt, ...]) -> None:
        uid = PodUid(pod.metadata.uid)
        sent = self._sent.get(uid)
        conditions = msgspec.convert(sent.patch.get("conditions", []), list[PodCondition]) if sent else []
        facts = Facts(
            attempts=attempts,
            failures={name: failure for (one, name), failure in self._failures.items() if one == uid},
            ready=self._prober.ready(),
            rejection=self._verdict.rejected.get(uid),
            sent=tuple(conditions),
            started_at=self._first_seen.get(uid, self._wall()),
            address=self._address,
        )
        patch = pod_status(pod, facts, self._wall(), self._rules.back_off)
        recent = sent is not None and sent.patch == patch and self._clock() - sent.at < _REPEAT_STATUS_SECONDS
        if not recent and differs(pod, patch):
            self._sent[uid] = _Sent(patch, self._clock())
            self._outbox.status(pod, patch)

"""Pure: the status of a pod as a kubelet would report it, from its spec and its attempts.

Built as the JSON of a strategic merge patch: conditions are merged by type on the server, so PodScheduled and
conditions of others stay untouched; containerStatuses are replaced whole.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from slacktide.objects import Container, Pod, PodCondition, PodStatus, is_terminal, is_terminating
from slacktide.resources import qos_class
from standalone.runner.attempts import Attempt, ContainerId, Exit, Phase, latest
from standalone.runner.lifecycle import BackOff, Progress, progress, runs
from standalone.runner.plan import StartFailure

RUNTIME: Final = "slacktide"
OWNED_CONDITIONS: Final = ("Initialized", "ContainersReady", "Ready")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """Why a pod was refused at the door: reason and message of its status."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of one pod besides its object. `started_at` is when this runner first saw it (epoch seconds).

    ready: readiness by container id, only of containers with a probe. failures: by container name. sent: conditions
    that are on their way to the API, so that a transition keeps its time until the API shows it.
    """

    attempts: tuple[Attempt, ...] = ()
    failures: Mapping[str, StartFailure] = field(default_factory=dict)
    ready: Mapping[ContainerId, bool] = field(default_factory=dict)
    rejection: Rejection | None = None
    sent: tuple[PodCondition, ...] = ()
    started_at: float
    address: str


def timestamp(seconds: float) -> str:
    """RFC 3339 with whole seconds, UTC."""
    return dt.datetime.fromtimestamp(int(seconds), dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def pod_status(pod: Pod, facts: Facts, now: float, back_off: BackOff) -> dict[str, Any]:
    """Status patch of `pod`; `now` is epoch seconds and only labels transitions."""
    if facts.rejection is not None:
        return {
            "phase": "Failed",
            "reason": facts.rejection.reason,
            "message": facts.rejection.message,
            "startTime": pod.status.start_time or timestamp(facts.started_at),
        }
    newest = latest(facts.attempts)
    done = progress(pod, newest)
    phase = _phase(pod, facts, newest, done)
    over = phase in {"Succeeded", "Failed"} or is_terminating(pod)
    builder = _Containers(facts, newest, back_off, done, over)
    statuses = [builder.status(container) for container in pod.spec.containers]
    inits = [builder.status(container, init=True) for container in pod.spec.init_containers]
    result: dict[str, Any] = {
        "phase": phase,
        "qosClass": pod.status.qos_class or qos_class(pod),
        "hostIP": facts.address,
        "podIP": facts.address,
        "startTime": pod.status.start_time or timestamp(facts.started_at),
        "conditions": _conditions((*pod.status.conditions, *facts.sent), phase, done, inits, statuses, now),
        "containerStatuses": statuses,
    }
    if inits:
        result["initContainerStatuses"] = inits
    return result


def differs(pod: Pod, patch: Mapping[str, Any]) -> bool:
    """Whether applying `patch` would change what the API shows of the pod."""
    wanted, shown = msgspec.convert(dict(patch), PodStatus), pod.status
    conditions = {condition.type: condition for condition in shown.conditions}
    if any(conditions.get(condition.type) != condition for condition in wanted.conditions):
        return True
    names = {"phase": "phase", "reason": "reason", "message": "message", "qosClass": "qos_class", "hostIP": "host_ip"}
    names |= {"podIP": "pod_ip", "startTime": "start_time", "containerStatuses": "container_statuses"}
    names |= {"initContainerStatuses": "init_container_statuses"}
    return any(getattr(wanted, names[key]) != getattr(shown, names[key]) for key in patch if key in names)


def _phase(pod: Pod, facts: Facts, newest: Mapping[str, Attempt], done: Progress) -> str:
    live = any(attempt.live for attempt in facts.attempts)
    if is_terminal(pod):
        return pod.status.phase
    if not live and newest and (done.finished or is_terminating(pod)):
        main = [newest[container.name] for container in pod.spec.containers if container.name in newest]
        clean = len(main) == len(pod.spec.containers) and all(one.exit and one.exit.code == 0 for one in main)
        return "Succeeded" if clean and not done.failed else "Failed"
    started = all(container.name in newest for container in pod.spec.containers)
    ran = any(attempt.started_at is not None or attempt.exit for attempt in newest.values())
    return "Running" if done.initialized and started and ran else "Pending"


class _Containers:
    """Builds the status of each container of one pod."""

    def __init__(
        self, facts: Facts, newest: Mapping[str, Attempt], back_off: BackOff, done: Progress, over: bool
    ) -> None:
        self._facts = facts
        self._newest = newest
        self._back_off = back_off
        self._done = done
        self._over = over

    def status(self, container: Container, *, init: bool = False) -> dict[str, Any]:
        """One entry of containerStatuses."""
        attempt = self._newest.get(container.name)
        base = {"name": container.name, "image": container.image, "imageID": ""}
        if attempt is None:
            state = self._waiting(container, init=init)
            return {**base, "ready": False, "started": False, "restartCount": 0, "state": state, "lastState": {}}
        state, last = self._states(container, attempt)
        ready = self._ready(container, attempt, init=init)
        return {
            **base,
            "ready": ready,
            "started": runs(attempt),
            "restartCount": attempt.number,
            "containerID": f"{RUNTIME}://{attempt.id}",
            "state": state,
            "lastState": last,
        }

    def _ready(self, container: Container, attempt: Attempt, *, init: bool) -> bool:
        if init and container.restart_policy != "Always":
            return attempt.exit is not None and attempt.exit.code == 0
        if not runs(attempt):
            return False
        return container.readiness_probe is None or self._facts.ready.get(attempt.id, False)

    def _states(self, container: Container, attempt: Attempt) -> tuple[dict[str, Any], dict[str, Any]]:
        if attempt.exit is not None:
            ended = terminated(attempt, attempt.exit)
            if any(one.name == container.name for one in self._done.wanted) and not self._over:
                waiting = self._waiting_again(container, attempt)
                if waiting is not None:
                    return waiting, ended
            return ended, self._last(attempt)
        if attempt.phase is Phase.RUNNING and attempt.started_at is not None:
            return {"running": {"startedAt": timestamp(attempt.started_at)}}, self._last(attempt)
        return {"waiting": {"reason": "ContainerCreating"}}, self._last(attempt)

    def _last(self, attempt: Attempt) -> dict[str, Any]:
        for before in self._facts.attempts:
            if before.container == attempt.container and before.number == attempt.number - 1 and before.exit:
                return terminated(before, before.exit)
        return {}

    def _waiting(self, container: Container, *, init: bool) -> dict[str, Any]:
        failure = self._facts.failures.get(container.name)
        if failure is not None:
            return {"waiting": {"reason": failure.reason, "message": failure.message}}
        blocked = not init and not self._done.initialized
        return {"waiting": {"reason": "PodInitializing" if blocked else "ContainerCreating"}}

    def _waiting_again(self, container: Container, attempt: Attempt) -> dict[str, Any] | None:
        failure = self._facts.failures.get(container.name)
        if failure is not None:
            return {"waiting": {"reason": failure.reason, "message": failure.message}}
        delay = self._back_off.delay(self._back_off.crashes_after(attempt))
        if delay <= 0:
            return None
        message = f"back-off {delay:g}s restarting failed container={container.name} pod={attempt.pod}"
        return {"waiting": {"reason": "CrashLoopBackOff", "message": message}}


def terminated(attempt: Attempt, ended: Exit) -> dict[str, Any]:
    """State of an ended attempt, empty fields left out."""
    state: dict[str, Any] = {
        "exitCode": ended.code,
        "reason": ended.status_reason,
        "finishedAt": timestamp(ended.finished_at),
        "startedAt": timestamp(attempt.started_at if attempt.started_at is not None else ended.finished_at),
        "containerID": f"{RUNTIME}://{attempt.id}",
    }
    if ended.signal is not None:
        state["signal"] = ended.signal
    if ended.message:
        state["message"] = ended.message
    return {"terminated": state}


def _conditions(
    known: tuple[PodCondition, ...],
    phase: str,
    done: Progress,
    inits: list[dict[str, Any]],
    statuses: list[dict[str, Any]],
    now: float,
) -> list[dict[str, Any]]:
    unready = [status["name"] for status in statuses if not status["ready"]]
    over = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(phase, "")
    reason = "" if not unready else over or "ContainersNotReady"
    message = "" if not unready or over else f"containers with unready status: [{' '.join(unready)}]"
    waiting = [status["name"] for status in inits if not status["ready"]]
    found = {
        "Initialized": (
            done.initialized,
            "" if done.initialized else "ContainersNotInitialized",
            "" if done.initialized else f"containers with incomplete status: [{' '.join(waiting)}]",
        ),
        "ContainersReady": (not unready, reason, message),
        "Ready": (not unready, reason, message),
    }
    before = {condition.type: condition for condition in known}
    return [_condition(name, before.get(name), *found[name], now) for name in OWNED_CONDITIONS]


def _condition(
    name: str, before: PodCondition | None, holds: bool, reason: str, message: str, now: float
) -> dict[str, Any]:
    status = "True" if holds else "False"
    same = before is not None and before.status == status and before.last_transition_time is not None
    since = before.last_transition_time if before is not None and same else timestamp(now)
    # Reason and message are written also when empty: a merged condition would keep the old ones.
    return {"type": name, "status": status, "reason": reason, "message": message, "lastTransitionTime": since}

"""Pure: how far a pod has come, and which of its containers should be started next.

The rules are the kubelet's: init containers one after the other, sidecars (init containers with restartPolicy Always)
stay, restartPolicy decides about ended ones, restarts back off 0, 10, 20, 40 ... 300 s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slacktide.objects import Container, Pod
from standalone.runner.attempts import Attempt, Exit, Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class BackOff:
    """Restart back-off: the first restart is immediate, then `first_seconds`, doubled each time up to `max_seconds`.

    A container that ran `reset_seconds` starts from the beginning.
    """

    first_seconds: float = 10.0
    max_seconds: float = 300.0
    reset_seconds: float = 600.0

    def crashes_after(self, attempt: Attempt) -> int:
        """Quick ends in a row once `attempt` has ended."""
        ran = attempt.exit.ran_seconds if attempt.exit else None
        return 1 if ran is not None and ran >= self.reset_seconds else attempt.crashes + 1

    def delay(self, crashes: int) -> float:
        """Seconds between the end of a container and its restart, after `crashes` quick ends in a row."""
        if crashes <= 1:
            return 0.0
        return float(min(self.max_seconds, self.first_seconds * 2.0 ** min(crashes - 2, 32)))

    def restart_at(self, attempt: Attempt, ended: Exit) -> float | None:
        """Monotonic time of the restart; None when there is nothing to wait for."""
        delay = self.delay(self.crashes_after(attempt))
        return None if ended.finished is None or delay <= 0 else ended.finished + delay


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a pod has come.

    wanted: containers that should run and do not (first start or restart). initialized: all init containers are done.
    finished: every container has ended for good, sidecars aside. failed: one of those ended badly.
    """

    wanted: tuple[Container, ...]
    initialized: bool
    finished: bool
    failed: bool


def is_sidecar(container: Container) -> bool:
    """Whether an init container is one that stays."""
    return container.restart_policy == "Always"


def progress(pod: Pod, newest: Mapping[str, Attempt]) -> Progress:
    """How far the pod has come, by the newest attempt of each container."""
    started = any(container.name in newest for container in pod.spec.containers)
    wanted, initialized, failed = _init_progress(pod, newest, started=started)
    if failed or not initialized:
        return Progress(wanted=wanted, initialized=initialized, finished=failed, failed=failed)
    ends: list[Attempt] = []
    missing: list[Container] = []
    for container in pod.spec.containers:
        attempt = newest.get(container.name)
        if attempt is None or (attempt.exit and restarts(pod, attempt.exit)):
            missing.append(container)
        elif attempt.exit:
            ends.append(attempt)
    finished = len(ends) == len(pod.spec.containers)
    bad = any(attempt.exit and attempt.exit.code != 0 for attempt in ends)
    return Progress(
        wanted=() if finished else (*wanted, *missing), initialized=True, finished=finished, failed=finished and bad
    )


def restarts(pod: Pod, ended: Exit) -> bool:
    """Whether a main container that ended so is started again."""
    policy = pod.spec.restart_policy
    return policy == "Always" or (policy == "OnFailure" and ended.code != 0)


def _init_progress(
    pod: Pod, newest: Mapping[str, Attempt], *, started: bool
) -> tuple[tuple[Container, ...], bool, bool]:
    """(wanted, initialized, failed). Once a main container was started, init containers are not looked at again."""
    wanted: list[Container] = []
    for container in pod.spec.init_containers:
        attempt = newest.get(container.name)
        if is_sidecar(container):
            if attempt is None or attempt.exit:
                wanted.append(container)
            if not started and not (attempt and attempt.started_at is not None):
                return tuple(wanted), False, False
            continue
        if started or (attempt and attempt.exit and attempt.exit.code == 0):
            continue
        if attempt is None:
            return (*wanted, container), False, False
        if attempt.exit is None:
            return tuple(wanted), False, False
        if pod.spec.restart_policy == "Never":
            return (), False, True
        return (*wanted, container), False, False
    return tuple(wanted), True, False


def runs(attempt: Attempt | None) -> bool:
    """Whether the payload is running now."""
    return attempt is not None and attempt.phase is Phase.RUNNING

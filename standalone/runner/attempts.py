"""Values: what the runner knows about one start of one container (an attempt), read from its files."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, NewType

ContainerId = NewType("ContainerId", str)
PodUid = NewType("PodUid", str)

SIGKILLED: Final = 137


class Phase(enum.Enum):
    """Where an attempt stands."""

    STARTING = "starting"
    """Its shim lives, the payload has not been executed yet."""
    RUNNING = "running"
    EXITED = "exited"
    """There is an exit record."""
    LOST = "lost"
    """Its shim is gone and left no exit record; what it ran may still be there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How an attempt ended. Times ending in `_at` are seconds since the epoch.

    `ran_seconds` and `finished` (monotonic) are None when it ended before this boot, or nobody saw when.
    """

    code: int
    signal: int | None = None
    reason: str = ""
    message: str = ""
    oom_kills: int | None = None
    finished_at: float
    finished: float | None = None
    ran_seconds: float | None = None
    lost_lines: int = 0

    @property
    def status_reason(self) -> str:
        """Reason as kubelets word it. An OOM kill that the payload survived with exit code 0 is no OOM kill of it."""
        if self.reason:
            return self.reason
        if self.oom_kills and self.code != 0:
            return "OOMKilled"
        return "Completed" if self.code == 0 else "Error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    """SIGTERM was sent at `signalled` (monotonic); the whole cgroup is killed `grace_seconds` later."""

    signalled: float
    grace_seconds: float

    def kill_at(self, grace_seconds: float | None = None) -> float:
        """When to kill; a later, shorter grace period shortens it."""
        shortest = self.grace_seconds if grace_seconds is None else min(self.grace_seconds, grace_seconds)
        return self.signalled + shortest


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One start of one container. `number` is the restart count, `crashes` how many quick ends came just before."""

    id: ContainerId
    pod_uid: PodUid
    namespace: str
    pod: str
    container: str
    number: int
    crashes: int
    phase: Phase
    created_at: float
    started_at: float | None = None
    exit: Exit | None = None
    stopping: Stopping | None = None

    @property
    def live(self) -> bool:
        """Whether processes of it may run, or their end is not recorded yet."""
        return self.phase is not Phase.EXITED


def latest(attempts: list[Attempt] | tuple[Attempt, ...]) -> dict[str, Attempt]:
    """Newest attempt of each container of one pod."""
    found: dict[str, Attempt] = {}
    for attempt in sorted(attempts, key=lambda one: one.number):
        found[attempt.container] = attempt
    return found

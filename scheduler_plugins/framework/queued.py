"""QueuedPod: a pod in the scheduling queue with its history there; and how long it backs off."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from scheduler_plugins.framework.pod_info import PodInfo


@dataclass(slots=True)
class QueuedPod:
    """History of a pod in the queue. Times are monotonic seconds.

    `timestamp` is when it last entered the queue; `initial_attempt` when it first became ready (time behind a gate
    is not counted); `unschedulable_count` and `consecutive_errors` decide the backoff; the plugin sets say who
    refused it last, so that only events those plugins care about wake it. `profile` is which profile judges it;
    `gate_asked` is when it was last found to be kept out, as far as `SchedulingQueue.kept_out` goes by it;
    `flushed` says that it is being attempted only because it slept too long, which no event should leave to time.
    """

    info: PodInfo
    timestamp: float
    profile: str = ""
    attempts: int = 0
    initial_attempt: float | None = None
    unschedulable_count: int = 0
    consecutive_errors: int = 0
    unschedulable_plugins: set[str] = field(default_factory=set)
    pending_plugins: set[str] = field(default_factory=set)
    gating_plugin: str = ""
    gate_asked: float = 0.0
    flushed: bool = False

    @property
    def gated(self) -> bool:
        """Whether a PreEnqueue plugin keeps the pod out."""
        return bool(self.gating_plugin)

    @property
    def rejectors(self) -> set[str]:
        """All plugins that refused the pod in its last attempt."""
        return self.unschedulable_plugins | self.pending_plugins

    @property
    def wakers(self) -> set[str]:
        """Plugins whose events concern it while it sleeps: behind a gate nobody but the gate's plugin."""
        return {self.gating_plugin} if self.gating_plugin else self.rejectors


def backoff_duration(count: int, initial: float, maximum: float) -> float:
    """initial * 2^(count-1), at most `maximum`; 0 for a pod that never failed. Seconds, or any one unit."""
    if count <= 0 or initial <= 0:
        return 0
    if maximum <= initial:
        return maximum
    if count - 1 >= math.ceil(maximum / initial).bit_length():
        return maximum
    return min(maximum, initial * (1 << (count - 1)))

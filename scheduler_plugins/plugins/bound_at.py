"""When a pod came to its node: as the API has it, else the moment at which it was first seen there.

Pods that came lately do not show in what was measured. The time is read off the pod, so that it survives a restart of
the scheduler and holds for pods that others placed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from scheduler_plugins.framework.pod_info import PodInfo
from slacktide.objects import Pod, epoch_seconds

_MEMO: Final = "BoundAt/time"


def _told(pod: Pod) -> float | None:
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "True":
            at = epoch_seconds(condition.last_transition_time)
            if at is not None:
                return at
    return epoch_seconds(pod.status.start_time)


def bound_at(pod: PodInfo, wall_seconds: Callable[[], float]) -> float:
    """Seconds since the epoch, never later than `wall_seconds`, which stands in where the pod does not say.

    It does not while it is only assumed there. A time without zone, as some write it, is none.
    """
    known: float | None = pod.memo.get(_MEMO)
    if known is None:
        told, now = _told(pod.pod), wall_seconds()
        known = pod.memo[_MEMO] = now if told is None else min(told, now)
    return known

"""Who gives way to whom: the rule of preemption, and of room that was made for a pod on a node.

A pod gives way to one of a higher priority, as in the stock scheduler, but the tier goes first: best-effort pods make
nobody give way but other best-effort pods, and they give way to a pod of another tier already at equal priority.
A best-effort pod of a higher priority than a latency-sensitive one keeps its place: it is ahead of it in the queue, so
that it would come back at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from scheduler_plugins.framework.pod_info import PodInfo
from slacktide.evictable import is_evictable
from slacktide.tier import Tier


class Claim(msgspec.Struct, frozen=True):
    """What of a pod decides who gives way to it."""

    best_effort: bool
    priority: int

    @classmethod
    def of(cls, pod: PodInfo) -> Claim:
        """The claim of `pod`."""
        return cls(pod.tier is Tier.BE, pod.priority)

    def over(self, other: PodInfo) -> bool:
        """Whether `other` gives way."""
        if other.tier is not Tier.BE:
            return not self.best_effort and other.priority < self.priority
        return other.priority < self.priority or (other.priority == self.priority and not self.best_effort)


class MayBeRemoved(msgspec.Struct, frozen=True):
    """Pods that give way to `claim` and may be made to go; a matcher for `Snapshot.pods_matching`."""

    claim: Claim

    def matches(self, pod: PodInfo) -> bool:
        """Whether the pod is such a one."""
        return self.claim.over(pod) and is_evictable(pod.pod)

    @property
    def pairs(self) -> Sequence[tuple[str, str]]:
        """No label is common to them."""
        return ()


def gives_way(other: PodInfo, to: PodInfo) -> bool:
    """Whether `other` gives way to `to`."""
    return Claim.of(to).over(other)

"""Extenders: other processes that the scheduler asks beside its plugins, as the cycle sees them.

The wire is elsewhere (`scheduler_plugins.extenders`); here is what an answer means. Source: Kubernetes scheduler
extender, 1.35.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from scheduler_plugins.framework.node_info import NodeInfo
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.status import Status
from slacktide.errors import SlacktideError


class ExtenderError(SlacktideError):
    """An extender gave no answer that counts: not reached, too late, refused, or not understood. Says which one."""


@dataclass(frozen=True, slots=True)
class ExtenderFilter:
    """Answer to a filter question: names of the nodes that are left, and the reason of each other one.

    A node that is in none of the three is lost without a reason; one in both maps counts as unresolvable.
    """

    kept: frozenset[str]
    failed: Mapping[str, str]
    unresolvable: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Victims:
    """Pods of one node that a preemption would remove, and how many of them their disruption budgets do not allow."""

    pods: tuple[PodInfo, ...]
    pdb_violations: int = 0


class Extender(Protocol):
    """One extender of the configuration. `ignorable`: its failure leaves the attempt as if it had not been asked.

    `filters`, `prioritizes`, `binds` and `preempts` say which verbs it has.
    """

    name: str
    ignorable: bool
    filters: bool
    prioritizes: bool
    binds: bool
    preempts: bool

    def interested(self, pod: PodInfo) -> bool:
        """Whether it wants to be asked about this pod at all."""
        ...

    def filter(self, pod: PodInfo, nodes: Sequence[NodeInfo]) -> ExtenderFilter:
        """Which of `nodes` are left. Raises ExtenderError."""
        ...

    def prioritize(self, pod: PodInfo, nodes: Sequence[NodeInfo]) -> Mapping[str, int]:
        """What to add to the total of each node: score, times weight, times 10. Raises ExtenderError."""
        ...

    def bind(self, pod: PodInfo, node_name: str) -> Status:
        """Success once the pod is bound, else an Error."""
        ...

    def preempt(self, pod: PodInfo, candidates: Mapping[str, Victims]) -> Mapping[str, Victims]:
        """Which candidates are left, with what victims. Raises ExtenderError."""
        ...

"""Which gang a pod is in, what it says of it, and the pods of a gang as the API has them.

A pod names its gang in one of three ways, the first that it uses counts: label `slacktide.io/pod-group`, whose pods
state the minimum themselves; label `scheduling.x-k8s.io/pod-group` with a PodGroup object of scheduler-plugins; or
spec.schedulingGroup with a PodGroup of scheduling.k8s.io (Kubernetes 1.37).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from scheduler_plugins.framework.pod_info import PodInfo
from slacktide.cluster.indexed import Index
from slacktide.errors import QuantityError
from slacktide.objects import Pod, is_terminal, is_terminating
from slacktide.resources import requests_of

GROUP_LABEL: Final = "slacktide.io/pod-group"
MIN_MEMBERS: Final = "slacktide.io/min-members"
"""Annotation or label of a pod: how many pods of its gang are placed together at least. The annotation goes first."""
TIMEOUT_SECONDS: Final = "slacktide.io/pod-group-timeout-seconds"
"""Annotation or label of a pod: how long placed pods of its gang wait for the others."""
SIGS_LABEL: Final = "scheduling.x-k8s.io/pod-group"

MOST_MEMBERS: Final = 100_000
LONGEST_SECONDS: Final = 900
"""No pod waits longer at Permit, whatever is asked for."""

Requests = tuple[tuple[str, int], ...]
"""(resource, amount), sorted: equal ones of many pods are looked at once."""

_MEMO: Final = "Gang/of"
_STOCK: Final = "spec.schedulingGroup"


class GangId(NamedTuple):
    """A gang: what of the pod names it, and the name."""

    by: str
    namespace: str
    name: str

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def of_sigs(self) -> bool:
        """Whether a PodGroup of scheduler-plugins rules it."""
        return self.by == SIGS_LABEL

    @property
    def stated(self) -> bool:
        """Whether its pods state its rules."""
        return self.by == GROUP_LABEL


def gang_of_pod(pod: Pod) -> GangId | None:
    """None for a pod that is in no gang. Never raises."""
    labels = pod.metadata.labels
    for label in (GROUP_LABEL, SIGS_LABEL):
        name = labels.get(label)
        if name:
            return GangId(label, pod.metadata.namespace, name)
    group = pod.spec.scheduling_group
    return GangId(_STOCK, pod.metadata.namespace, group.pod_group_name) if group and group.pod_group_name else None


def gang_of(pod: PodInfo) -> GangId | None:
    """The same, read once."""
    try:
        found: GangId | None = pod.memo[_MEMO]
    except KeyError:
        found = pod.memo[_MEMO] = gang_of_pod(pod.pod)
    return found


def stated(pod: Pod, key: str, most: int) -> int | str | None:
    """A whole number from 1 to `most` that the pod states under `key`; text says what is wrong with it."""
    metadata = pod.metadata
    given = metadata.annotations.get(key, metadata.labels.get(key))
    if given is None:
        return None
    if len(given) <= len(str(most)) and given.isascii() and given.isdecimal() and 0 < int(given) <= most:
        return int(given)
    return f"{key} of pod {metadata.name} is {given[:40]!r}; it must be a whole number from 1 to {most}"


def statement_problem(pod: Pod) -> str:
    """What is wrong with what the pod states of its gang; empty when nothing is, or nothing is stated."""
    if not pod.metadata.labels.get(GROUP_LABEL):
        return ""
    for key, most in ((MIN_MEMBERS, MOST_MEMBERS), (TIMEOUT_SECONDS, LONGEST_SECONDS)):
        given = stated(pod, key, most)
        if isinstance(given, str):
            return given
    return ""


class Member:
    """A pod of a gang, read once: `placed` on a node by the API; `leaving` when it ended or is being deleted.

    `able`: placed, or neither scheduling gates nor an unreadable statement keep it out. `minimum` and `timeout` are
    what it states of its gang, None where that is nothing or cannot be read.
    """

    __slots__ = ("_requests", "able", "leaving", "minimum", "placed", "pod", "timeout", "uid")

    def __init__(self, pod: Pod) -> None:
        self.pod = pod
        self.uid = pod.metadata.uid
        self.placed = bool(pod.spec.node_name)
        self.leaving = is_terminating(pod) or is_terminal(pod)
        self.able = self.placed or not (pod.spec.scheduling_gates or statement_problem(pod))
        self.minimum = _number(stated(pod, MIN_MEMBERS, MOST_MEMBERS))
        self.timeout = _number(stated(pod, TIMEOUT_SECONDS, LONGEST_SECONDS))
        self._requests: Requests | None = None

    @property
    def requests(self) -> Requests:
        """Effective requests; nothing where they cannot be read, such a pod is refused elsewhere."""
        if self._requests is None:
            try:
                asked = requests_of(self.pod)
            except QuantityError:
                asked = {}
            self._requests = tuple(sorted((name, amount) for name, amount in asked.items() if amount > 0))
        return self._requests


def _number(given: int | str | None) -> int | None:
    return given if isinstance(given, int) else None


def _read(pod: Pod) -> tuple[GangId, Member] | None:
    gang = gang_of_pod(pod)
    return None if gang is None else (gang, Member(pod))


MEMBERS: Final = Index(_read)
"""Pods by gang."""

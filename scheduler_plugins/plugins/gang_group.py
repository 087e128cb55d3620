"""Which gang a pod is in, what it says of it, and the pods of a gang as the API has them.

A pod names its gang in one of three ways, the first that it uses counts: label `slacktide.io/pod-group`, whose pods
state the minimum themselves; label `scheduling.x-k8s.io/pod-group` with a PodGroup object of scheduler-plugins; or
spec.schedulingGroup with a PodGroup of scheduling.k8s.io (Kubernetes 1.37).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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


@dataclass(slots=True, eq=False)
class Member:
    """A pod of a gang."""

    pod: Pod
    _requests: Mapping[str, int] | None = None

    @property
    def uid(self) -> str:
        """metadata.uid."""
        return self.pod.metadata.uid

    @property
    def placed(self) -> bool:
        """Whether the API has it on a node."""
        return bool(self.pod.spec.node_name)

    @property
    def leaving(self) -> bool:
        """Whether it has ended or is being deleted, and so is no member any more."""
        return is_terminating(self.pod) or is_terminal(self.pod)

    @property
    def able(self) -> bool:
        """Whether it is placed or can be: not while scheduling gates or an unreadable statement keep it out."""
        return self.placed or not (self.pod.spec.scheduling_gates or statement_problem(self.pod))

    @property
    def requests(self) -> Mapping[str, int]:
        """Effective requests; nothing where they cannot be read, such a pod is refused elsewhere."""
        if self._requests is None:
            try:
                self._requests = requests_of(self.pod)
            except QuantityError:
                self._requests = {}
        return self._requests


def _read(pod: Pod) -> tuple[GangId, Member] | None:
    gang = gang_of_pod(pod)
    return None if gang is None else (gang, Member(pod))


MEMBERS: Final = Index(_read)
"""Pods by gang."""

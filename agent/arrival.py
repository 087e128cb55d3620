"""Pods and containers that came since the last turn: when each is looked at, and the snapshot with them in it.

A newcomer is looked at when it is seen and again at growing distances in its first second: a container runtime makes
the cgroup first and writes its own values into it a moment later. After that the turns keep it. A pod that the API
does not have yet is looked for at each beat. Pure but for the watch that it asks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

from agent.capabilities import Knob, Value
from agent.host.cgroup import PodGroup
from agent.host.watch import Arrival
from agent.policy.base import Plan
from agent.snapshot import ContainerSnapshot, NodeSnapshot, PodIdentity, PodSnapshot, named

LOOKS: Final = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8)
"""Seconds after the arrival at which a newcomer is looked at."""

UNKNOWN_SECONDS: Final = 60.0
"""A pod that the API does not have for this long is left to the turns."""

_UNKNOWN_EVERY: Final = 0.045
"""A little less than a beat, so that each beat looks."""


class Watch(Protocol):
    """Where arrivals come from."""

    @property
    def pending(self) -> bool:
        """Whether some were not taken yet."""

    def fileno(self) -> int | None:
        """Descriptor that is readable when something came; None where nothing is watched."""

    def follow(self) -> None:
        """Repair and complete the watch; once a turn, after its listing."""

    def take(self, at_most: int) -> tuple[Arrival, ...]:
        """The earliest arrivals, at most so many."""


@dataclass(slots=True)
class Newcomer:
    """One pod that is looked at. `at` is when it was seen, `due` when the next look is, both monotonic.

    `unknown`: the API did not have it at a look.
    """

    pod: PodGroup
    at: float
    due: float
    looks: int = 0
    unknown: bool = False


class Newcomers:
    """Those whose looks are not over. One thread uses it."""

    def __init__(self) -> None:
        self._by_group: dict[str, Newcomer] = {}

    @property
    def waiting(self) -> bool:
        """Whether there are any."""
        return bool(self._by_group)

    def add(self, arrival: Arrival) -> None:
        """Begin to look at a pod; one with something new again begins anew."""
        before = self._by_group.get(arrival.pod.group)
        unknown = before is not None and before.unknown
        newcomer = Newcomer(pod=arrival.pod, at=arrival.at, due=arrival.at, unknown=unknown)
        self._by_group[arrival.pod.group] = newcomer

    def due(self, now: float, at_most: int) -> list[Newcomer]:
        """Whose look is due, the longest overdue first, at most so many."""
        waiting = sorted((one for one in self._by_group.values() if one.due <= now), key=lambda one: one.due)
        return waiting[:at_most]

    def looked(self, newcomer: Newcomer) -> None:
        """One look was done; the last one ends it."""
        newcomer.looks += 1
        if newcomer.looks >= len(LOOKS):
            self._by_group.pop(newcomer.pod.group, None)
        else:
            newcomer.due = newcomer.at + LOOKS[newcomer.looks]

    def missed(self, newcomer: Newcomer, now: float) -> bool:
        """The API does not have it: look again in a beat. Whether this is the first time."""
        first, newcomer.unknown = not newcomer.unknown, True
        newcomer.due = now + _UNKNOWN_EVERY
        if now - newcomer.at > UNKNOWN_SECONDS:
            self._by_group.pop(newcomer.pod.group, None)
        return first

    def retry(self) -> None:
        """The API has something new: those that it did not have are due at once."""
        for newcomer in self._by_group.values():
            if newcomer.unknown:
                newcomer.due = newcomer.at

    def keep(self, groups: Collection[str]) -> None:
        """Forget those that are in none of these cgroups: they are gone."""
        for group in self._by_group.keys() - set(groups):
            del self._by_group[group]

    def clear(self) -> None:
        """Forget all: a turn takes care of them."""
        self._by_group.clear()


def joined(
    snapshot: NodeSnapshot, pods: Iterable[PodGroup], identities: Mapping[str, PodIdentity]
) -> NodeSnapshot | None:
    """`snapshot` with these pods in it as they are now; None when it holds all of them so already."""
    by_group = {pod.group: pod for pod in snapshot.pods}
    changed = False
    for pod in pods:
        old, identity = by_group.get(pod.group), identities[pod.uid]
        containers = containers_of(pod, identity)
        if old is not None and old.identity == identity and old.containers == containers:
            continue
        changed = True
        if old is None:
            by_group[pod.group] = PodSnapshot(identity=identity, group=pod.group, containers=containers)
        else:
            by_group[pod.group] = replace(old, identity=identity, containers=containers)
    return replace(snapshot, pods=tuple(by_group.values())) if changed else None


def containers_of(pod: PodGroup, identity: PodIdentity) -> tuple[ContainerSnapshot, ...]:
    """The container cgroups of a pod, each with its name where the API knows its id."""
    return named(tuple(ContainerSnapshot(group=one.group, id=one.id) for one in pod.containers), identity)


def changed_pods(before: Plan, after: Plan, pods: Collection[str]) -> set[str]:
    """Those of `pods` for which, or for whose containers, two plans want different values."""
    keys = before.settings.keys() | after.settings.keys()
    groups = {key[0] for key in keys if _value(before, key) != _value(after, key)}
    return {group if group in pods else group.rpartition("/")[0] for group in groups} & set(pods)


def part_of(plan: Plan, pods: Collection[str]) -> Plan:
    """What `plan` wants of these pods and of their containers."""
    wanted = {
        key: request for key, request in plan.settings.items() if key[0] in pods or key[0].rpartition("/")[0] in pods
    }
    return replace(plan, settings=wanted)


def _value(plan: Plan, key: tuple[str, Knob]) -> Value | None:
    request = plan.settings.get(key)
    return None if request is None else request.value

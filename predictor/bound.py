"""What the pods bound to each node ask for: sums of the sold resources and of plain requests, and the LS pods."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Final

import msgspec

from slacktide.errors import QuantityError
from slacktide.forecast import Amount
from slacktide.names import KOORDINATOR_PLACEMENT_ANNOTATION, MID_CPU, MID_MEMORY
from slacktide.objects import Pod, epoch_seconds, is_terminal, is_terminating, owner_group
from slacktide.resources import batch_request, requests_of
from slacktide.rivals import advice, agent_in, writer_in
from slacktide.settings import ResourceNames
from slacktide.tier import Tier, tier_of

_NOTHING: Final = Amount(cpu_millis=0, memory_bytes=0)


@dataclasses.dataclass(frozen=True, slots=True)
class LsPod:
    """One LS pod that is bound to a node and has not ended.

    uid        of the pod object, which is what samples name it by
    group      `slacktide.objects.owner_group`; empty when nothing controls it
    requested  its plain requests, those of the mid tier included; 0 for one that it does not name
    started    seconds since the epoch at which its node began with it; None when that is not said
    leaving    its deletion has begun
    mid        what of it is of the mid tier
    zone       NUMA zone that it is bound to; None when it is bound to none, or nobody says
    """

    uid: str
    group: str
    requested: Amount
    started: float | None
    leaving: bool
    mid: Amount = _NOTHING
    zone: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Bound:
    """Sums over the pods of one node: `sold` over BE pods, `requested` (plain requests) and `mid` (those of the mid
    tier, part of them) over the LS pods `pods`.

    A sum with a pod that could not be read is not known. `rival` says what is wrong where the agent of another such
    system runs on the node, empty where none does.
    """

    sold: Amount = _NOTHING
    requested: Amount = _NOTHING
    pods: tuple[LsPod, ...] = ()
    mid: Amount = _NOTHING
    rival: str = ""


UNKNOWN: Final = Bound(Amount(), Amount())
"""Of a node whose pods are not known."""


class BoundPods:
    """Sums by node. What a pod asks for is read once for each version of it: a fleet has many, and few change."""

    def __init__(self, names: ResourceNames) -> None:
        self._names = names
        self._read: dict[str, tuple[Pod, _Asked | None]] = {}
        self._sums: dict[str, tuple[list[_Asked | None], Bound]] = {}
        self._pods: tuple[Pod, ...] = ()
        self._known: tuple[dict[str, Bound], int] = ({}, 0)
        self._writers: frozenset[str] = frozenset()

    @property
    def writers(self) -> frozenset[str]:
        """Systems whose writers of batch resources run in the cluster, as of the last `by_node`."""
        return self._writers

    def by_node(self, pods: Iterable[Pod]) -> tuple[dict[str, Bound], int]:
        """Sums per node name, and how many pods could not be read.

        A pod that is being deleted still holds what it asked for; one that has ended holds nothing. A node without
        pods has no entry and sold nothing. A node whose pods are the same as before has the same `Bound`.
        """
        pods = tuple(pods)
        # Most passes see the very same objects, and then the comparison costs next to nothing.
        if pods != self._pods:
            self._pods, self._known = pods, self._gathered(pods)
        return self._known

    def _gathered(self, pods: Iterable[Pod]) -> tuple[dict[str, Bound], int]:
        gathered: dict[str, list[_Asked | None]] = {}
        read: dict[str, tuple[Pod, _Asked | None]] = {}
        for pod in pods:
            if not pod.spec.node_name or is_terminal(pod):
                continue
            uid = pod.metadata.uid
            before = self._read.get(uid)
            read[uid] = before if before is not None and before[0] is pod else (pod, _asked(pod, self._names))
            gathered.setdefault(pod.spec.node_name, []).append(read[uid][1])
        self._read = read
        self._writers = frozenset(asked.writer for _, asked in read.values() if asked is not None and asked.writer)
        unreadable = sum(asked is None for _, asked in read.values())
        self._sums = {node: self._sum(node, asked) for node, asked in gathered.items()}
        return {node: bound for node, (_, bound) in self._sums.items()}, unreadable

    def _sum(self, node: str, asked: list[_Asked | None]) -> tuple[list[_Asked | None], Bound]:
        before = self._sums.get(node)
        return before if before is not None and before[0] == asked else (asked, _summed(asked))


@dataclasses.dataclass(frozen=True, slots=True)
class _Asked:
    """What one pod adds: to what is sold, or as an LS pod; a SYSTEM pod adds nothing. `rival` as in Bound;
    `writer` is the system that writes batch resources from this pod."""

    sold: Amount | None = None
    pod: LsPod | None = None
    rival: str = ""
    writer: str = ""


def _asked(pod: Pod, names: ResourceNames) -> _Asked | None:
    """None for a pod that cannot be read."""
    tier = tier_of(pod, frozenset({names.cpu, names.memory}))
    try:
        if tier is Tier.BE:
            return _Asked(sold=batch_request(pod, names))
        return _Asked(pod=_ls_pod(pod) if tier is Tier.LS else None, rival=_rival(pod), writer=writer_in(pod))
    except QuantityError:
        return None


def _rival(pod: Pod) -> str:
    system = agent_in(pod)
    return advice(system, f"pod {pod.metadata.namespace}/{pod.metadata.name}") if system else ""


def _ls_pod(pod: Pod) -> LsPod:
    asked = requests_of(pod)
    return LsPod(
        uid=pod.metadata.uid,
        group=owner_group(pod),
        # Mid pods run on what the others leave and come before BE: what they hold is not for sale.
        requested=Amount(
            cpu_millis=asked.get("cpu", 0) + asked.get(MID_CPU, 0),
            memory_bytes=asked.get("memory", 0) + asked.get(MID_MEMORY, 0),
        ),
        started=epoch_seconds(pod.status.start_time or pod.metadata.creation_timestamp),
        leaving=is_terminating(pod),
        mid=Amount(cpu_millis=asked.get(MID_CPU, 0), memory_bytes=asked.get(MID_MEMORY, 0)),
        zone=_zone(pod.metadata.annotations.get(KOORDINATOR_PLACEMENT_ANNOTATION, "")),
    )


def _summed(asked: list[_Asked | None]) -> Bound:
    known = [one for one in asked if one is not None]
    if len(known) < len(asked):
        return dataclasses.replace(UNKNOWN, rival=_joined(known))
    pods = tuple(one.pod for one in known if one.pod is not None)
    return Bound(
        _sum(one.sold for one in known if one.sold is not None),
        _sum(pod.requested for pod in pods),
        pods,
        _sum(pod.mid for pod in pods),
        _joined(known),
    )


def _joined(asked: Iterable[_Asked]) -> str:
    return "; ".join(sorted({one.rival for one in asked if one.rival}))


def _sum(amounts: Iterable[Amount]) -> Amount:
    """Total of amounts that are all known."""
    cpu = memory = 0
    for amount in amounts:
        cpu += amount.cpu_millis or 0
        memory += amount.memory_bytes or 0
    return Amount(cpu_millis=cpu, memory_bytes=memory)


class _ZonePlace(msgspec.Struct):
    node: int


class _Placement(msgspec.Struct, rename="camel"):
    """The part of Koordinator's annotation that says where a pod's CPUs are."""

    numa_node_resources: list[_ZonePlace] = []


def _zone(annotation: str) -> int | None:
    """The one NUMA zone of a pod whose CPUs are in one."""
    if not annotation:
        return None
    try:
        places = msgspec.json.decode(annotation, type=_Placement).numa_node_resources
    except msgspec.MsgspecError:
        return None
    return places[0].node if len(places) == 1 else None


def pinned(pods: Iterable[LsPod]) -> dict[int, Amount]:
    """What LS pods that are bound to a zone ask for, by zone."""
    by_zone: dict[int, list[Amount]] = {}
    for pod in pods:
        if pod.zone is not None:
            by_zone.setdefault(pod.zone, []).append(pod.requested)
    return {zone: _sum(amounts) for zone, amounts in by_zone.items()}

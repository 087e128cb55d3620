"""Pure: which pods this node takes, as a kubelet decides when a pod is bound to it.

A pod is refused for good (phase Failed) when what it asks for does not fit into what the node can allocate beside
the pods that it has taken already, or cannot be read as an amount at all. A pod that was taken is never judged
again: shrinking batch resources must not fail what runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slacktide.errors import QuantityError
from slacktide.objects import Pod, is_terminal
from slacktide.resources import requests_of
from standalone.runner.attempts import PodUid
from standalone.runner.podstatus import Rejection


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Pods taken and refused, by uid; pods that no longer exist are in neither."""

    admitted: frozenset[PodUid]
    rejected: Mapping[PodUid, Rejection]


def admit(
    pods: Iterable[Pod], before: frozenset[PodUid], rejected: Mapping[PodUid, Rejection], allocatable: Mapping[str, int]
) -> Verdict:
    """Judge the pods that are new, oldest first.

    before: pods taken earlier. rejected: pods refused earlier whose status may not have arrived yet. allocatable: as
    `slacktide.resources.node_allocatable` (cpu in millicores), pods included.
    """
    ordered = sorted(pods, key=lambda pod: (pod.metadata.creation_timestamp or "", pod.metadata.name))
    admitted = {PodUid(pod.metadata.uid) for pod in ordered} & before
    refused = {
        PodUid(pod.metadata.uid): rejected[PodUid(pod.metadata.uid)] for pod in ordered if pod.metadata.uid in rejected
    }
    used: dict[str, int] = {}
    for pod in ordered:
        if pod.metadata.uid in admitted and not is_terminal(pod):
            with contextlib.suppress(QuantityError):
                _add(used, _asks(pod))
    for pod in ordered:
        uid = PodUid(pod.metadata.uid)
        if uid in admitted or uid in refused:
            continue
        try:
            asks = _asks(pod)
        except QuantityError as error:
            refused[uid] = Rejection(reason="UnexpectedAdmissionError", message=str(error))
            continue
        rejection = None if is_terminal(pod) else _refusal(asks, used, allocatable)
        if rejection is not None:
            refused[uid] = rejection
            continue
        admitted.add(uid)
        if not is_terminal(pod):
            _add(used, asks)
    return Verdict(admitted=frozenset(admitted), rejected=refused)


def _asks(pod: Pod) -> dict[str, int]:
    return {**requests_of(pod), "pods": 1}


def _add(used: dict[str, int], asks: Mapping[str, int]) -> None:
    for name, amount in asks.items():
        used[name] = used.get(name, 0) + amount


def _refusal(asks: Mapping[str, int], used: Mapping[str, int], allocatable: Mapping[str, int]) -> Rejection | None:
    for name in sorted(asks):
        asked, taken, capacity = asks[name], used.get(name, 0), allocatable.get(name, 0)
        if asked > 0 and asked + taken > capacity:
            return Rejection(
                reason=f"OutOf{name}",
                message=f"Node didn't have enough resource: {name}, requested: {asked}, used: {taken}, "
                f"capacity: {capacity}",
            )
    return None

"""Tier of a pod: latency-sensitive, best-effort or system. Design, section 2."""

from __future__ import annotations

import enum
from typing import Final

from slacktide.names import BATCH_CPU, BATCH_MEMORY, KOORDINATOR_QOS_LABEL, TIER_LABEL
from slacktide.objects import Pod


class Tier(enum.StrEnum):
    """What Slacktide does with a pod. The cgroup path comes from `status.qosClass`, never from the tier."""

    LS = "LS"
    BE = "BE"
    SYSTEM = "SYSTEM"


BATCH_RESOURCES: Final = frozenset({BATCH_CPU, BATCH_MEMORY})
BATCH_PRIORITIES: Final = range(5000, 6000)

_OWN_LABEL: Final = {"ls": Tier.LS, "be": Tier.BE, "system": Tier.SYSTEM}
_KOORDINATOR: Final = {"LSE": Tier.LS, "LSR": Tier.LS, "LS": Tier.LS, "BE": Tier.BE, "SYSTEM": Tier.SYSTEM}

_BY_RESOURCES: Final = "it asks for batch resources"
_BY_PRIORITY: Final = "priority"
_UNKNOWN: Final = "nothing says otherwise, and the unknown is protected"
_RANGE: Final = f"{BATCH_PRIORITIES.start}-{BATCH_PRIORITIES.stop - 1}"


def tier_of(pod: Pod, batch_resources: frozenset[str] = BATCH_RESOURCES) -> Tier:
    """Tier of `pod`; the first rule that speaks decides, and a pod nobody speaks for is LS.

    Order: label `slacktide.io/tier` (any case); Koordinator's QoS label; a request or limit for one of
    `batch_resources`; priority in 5000-5999; otherwise LS, because the unknown must be protected. A label
    with a value that no rule knows is passed over for the same reason that a missing one is.
    """
    return _judged(pod, batch_resources)[0]


def tier_reason(pod: Pod, batch_resources: frozenset[str] = BATCH_RESOURCES) -> tuple[Tier, str]:
    """Tier of `pod` and the rule that decided, in words."""
    tier, rule = _judged(pod, batch_resources)
    if rule in (TIER_LABEL, KOORDINATOR_QOS_LABEL):
        return tier, f"label {rule} is {pod.metadata.labels[rule]}"
    return tier, f"priority {pod.spec.priority} is within {_RANGE}" if rule == _BY_PRIORITY else rule


def _judged(pod: Pod, batch_resources: frozenset[str]) -> tuple[Tier, str]:
    """The tier, and which rule made it."""
    labels = pod.metadata.labels
    own = _OWN_LABEL.get(labels.get(TIER_LABEL, "").lower())
    if own is not None:
        return own, TIER_LABEL
    koordinator = _KOORDINATOR.get(labels.get(KOORDINATOR_QOS_LABEL, ""))
    if koordinator is not None:
        return koordinator, KOORDINATOR_QOS_LABEL
    for container in (*pod.spec.containers, *pod.spec.init_containers):
        if batch_resources & (container.resources.requests.keys() | container.resources.limits.keys()):
            return Tier.BE, _BY_RESOURCES
    if pod.spec.priority is not None and pod.spec.priority in BATCH_PRIORITIES:
        return Tier.BE, _BY_PRIORITY
    return Tier.LS, _UNKNOWN

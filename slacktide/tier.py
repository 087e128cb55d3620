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


def tier_of(pod: Pod, batch_resources: frozenset[str] = BATCH_RESOURCES) -> Tier:
    """Tier of `pod`; the first rule that speaks decides, and a pod nobody speaks for is LS.

    Order: label `slacktide.io/tier` (any case); Koordinator's QoS label; a request or limit for one of
    `batch_resources`; priority in 5000-5999; otherwise LS, because the unknown must be protected. A label
    with a value that no rule knows is passed over for the same reason that a missing one is.
    """
    labels = pod.metadata.labels
    own = _OWN_LABEL.get(labels.get(TIER_LABEL, "").lower())
    if own is not None:
        return own
    koordinator = _KOORDINATOR.get(labels.get(KOORDINATOR_QOS_LABEL, ""))
    if koordinator is not None:
        return koordinator
    for container in (*pod.spec.containers, *pod.spec.init_containers):
        if batch_resources & (container.resources.requests.keys() | container.resources.limits.keys()):
            return Tier.BE
    if pod.spec.priority is not None and pod.spec.priority in BATCH_PRIORITIES:
        return Tier.BE
    return Tier.LS

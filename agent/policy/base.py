"""What a policy is and what it returns: plain values, no I/O, no clock.

A policy is a class with `name`, `urgent` (whether a beat may ask it) and `decide(snapshot, state, settings)`. It
returns the state it wants next time and Desired: requests on knobs of cgroups, each with its reason in words. What
is not requested is not limited: the executor gives such a knob its original value back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from agent.capabilities import Capabilities, Knob
from agent.snapshot import NodeSnapshot
from agent.threads import GroupMasks, MaskPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One policy's wish for one knob of one cgroup. `group` is relative to the cpu controller's mount."""

    policy: str
    group: str
    knob: Knob
    value: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Desired:
    """All wishes of one policy, and its reason for the node as a whole.

    `masks` are for threads, and None where there is nothing new to do about any. `counted` is what happened in this
    decision, to be added to the loop's counters.
    """

    requests: tuple[Request, ...] = ()
    reason: str = ""
    be_limit_millis: int | None = None
    masks: MaskPlan | None = None
    counted: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a policy may know beside the snapshot: what the node can do, and what is adopted from before."""

    capabilities: Capabilities
    adopted_be_limit_millis: int | None = None
    adopted_masks: tuple[GroupMasks, ...] = ()
    journal_lost: bool = False


class Policy(Protocol):
    """One strategy. `State` and `Settings` are its own types; the loop only hands them on."""

    name: str
    urgent: bool

    def start(self, context: Context) -> Any:
        """The state before the first decision."""

    def decide(self, snapshot: NodeSnapshot, state: Any, settings: Any, context: Context) -> tuple[Desired, Any]:
        """Judge one snapshot. Pure."""


STRICTER = {Knob.IDLE: max, Knob.WEIGHT: min, Knob.QUOTA: min}
"""Which of two values of a knob limits more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What all policies together want: one value a knob, the reasons by policy, the total limit on BE, thread masks."""

    settings: Mapping[tuple[str, Knob], Request] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    be_limit_millis: int | None = None
    be_limit_reason: str = ""
    """Reason of the policy whose limit is the strictest; empty without a limit."""
    masks: MaskPlan | None = None


def arbitrate(wishes: Iterable[tuple[str, Desired]]) -> Plan:
    """One plan from all wishes: on each knob of each cgroup the strictest request wins, and so does the lowest limit.

    Among equals the first does, so that the mildest policy that asks for it gives the reason. Masks come from one
    policy.
    """
    chosen: dict[tuple[str, Knob], Request] = {}
    reasons: dict[str, str] = {}
    limit: tuple[int | None, str] = (None, "")
    masks: MaskPlan | None = None
    for name, desired in wishes:
        reasons[name] = desired.reason
        masks = desired.masks or masks
        asked = desired.be_limit_millis
        if asked is not None and (limit[0] is None or asked < limit[0]):
            limit = (asked, desired.reason)
        for request in desired.requests:
            key = (request.group, request.knob)
            other = chosen.get(key)
            if other is None or STRICTER[request.knob](other.value, request.value) != other.value:
                chosen[key] = request
    return Plan(settings=chosen, reasons=reasons, be_limit_millis=limit[0], be_limit_reason=limit[1], masks=masks)

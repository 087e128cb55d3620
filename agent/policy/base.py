"""What a policy is and what it returns: plain values, no I/O, no clock.

A policy is a class with `name`, `urgent` (whether a beat may ask it) and `decide(snapshot, state, settings)`. It
returns the state it wants next time and Desired: requests on knobs of cgroups, each with its reason in words. What
is not requested is not limited: the executor gives such a knob its original value back. An urgent policy also says
when a beat gives it a reason to be asked (`alarmed`): nearly all beats are calm, and are to cost next to nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, TypeVar

from agent.capabilities import Capabilities, Knob, Value
from agent.eviction import Victim
from agent.policy.rung import RungStatus
from agent.pressure import Shortage
from agent.resctrl import Schemata
from agent.snapshot import NodeSnapshot
from agent.threads import GroupMasks, Mask, MaskPlan, format_cpus, parse_cpus


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One policy's wish for one knob of one cgroup of a pod or container.

    `group` is relative to the cpu controller's mount; with both drivers it is the same under every controller.
    """

    policy: str
    group: str
    knob: Knob
    value: Value
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaim:
    """Ask the kernel to take `bytes` back from a BE pod (memory.reclaim): an act, not a state.

    `at` is when it was decided, monotonic seconds: the same ask in later plans is the same act.
    """

    group: str
    bytes: int
    reason: str
    at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Desired:
    """All wishes of one policy, and its reason for the node as a whole.

    `masks` are for threads, and None where there is nothing new to do about any. `counted` is what happened in this
    decision, to be added to the loop's counters. `rung` is where the policy stands on the ladder. `closed` is why
    nothing more may be sold on this node, empty when it may. `schemata` is for the class of BE in resctrl, None
    where it is to be left wide open. `victims` are pods that shall go, in this order. `ballast` are CPUs that shall
    carry a ballast thread, None where the policy has no say. `cookies`: one core scheduling cookie a tier.
    """

    requests: tuple[Request, ...] = ()
    reason: str = ""
    be_limit_millis: int | None = None
    masks: MaskPlan | None = None
    counted: Mapping[str, int] = field(default_factory=dict)
    rung: RungStatus | None = None
    closed: str = ""
    schemata: Schemata | None = None
    reclaims: tuple[Reclaim, ...] = ()
    victims: tuple[Victim, ...] = ()
    ballast: Mask | None = None
    cookies: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a policy may know beside the snapshot: what the node can do, and what is adopted from before."""

    capabilities: Capabilities
    adopted_be_limit_millis: int | None = None
    adopted_masks: tuple[GroupMasks, ...] = ()
    journal_lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Glimpse:
    """What a beat shows that the last turn did not; None is not known, as in NodeSnapshot."""

    shortage: Shortage
    memory_available_bytes: int | None
    memory_capacity_bytes: int | None
    new_threads: bool


class Policy(Protocol):
    """One strategy. `State` and `Settings` are its own types; the loop only hands them on.

    An urgent one is an UrgentPolicy, too.
    """

    name: str
    urgent: bool

    def start(self, context: Context) -> Any:
        """The state before the first decision."""

    def decide(self, snapshot: NodeSnapshot, state: Any, settings: Any, context: Context) -> tuple[Desired, Any]:
        """Judge one snapshot. Pure."""


class UrgentPolicy(Policy, Protocol):
    """A policy that beats may ask."""

    def alarmed(self, glimpse: Glimpse, state: Any, settings: Any) -> bool:
        """Whether this beat may make it want something else than the last turn did. Pure, and cheap."""


def strictest(knob: Knob, one: Value, other: Value) -> Value:
    """Of two wishes for a knob the one that limits more; for CPU lists what both allow.

    CPU lists without a common CPU give the smaller one: an empty cpuset cannot be set (ENOSPC).
    """
    if knob is Knob.CPUSET:
        both = parse_cpus(str(one)) & parse_cpus(str(other))
        return format_cpus(both) if both else min(str(one), str(other), key=lambda text: len(parse_cpus(text)))
    if knob is Knob.IO_MAX:
        return _strictest_io(str(one), str(other))
    highest_wins = knob in {Knob.IDLE, Knob.FREEZE}
    return max(int(one), int(other)) if highest_wins else min(int(one), int(other))


def _strictest_io(one: str, other: str) -> str:
    """Per device and direction the lower of two rates."""
    devices: dict[str, dict[str, int]] = {}
    for line in f"{one}\n{other}".splitlines():
        device, *pairs = line.split()
        limits = devices.setdefault(device, {})
        for name, _, rate in (pair.partition("=") for pair in pairs):
            limits[name] = min(int(rate), limits.get(name, int(rate)))
    return "\n".join(
        " ".join([device, *(f"{name}={limits[name]}" for name in sorted(limits))])
        for device, limits in sorted(devices.items())
    )


LASTING: Final = frozenset({"batch_limits"})
"""Policies whose limits are the pods' own: they stay in force when nobody watches LS any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What all policies together want: one value a knob, the reasons by policy, the total limit on BE, thread masks.

    `lasting` are the requests of policies in LASTING, also where a stricter one won.
    """

    settings: Mapping[tuple[str, Knob], Request] = field(default_factory=dict)
    lasting: Mapping[tuple[str, Knob], Request] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    be_limit_millis: int | None = None
    be_limit_reason: str = ""
    """Reason of the policy whose limit is the strictest; empty without a limit."""
    masks: MaskPlan | None = None
    rungs: Mapping[str, RungStatus] = field(default_factory=dict)
    closed: str = ""
    """Why nothing more may be sold here; the reasons of all policies that say so, joined by "; "."""
    schemata: Schemata | None = None
    reclaims: tuple[Reclaim, ...] = ()
    victims: tuple[Victim, ...] = ()
    ballast: Mask | None = None
    cookies: bool = False


def arbitrate(wishes: Iterable[tuple[str, Desired]]) -> Plan:
    """One plan from all wishes: on each knob of each cgroup the strictest request wins, and so does the lowest limit.

    Among equals the first does, so that the mildest policy that asks for it gives the reason. Masks and schemata come
    from one policy each.
    """
    wishes = list(wishes)
    desired = [one for _, one in wishes]
    limit, limit_reason = _lowest_limit(desired)
    return Plan(
        settings=_chosen(request for one in desired for request in one.requests),
        lasting=_chosen(request for name, one in wishes if name in LASTING for request in one.requests),
        reasons={name: one.reason for name, one in wishes},
        be_limit_millis=limit,
        be_limit_reason=limit_reason,
        masks=_last(one.masks for one in desired),
        rungs={one.rung.name: one.rung for one in desired if one.rung is not None},
        closed="; ".join(one.closed for one in desired if one.closed),
        schemata=_last(one.schemata for one in desired),
        reclaims=tuple(reclaim for one in desired for reclaim in one.reclaims),
        victims=tuple(victim for one in desired for victim in one.victims),
        ballast=_last(one.ballast for one in desired),
        cookies=any(one.cookies for one in desired),
    )


def _chosen(requests: Iterable[Request]) -> dict[tuple[str, Knob], Request]:
    chosen: dict[tuple[str, Knob], Request] = {}
    for request in requests:
        key = (request.group, request.knob)
        other = chosen.get(key)
        if other is None:
            chosen[key] = request
            continue
        value = strictest(request.knob, other.value, request.value)
        if value != other.value:
            chosen[key] = request if value == request.value else replace(request, value=value)
    return chosen


def _lowest_limit(desired: Sequence[Desired]) -> tuple[int | None, str]:
    limits = [(one.be_limit_millis, one.reason) for one in desired if one.be_limit_millis is not None]
    return min(limits, key=lambda pair: pair[0], default=(None, ""))


T = TypeVar("T")


def _last(values: Iterable[T | None]) -> T | None:
    found = [value for value in values if value is not None]
    return found[-1] if found else None

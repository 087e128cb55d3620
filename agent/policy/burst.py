"""Policy *burst*: an LS pod that is throttled by its own quota may save unused quota up for a burst.

cpu.cfs_burst_us (v1), cpu.max.burst (v2) lets a group exceed its quota for a moment by what it did not use before; its
mean stays within the quota. It is the one knob that gives instead of takes, and for LS alone. The rules:

- Only a pod or container with a quota gets one, `percent` of that quota and never more: a mainline kernel refuses a
  burst beyond the quota (koordinator 2326 wrote ten times the limit and had none).
- Once a pod was throttled in more than `throttled_percent` of its periods, it and all its containers keep their burst,
  also new ones (rubik cf19376): taking it away because it helps would only throttle them again.
- The quota itself is never touched. A pod whose limit in the API is below its quota in the kernel is about to be
  resized and has no burst until it is: the kubelet's write would fail, since a quota below the burst is EINVAL
  (koordinator 2778).
- While LS and SYSTEM use `overload_percent` of the node, or LS is short of CPU, nobody gets any: one pod's burst would
  be another's wait. Below that by `hold_percent`, for `quiet_seconds`, it is given again. What is not known changes
  nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Final

from msgspec import Meta

from agent.capabilities import Knob
from agent.counters import CpuKnobs
from agent.policy.base import Context, Desired, Request
from agent.policy.limit import protected_use
from agent.policy.rung import RungRules, RungState, Verdict, advance, status_of
from agent.snapshot import NodeSnapshot, PodSnapshot
from slacktide.settings import Settings
from slacktide.tier import Tier

ROUND_US: Final = 1000
"""Bursts are multiples of a millisecond."""

_ROUNDED_MILLIS: Final = 10
"""The kubelet gives no container less than this."""


class BurstSettings(Settings, frozen=True, kw_only=True):
    """Settings of the burst policy."""

    percent: Annotated[
        float, Meta(ge=1, le=100, description="burst, of the quota of a period", extra={"reloadable": True})
    ] = 100.0
    throttled_percent: Annotated[
        float, Meta(ge=0, le=100, description="throttled in more periods than this", extra={"reloadable": True})
    ] = 1.0
    overload_percent: Annotated[
        float, Meta(ge=1, le=100, description="LS + SYSTEM use from which nobody bursts", extra={"reloadable": True})
    ] = 80.0
    hold_percent: Annotated[
        float, Meta(ge=0, le=50, description="given again below that by this much", extra={"reloadable": True})
    ] = 10.0
    quiet_seconds: Annotated[
        float, Meta(ge=0, le=3600, description="and for this long", extra={"reloadable": True})
    ] = 10.0
    min_dwell_seconds: Annotated[
        float, Meta(ge=0, le=3600, description="Withheld for at least this long", extra={"reloadable": True})
    ] = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstState:
    """`rung` level 1: nobody gets any. `given` are UIDs of pods that were throttled."""

    rung: RungState = field(default_factory=RungState)
    given: frozenset[str] = frozenset()


class Burst:
    """See the module."""

    name = "burst"
    urgent = False
    prompt = True

    def start(self, context: Context) -> BurstState:  # noqa: ARG002 - the same on every node
        """Nobody was seen throttled yet."""
        return BurstState()

    def decide(
        self, snapshot: NodeSnapshot, state: BurstState, settings: BurstSettings, context: Context
    ) -> tuple[Desired, BurstState]:
        """Bursts of LS pods and containers."""
        if Knob.BURST not in context.capabilities.writable:
            return Desired(reason="a burst cannot be set on this node"), state
        pods = snapshot.pods_of(Tier.LS)
        if not snapshot.urgent:
            state = _looked(snapshot, pods, state, settings)
        rung = state.rung
        status = status_of(
            self.name,
            rung,
            1,
            f"LS and SYSTEM use below {settings.overload_percent - settings.hold_percent:g} % of the node",
        )
        if rung.level:
            return Desired(reason=f"no burst: {rung.reason}", rung=status), state
        given = [pod for pod in pods if pod.identity.uid in state.given and not _resizing(pod)]
        requests = tuple(request for pod in given for request in _requests(pod, settings))
        reason = f"{len(given)} throttled LS pods may burst" if given else "no LS pod is throttled by its own quota"
        return Desired(requests=requests, reason=reason, rung=status), state


def _looked(
    snapshot: NodeSnapshot, pods: tuple[PodSnapshot, ...], state: BurstState, settings: BurstSettings
) -> BurstState:
    rules = RungRules(top=1, quiet_seconds=settings.quiet_seconds, min_dwell_seconds=settings.min_dwell_seconds)
    rung = advance(state.rung, _judge(snapshot, state.rung.level, settings), snapshot.at, rules)
    here = {pod.identity.uid for pod in pods}
    throttled = {pod.identity.uid for pod in pods if _throttled(pod, settings)}
    return BurstState(rung=rung, given=frozenset((state.given & here) | throttled))


def _judge(snapshot: NodeSnapshot, level: int, settings: BurstSettings) -> Verdict:
    protected, capacity, shortage = protected_use(snapshot), snapshot.capacity.cpu_millis, snapshot.shortage
    if shortage is not None and shortage.short:
        return Verdict(needed=1, calm=False, reason=shortage.reason)
    if protected is None or not capacity:
        return Verdict(needed=None, calm=False, reason="held: LS use is not known")
    used = 100 * protected / capacity
    said = f"LS and SYSTEM use {used:.0f} % of the node"
    if used >= settings.overload_percent:
        return Verdict(needed=1, calm=False, reason=said)
    calm = used < settings.overload_percent - settings.hold_percent
    return Verdict(needed=0, calm=calm, reason=said if calm or not level else f"held: {said}")


def _throttled(pod: PodSnapshot, settings: BurstSettings) -> bool:
    ratios = [pod.throttled_ratio, *(container.throttled_ratio for container in pod.containers)]
    return any(ratio is not None and 100 * ratio > settings.throttled_percent for ratio in ratios)


def _resizing(pod: PodSnapshot) -> bool:
    """Whether the kernel allows the pod, or its containers together, more than the API does."""
    limit = pod.identity.cpu_limit_millis
    if limit is None:
        return False
    inner = [container.knobs.quota_millis or 0 for container in pod.containers if container.knobs]
    own = pod.knobs.quota_millis if pod.knobs else None
    return sum(inner) > limit + _ROUNDED_MILLIS or (own is not None and own > limit + _ROUNDED_MILLIS)


def _requests(pod: PodSnapshot, settings: BurstSettings) -> Iterator[Request]:
    places = [(pod.group, pod.knobs), *((container.group, container.knobs) for container in pod.containers)]
    for group, knobs in places:
        burst = _burst_us(knobs, settings)
        if burst is not None:
            reason = f"{pod.label} is throttled by its own quota"
            yield Request(policy=Burst.name, group=group, knob=Knob.BURST, value=burst, reason=reason)


def _burst_us(knobs: CpuKnobs | None, settings: BurstSettings) -> int | None:
    """Microseconds a period; None without a quota, or where the group has more of its own already."""
    if knobs is None or knobs.quota_us is None or knobs.burst_us is None:
        return None
    burst = int(knobs.quota_us * min(settings.percent, 100.0) / 100) // ROUND_US * ROUND_US
    return burst if burst > 0 and burst >= knobs.burst_us else None

"""What is missing on a node so that BE pods have to go: the three gaps of policy *evict*, each from one snapshot. Pure.

See `agent.policy.evict` for the rules. A figure that is not known makes no gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from msgspec import Meta

from agent.policy.victims import cpu_request, cpu_use, memory_use
from agent.snapshot import NodeSnapshot, PodSnapshot
from agent.threads import parse_cpus
from slacktide.settings import Settings
from slacktide.tier import Tier

MEMORY: Final = "memory"
SATISFACTION: Final = "satisfaction"
PRESSURE: Final = "pressure"


def seconds(low: float, high: float, text: str) -> Meta:
    """A duration in seconds that may change while the agent runs."""
    return Meta(ge=low, le=high, description=text, extra={"reloadable": True})


def percent(text: str) -> Meta:
    """A share of 0 to 100 that may change while the agent runs."""
    return Meta(ge=0, le=100, description=text, extra={"reloadable": True})


class GapSettings(Settings, frozen=True, kw_only=True):
    """When something is missing. Percents of memory are of the node's, of satisfaction of what BE asked for."""

    memory_percent: Annotated[float, percent("Evict with less memory available")] = 5.0
    memory_target_percent: Annotated[float, percent("Evict until so much memory is available")] = 8.0
    memory_settle_seconds: Annotated[
        float, seconds(0, 3600, "Memory may be short this long when the memory rung can do no more")
    ] = 5.0
    memory_patience_seconds: Annotated[
        float, seconds(0, 3600, "Memory may be short this long while the memory rung still can")
    ] = 20.0
    satisfaction_lower_percent: Annotated[float, percent("BE that gets so little of its requests is starved")] = 60.0
    satisfaction_upper_percent: Annotated[float, percent("Evict until the rest gets so much")] = 80.0
    satisfaction_seconds: Annotated[float, seconds(0, 86_400, "BE may be starved this long")] = 120.0
    starved_use_percent: Annotated[float, percent("BE that uses less of what it gets does not miss more")] = 90.0
    pressure_settle_seconds: Annotated[
        float, seconds(0, 3600, "LS may be short this long with the contention rung at its end")
    ] = 30.0
    large_percent: Annotated[float, percent("A gap beyond this share of the node takes several victims at once")] = 10.0

    def __post_init__(self) -> None:
        """Rules that span fields. Raises ValueError."""
        if self.memory_target_percent < self.memory_percent:
            raise ValueError(
                f"memory_target_percent {self.memory_target_percent} is below memory_percent {self.memory_percent}"
            )
        if self.satisfaction_upper_percent < self.satisfaction_lower_percent:
            raise ValueError(
                f"satisfaction_upper_percent {self.satisfaction_upper_percent} is below "
                f"satisfaction_lower_percent {self.satisfaction_lower_percent}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Something that is missing: `amount` in bytes (memory) or millicores, `large` beyond the share of the node.

    `amount` None is not known, as while a pod of unknown size is going.
    """

    cause: str
    amount: int | None
    reason: str
    large: bool = False
    numbers: tuple[tuple[str, str], ...] = ()


def measured_whole(snapshot: NodeSnapshot) -> bool:
    """Whether this turn measured what a decision needs."""
    return (
        be_room(snapshot) is not None
        and snapshot.of(Tier.BE).cpu_millis is not None
        and available_bytes(snapshot) is not None
        and bool(snapshot.capacity.memory_bytes)
    )


def measured_bytes(snapshot: NodeSnapshot) -> int | None:
    """Memory that is available; 0 on a machine that still runs us is a kernel that cannot say (psutil#1915)."""
    return snapshot.memory_available_bytes or None


def available_bytes(snapshot: NodeSnapshot) -> int | None:
    """Memory that is to count as available: what is measured, or less while a drill says so."""
    available, total = measured_bytes(snapshot), snapshot.capacity.memory_bytes
    percent = snapshot.drill.memory_percent if snapshot.drill else None
    if available is None or percent is None or not total:
        return available
    return min(available, int(total * percent / 100))


def be_room(snapshot: NodeSnapshot) -> int | None:
    """CPU that LS and SYSTEM leave, in millicores."""
    capacity, ls, system = snapshot.capacity.cpu_millis, snapshot.of(Tier.LS).cpu_millis, snapshot.of(Tier.SYSTEM)
    if capacity is None or ls is None or system.cpu_millis is None:
        return None
    return max(0, capacity - ls - system.cpu_millis)


def memory_gap(
    snapshot: NodeSnapshot, settings: GapSettings, gone: Sequence[PodSnapshot], *, acting: bool
) -> Gap | None:
    """Memory that must come back; `gone` are pods that count as released, `acting` holds it until the target."""
    available, total = available_bytes(snapshot), snapshot.capacity.memory_bytes
    if available is None or not total:
        return None
    mark = settings.memory_target_percent if acting else settings.memory_percent
    if 100 * available >= mark * total:
        return None
    short = int(total * settings.memory_target_percent / 100) - available
    released = total_of(memory_use(pod) for pod in gone)
    amount = None if released is None else max(0, short - released)
    reason = (
        f"{100 * available / total:.1f} % of memory is available, evicted below {settings.memory_percent:g} %: "
        f"{short} bytes to free"
    )
    return Gap(
        cause=MEMORY,
        amount=amount,
        reason=reason,
        large=100 * (amount or 0) > settings.large_percent * total,
        numbers=(
            ("available_bytes", str(available)),
            ("memory_percent", f"{settings.memory_percent:g}"),
            ("memory_target_percent", f"{settings.memory_target_percent:g}"),
            ("leaving_bytes", "unknown" if released is None else str(released)),
        ),
    )


def satisfaction_gap(
    snapshot: NodeSnapshot, settings: GapSettings, gone: Sequence[PodSnapshot], *, acting: bool
) -> Gap | None:
    """Requests that must go, so that the rest gets enough.

    Quotas and cpusets are summed over all BE pods that are here: those of the gone ones are given to the rest.
    """
    gone_uids = {pod.identity.uid for pod in gone}
    living = [
        pod for pod in snapshot.pods_of(Tier.BE) if not pod.identity.terminating and pod.identity.uid not in gone_uids
    ]
    asked, limit = total_of(cpu_request(pod) for pod in living), be_limit(snapshot)
    used, capacity = snapshot.of(Tier.BE).cpu_millis, snapshot.capacity.cpu_millis
    if not asked or limit is None or used is None or not capacity:
        return None
    rate = 100 * limit / asked
    mark = settings.satisfaction_upper_percent if acting else settings.satisfaction_lower_percent
    if rate > mark or 100 * used < settings.starved_use_percent * limit:
        return None
    amount = max(0, int(asked * settings.satisfaction_upper_percent / 100) - limit)
    reason = (
        f"BE may use {limit}m of the {asked}m that it asked for ({rate:.0f} %, starved from "
        f"{settings.satisfaction_lower_percent:g} %) and uses {used}m"
    )
    return Gap(
        cause=SATISFACTION,
        amount=amount,
        reason=reason,
        large=100 * amount > settings.large_percent * capacity,
        numbers=(
            ("be_limit_millis", str(limit)),
            ("be_requested_millis", str(asked)),
            ("be_used_millis", str(used)),
            ("satisfaction_percent", f"{rate:.1f}"),
            ("satisfaction_upper_percent", f"{settings.satisfaction_upper_percent:g}"),
        ),
    )


def be_limit(snapshot: NodeSnapshot) -> int | None:
    """Millicores that BE can get in all; None when LS or SYSTEM is not measured.

    That is the room that LS and SYSTEM leave, no more than the quotas in force where every pod has one, no more than
    the CPUs of its cpusets (koordinator 871, 914, 1932).
    """
    room, pods = be_room(snapshot), snapshot.pods_of(Tier.BE)
    if room is None:
        return None
    quotas = total_of(pod.knobs.quota_millis if pod.knobs else None for pod in pods) if pods else None
    cpus = [_cpus(pod.cpuset) for pod in pods]
    together = [mask for mask in cpus if mask is not None]
    width = 1000 * len(frozenset[int]().union(*together)) if pods and len(together) == len(cpus) else None
    return min(bound for bound in (room, quotas, width) if bound is not None)


def _cpus(text: str | None) -> frozenset[int] | None:
    """CPUs of a cpuset; None for one that is not known or makes no sense."""
    try:
        return (parse_cpus(text) or None) if text else None
    except ValueError:
        return None


def pressure_gap(snapshot: NodeSnapshot, gone: Sequence[PodSnapshot]) -> Gap | None:
    """LS is short although the rung against it does all it can; one pod that runs is worth a try."""
    shortage, rung = snapshot.shortage, snapshot.ladder.get("contention") or snapshot.ladder.get("suppress")
    if shortage is None or not shortage.short or (rung is not None and not rung.exhausted):
        return None
    waits = any(pod.tier is Tier.BE and cpu_use(pod) != 0 for pod in gone)
    held = "" if rung is None or rung.since is None else f" for {snapshot.at - rung.since:.0f} s"
    cut = "BE" if rung is None else rung.name
    return Gap(
        cause=PRESSURE,
        amount=0 if waits else 1,
        reason=f"LS is short although {cut} was cut to the end{held}: {shortage.reason}",
        numbers=(("shortage", shortage.reason), ("rung", "none" if rung is None else f"{rung.level} of {rung.top}")),
    )


def total_of(values: Iterable[int | None]) -> int | None:
    """Sum; None when a part is not known."""
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total

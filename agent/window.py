"""Folds the turns of one report window into a sample: mean and maximum per tier and per pod. Pure.

A mean is over the turns that had a value; a turn without one (first sight, a reset counter) adds nothing, and a
window in which nothing was measured gives None.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from agent.pods import requested_of
from agent.snapshot import NodeSnapshot, PodIdentity
from slacktide.forecast import Amount
from slacktide.status import Usage
from slacktide.tier import Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowUsage:
    """Mean and maximum over a window; the maximum is the highest mean of one turn. None is not measured."""

    cpu_millis_mean: int | None = None
    cpu_millis_max: int | None = None
    memory_bytes_mean: int | None = None
    memory_bytes_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodWindow:
    """One pod over a window."""

    identity: PodIdentity
    usage: WindowUsage
    throttled_ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One node over one window. `end` is seconds since the epoch, `window_seconds` by the monotonic clock."""

    end: float
    window_seconds: float
    capacity: Usage
    tiers: Mapping[Tier, WindowUsage]
    requested: Mapping[Tier, Amount]
    pods: tuple[PodWindow, ...]
    ls_pressure: float | None
    be_limit_millis: int | None
    closed: str = ""
    """Why nothing more may be sold on the node; empty when it may."""
    zones: Mapping[int, int] = field(default_factory=dict)
    """CPUs of each NUMA node of the machine, by its id; empty when that is not known."""


@dataclass(slots=True)
class _Series:
    cpu: list[int] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)

    def add(self, usage: Usage) -> None:
        if usage.cpu_millis is not None:
            self.cpu.append(usage.cpu_millis)
        if usage.memory_bytes is not None:
            self.memory.append(usage.memory_bytes)

    def usage(self) -> WindowUsage:
        return WindowUsage(
            cpu_millis_mean=_mean(self.cpu),
            cpu_millis_max=max(self.cpu, default=None),
            memory_bytes_mean=_mean(self.memory),
            memory_bytes_max=max(self.memory, default=None),
        )


@dataclass(slots=True)
class _PodSeries:
    identity: PodIdentity
    series: _Series = field(default_factory=_Series)
    throttled: list[float] = field(default_factory=list)


class Window:
    """Collects snapshots until `window_seconds` have passed, then gives one sample and begins anew.

    When the node closes the sample comes at once, with the window cut short: nothing more must be sold meanwhile.
    """

    def __init__(self, window_seconds: float) -> None:
        self._length = window_seconds
        self._begin: float | None = None
        self._closed = ""
        self._clear()

    def _clear(self) -> None:
        self._tiers = {tier: _Series() for tier in Tier}
        self._pods: dict[str, _PodSeries] = {}
        self._pressure: list[float] = []

    def add(
        self,
        snapshot: NodeSnapshot,
        identities: Iterable[PodIdentity],
        wall: float,
        be_limit_millis: int | None,
        closed: str = "",
    ) -> Sample | None:
        """Add one turn; the sample when the window is full. `wall` is seconds since the epoch."""
        if self._begin is None:
            self._begin = snapshot.at
            return None
        for tier, series in self._tiers.items():
            series.add(snapshot.of(tier))
        for pod in snapshot.pods:
            entry = self._pods.setdefault(pod.identity.uid, _PodSeries(pod.identity))
            entry.series.add(pod.usage)
            if pod.throttled_ratio is not None:
                entry.throttled.append(pod.throttled_ratio)
        if snapshot.pressure is not None:
            self._pressure.append(snapshot.pressure.value)
        length = snapshot.at - self._begin
        closing = bool(closed) and not self._closed and length > 0
        if length < self._length - snapshot_slack(snapshot) and not closing:
            return None
        sample = self._sample(snapshot, list(identities), wall, length, be_limit_millis, closed)
        self._begin, self._closed = snapshot.at, closed
        self._clear()
        return sample

    def _sample(
        self,
        snapshot: NodeSnapshot,
        identities: list[PodIdentity],
        wall: float,
        length: float,
        be_limit_millis: int | None,
        closed: str,
    ) -> Sample:
        pods = tuple(
            PodWindow(identity=entry.identity, usage=entry.series.usage(), throttled_ratio=_ratio(entry.throttled))
            for entry in self._pods.values()
        )
        return Sample(
            end=wall,
            window_seconds=length,
            capacity=snapshot.capacity,
            tiers={tier: series.usage() for tier, series in self._tiers.items()},
            requested={tier: requested_of(identities, tier) for tier in (Tier.LS, Tier.BE)},
            pods=pods,
            ls_pressure=_ratio(self._pressure),
            be_limit_millis=be_limit_millis,
            closed=closed,
            zones=snapshot.topology.zones() if snapshot.topology is not None else {},
        )


def snapshot_slack(snapshot: NodeSnapshot) -> float:
    """Half a turn: a window ends with the turn that is nearest to its length."""
    return (snapshot.window_seconds or 0.0) / 2


def _mean(values: list[int]) -> int | None:
    return round(sum(values) / len(values)) if values else None


def _ratio(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None

"""Cache and memory bandwidth control (RDT, resctrl) as plain values; read and written by `agent.host.resctrl`.

Domain ids have holes (AMD: 0-7 and 16-23) and are keys, never positions. A cache mask is an int of `cbm_mask`'s
width. Bandwidth is in the unit of the mount: percent (Intel), MiB/s (mba_MBps) or 1/8 GB/s (AMD).
Source: Linux Documentation/filesystems/resctrl.rst; reference/kernel.md section 1.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class BandwidthUnit(enum.StrEnum):
    """What the numbers of an MB line mean."""

    PERCENT = "percent"
    MEBIBYTES = "MiB/s"
    EIGHTH_GIGABYTES = "GB/s / 8"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheControl:
    """One cache resource (L3, L3CODE, L3DATA, L2...) as info/ describes it; `domains` are its cache ids.

    `exclusive` has, by domain, the bits of exclusive or pseudo-locked groups: a mask must not hit them.
    """

    name: str
    full_mask: int
    min_bits: int
    sparse: bool
    shareable: int
    closids: int
    domains: frozenset[int]
    exclusive: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BandwidthControl:
    """The MB resource. `maximum` is what an unlimited domain holds, `granularity` the step it rounds up to.

    `per_thread` false: hyperthreads of one core share the strictest limit of both ("max" throttle mode).
    """

    unit: BandwidthUnit
    minimum: int
    maximum: int
    granularity: int
    closids: int
    per_thread: bool
    domains: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RdtInfo:
    """What the mount offers. Empty `caches` and no `bandwidth`: monitoring only."""

    caches: tuple[CacheControl, ...] = ()
    bandwidth: BandwidthControl | None = None
    monitors: frozenset[str] = frozenset()
    rmids: int | None = None

    @property
    def closids(self) -> int | None:
        """Classes that can be made beside the default one; None where nothing can be controlled."""
        counts = [cache.closids for cache in self.caches]
        counts += [self.bandwidth.closids] if self.bandwidth else []
        return min(counts) - 1 if counts else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Schemata:
    """Values of one class: resource name -> domain id -> value. A domain that is not named keeps what it has."""

    values: Mapping[str, Mapping[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RdtGroupReading:
    """Monitoring of one class: per domain None where the hardware gave no number, with the reason in `missing`.

    `at` is monotonic. `total_bytes` and `local_bytes` are cumulative counters summed over leaf groups. `rates` are
    bytes per second since the look before, by domain, None when unknown.
    """

    at: float
    occupancy_bytes: Mapping[int, int | None] = field(default_factory=dict)
    total_bytes: Mapping[int, int | None] = field(default_factory=dict)
    local_bytes: Mapping[int, int | None] = field(default_factory=dict)
    rates: Mapping[int, float | None] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RdtReading:
    """One look at resctrl. `held` is what the BE class holds now (None: there is none).

    `at` is monotonic, when the look ended: a reader that hangs leaves an old one. `ls` is the default class, which
    holds all that is neither BE nor in a class of others. `*_rate` are bytes per second between the last two looks,
    None when unknown. `foreign` counts groups of others.
    """

    info: RdtInfo
    be: RdtGroupReading | None = None
    ls: RdtGroupReading | None = None
    be_bandwidth_rate: float | None = None
    ls_bandwidth_rate: float | None = None
    ls_occupancy_bytes: int | None = None
    be_occupancy_bytes: int | None = None
    held: Schemata | None = None
    foreign: int = 0
    problem: str = ""
    at: float | None = None

"""What BE may have of caches and memory bandwidth at a share of all, as values of resctrl. Pure.

Cache: the lowest bits, away from those that devices share, so many as the share gives, never fewer than the hardware
takes; with CDP code and data alike. An L2 is cut only where there is no L3: it belongs to one core. Bandwidth: percent
as such; in MiB/s and in AMD's absolute units the share is of what this domain's memory was measured to give at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from agent.resctrl import BandwidthControl, BandwidthUnit, CacheControl, RdtInfo, Schemata
from agent.schemata import BANDWIDTH, low_ways
from agent.topology import Topology

UNIT_BYTES: Final = {BandwidthUnit.MEBIBYTES: 1 << 20, BandwidthUnit.EIGHTH_GIGABYTES: 1 << 27}

Highest = Mapping[int, float]
"""By domain: the most bytes per second that its memory was seen to give."""


def shared_caches(info: RdtInfo) -> tuple[CacheControl, ...]:
    """The caches that LS and BE share: the last level that can be divided."""
    last = [cache for cache in info.caches if cache.name.startswith("L3")]
    return tuple(last or info.caches)


def why_no_bandwidth(info: RdtInfo, topology: Topology | None) -> str:
    """Why BE's memory bandwidth is left alone; empty when it may be limited.

    In "max" throttle mode hyperthreads of a core share the strictest limit of both. Which CPUs LS runs on changes all
    the time, so that mode is used only where no core has two hyperthreads, or LS would be throttled with BE.
    """
    if info.bandwidth is None:
        return "this mount does not control memory bandwidth"
    if info.bandwidth.per_thread or (topology is not None and not topology.smt):
        return ""
    cores = "cores have hyperthreads" if topology is not None else "whether cores have hyperthreads is not known"
    return f"memory bandwidth is left alone: its limit also slows the hyperthread beside, and {cores}"


def cache_values(info: RdtInfo, percent: float) -> dict[str, dict[int, int]]:
    """Masks of every domain. One in which others leave no valid mask is left out."""
    values: dict[str, dict[int, int]] = {}
    for cache in shared_caches(info):
        count = int(cache.full_mask.bit_count() * percent / 100)
        masks = {domain: low_ways(cache, domain, count) for domain in sorted(cache.domains)}
        values[cache.name] = {domain: mask for domain, mask in masks.items() if mask is not None}
    return values


def bandwidth_values(control: BandwidthControl, percent: float, highest: Highest) -> dict[int, int]:
    """MB values of every domain; in absolute units one that was not measured yet is left out."""
    if control.unit is BandwidthUnit.PERCENT:
        step = control.granularity
        value = max(-(-max(1, control.minimum) // step) * step, int(percent / step) * step)
        return dict.fromkeys(sorted(control.domains), min(control.maximum, value))
    unit, lowest = UNIT_BYTES[control.unit], max(1, control.minimum)
    return {
        domain: min(control.maximum, max(lowest, int(highest[domain] * percent / 100 / unit)))
        for domain in sorted(control.domains)
        if domain in highest
    }


def no_larger(values: Schemata, held: Schemata) -> bool:
    """Whether `values` give nowhere more than `held`: masks by their number of bits. What is not held gives nothing."""
    return all(
        _size(name, value) <= _size(name, held.values.get(name, {}).get(domain, 0))
        for name, domains in values.values.items()
        for domain, value in domains.items()
    )


def _size(name: str, value: int) -> int:
    return value if name == BANDWIDTH else value.bit_count()

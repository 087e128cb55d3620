"""What a node may sell, split over its NUMA zones. Pure; one resource at a time.

A zone has capacity in proportion of the machine, and what is needed there is split in proportion to its size (Katalyst
split it equally, cccc115a, which is wrong where zones differ). Zones never sum to more than the node sells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slacktide.forecast import Amount, Zone


def split(zones: Sequence[Zone], reclaimable: Amount, pinned: Mapping[int, Amount], needed: Amount) -> tuple[Zone, ...]:
    """Zones with their part of `reclaimable`; empty for a node of fewer than two zones.

    zones   id and capacity; a part that is not known stays not known
    pinned  what LS pods that are bound to a zone take there, by zone id; part of `needed`
    needed  what LS and SYSTEM are expected to take on the whole node
    """
    if len(zones) < 2:
        return ()
    cpu = _parts(
        [zone.capacity.cpu_millis for zone in zones],
        reclaimable.cpu_millis,
        _pins(zones, pinned, "cpu_millis"),
        needed.cpu_millis,
    )
    memory = _parts(
        [zone.capacity.memory_bytes for zone in zones],
        reclaimable.memory_bytes,
        _pins(zones, pinned, "memory_bytes"),
        needed.memory_bytes,
    )
    return tuple(
        Zone(id=zone.id, capacity=zone.capacity, reclaimable=Amount(cpu_millis=one, memory_bytes=other))
        for zone, one, other in zip(zones, cpu, memory, strict=True)
    )


def _pins(zones: Sequence[Zone], pinned: Mapping[int, Amount], field: str) -> list[int]:
    return [getattr(pinned.get(zone.id, Amount()), field) or 0 for zone in zones]


def _parts(sizes: list[int | None], reclaimable: int | None, pinned: list[int], needed: int | None) -> list[int | None]:
    known = [size for size in sizes if size is not None]
    if reclaimable is None or needed is None or len(known) < len(sizes) or not sum(known):
        return [None] * len(sizes)
    whole = sum(known)
    loose = max(0, needed - sum(pinned))
    # What is kept on the node for other reasons than need (reserve, cap) is spread like the rest.
    kept = max(0, whole - needed - reclaimable)
    free = [max(0, size - pin - -(-size * (loose + kept) // whole)) for size, pin in zip(known, pinned, strict=True)]
    total = sum(free)
    return [part if total <= reclaimable else part * reclaimable // total for part in free]

"""Values of a class in resctrl: what is valid, what is wide open, what differs, and the text to write. Pure.

A mask must be one run of bits that reaches `min_bits` and misses the bits of exclusive groups: that is right for every
kernel, also for those that would take a mask with holes. Bandwidth is rounded up by the kernel, so what is held is
compared with the rounded value, or a reconcile loop would write for ever. Domains are compared by id, never by position
(koordinator#1777). Source: reference/kernel.md 1.3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from agent.resctrl import BandwidthControl, BandwidthUnit, CacheControl, RdtInfo, Schemata

BANDWIDTH: Final = "MB"

BLOCK_BYTES: Final = 4000
"""One write is one command, and more than a page of 4096 bytes is E2BIG."""


def runs(mask: int) -> tuple[int, ...]:
    """The runs of neighbouring bits in `mask`, lowest first, each as a mask."""
    found = []
    while mask:
        lowest = mask & -mask
        rest = mask & (mask + lowest)
        found.append(mask ^ rest)
        mask = rest
    return tuple(found)


def usable(cache: CacheControl, domain: int) -> int:
    """Bits that a class of ours may have: all but those of exclusive groups."""
    return cache.full_mask & ~cache.exclusive.get(domain, 0)


def widest(cache: CacheControl, domain: int) -> int | None:
    """The longest run that a class may have, the lowest among equals; None where others leave too little."""
    longest = max(runs(usable(cache, domain)), key=int.bit_count, default=0)
    return longest if longest.bit_count() >= max(1, cache.min_bits) else None


def low_ways(cache: CacheControl, domain: int, count: int) -> int | None:
    """A run of `count` bits (at least `min_bits` and 1) from the low end, away from what devices share where it fits.

    Where no run is that long it is the longest one. None where others leave too little for any.
    """
    longest = widest(cache, domain)
    if longest is None:
        return None
    count = max(1, cache.min_bits, count)
    free = usable(cache, domain)
    for room in (free & ~cache.shareable, free):
        for run in runs(room):
            if run.bit_count() >= count:
                lowest = (run & -run).bit_length() - 1
                return ((1 << count) - 1) << lowest
    return longest


def open_values(info: RdtInfo) -> Schemata:
    """The values with which a class is limited in nothing that others leave to it."""
    values: dict[str, dict[int, int]] = {}
    for cache in info.caches:
        masks = {domain: widest(cache, domain) for domain in sorted(cache.domains)}
        values[cache.name] = {domain: mask for domain, mask in masks.items() if mask is not None}
    if info.bandwidth is not None:
        values[BANDWIDTH] = dict.fromkeys(sorted(info.bandwidth.domains), info.bandwidth.maximum)
    return Schemata(values=values)


def completed(wanted: Schemata | None, info: RdtInfo) -> Schemata:
    """`wanted` for every domain that is there now: what it does not name is wide open, what is gone is left out."""
    values = {name: dict(domains) for name, domains in open_values(info).values.items()}
    for name, domains in (wanted.values if wanted else {}).items():
        present = _domains(info, name)
        if present is None:
            values[name] = dict(domains)
        else:
            values.setdefault(name, {}).update({key: value for key, value in domains.items() if key in present})
    return Schemata(values=values)


def problems(schemata: Schemata, info: RdtInfo) -> list[str]:
    """One sentence for each value that the kernel would refuse; none when all is well."""
    caches = {cache.name: cache for cache in info.caches}
    found: list[str] = []
    for name, domains in schemata.values.items():
        if name in caches:
            found += [text for key, mask in domains.items() if (text := _mask_problem(caches[name], key, mask))]
        elif name == BANDWIDTH and info.bandwidth is not None:
            found += [text for key, value in domains.items() if (text := _value_problem(info.bandwidth, key, value))]
        else:
            found.append(f"{name}: this mount does not offer it")
    return found


def as_held(schemata: Schemata, info: RdtInfo) -> Schemata:
    """What the kernel will hold after `schemata` was written: bandwidth in percent goes up to its granularity."""
    control = info.bandwidth
    if control is None or control.unit is not BandwidthUnit.PERCENT or BANDWIDTH not in schemata.values:
        return schemata
    step = max(1, control.granularity)
    rounded = {key: -(-value // step) * step for key, value in schemata.values[BANDWIDTH].items()}
    return Schemata(values={**schemata.values, BANDWIDTH: rounded})


def difference(wanted: Schemata, held: Schemata, info: RdtInfo) -> Schemata:
    """The part of `wanted` that `held` does not have yet; empty `values` when nothing is to be written."""
    expected = as_held(wanted, info)
    values: dict[str, Mapping[int, int]] = {}
    for name, domains in wanted.values.items():
        have = held.values.get(name, {})
        differing = {key: value for key, value in domains.items() if have.get(key) != expected.values[name][key]}
        if differing:
            values[name] = differing
    return Schemata(values=values)


def blocks(schemata: Schemata, limit: int = BLOCK_BYTES) -> Iterator[str]:
    """Texts to write, each with one `os.write`: whole lines, newline at the end, at most `limit` bytes."""
    block = ""
    for line in _lines(schemata, limit):
        if block and len(block) + len(line) > limit:
            yield block
            block = ""
        block += line
    if block:
        yield block


def _lines(schemata: Schemata, limit: int) -> Iterator[str]:
    for name, domains in sorted(schemata.values.items()):
        line = ""
        for key, value in sorted(domains.items()):
            part = f"{key}={value}" if name == BANDWIDTH else f"{key}={value:x}"
            if line and len(name) + len(line) + len(part) + 3 > limit:
                yield f"{name}:{line}\n"
                line = ""
            line = f"{line};{part}" if line else part
        if line:
            yield f"{name}:{line}\n"


def _domains(info: RdtInfo, name: str) -> frozenset[int] | None:
    if name == BANDWIDTH:
        return info.bandwidth.domains if info.bandwidth else None
    return next((cache.domains for cache in info.caches if cache.name == name), None)


def _mask_problem(cache: CacheControl, domain: int, mask: int) -> str:
    where = f"{cache.name}:{domain}={mask:x}"
    if domain not in cache.domains:
        return f"{where}: there is no such domain"
    if mask <= 0 or mask & ~cache.full_mask:
        return f"{where}: outside of 1 to {cache.full_mask:x}"
    if len(runs(mask)) > 1:
        return f"{where}: the bits are not one run"
    if mask.bit_count() < cache.min_bits:
        return f"{where}: fewer than {cache.min_bits} bits"
    if mask & cache.exclusive.get(domain, 0):
        return f"{where}: hits bits {cache.exclusive[domain]:x} of an exclusive group"
    return ""


def _value_problem(control: BandwidthControl, domain: int, value: int) -> str:
    where = f"{BANDWIDTH}:{domain}={value}"
    if domain not in control.domains:
        return f"{where}: there is no such domain"
    if not max(1, control.minimum) <= value <= control.maximum:
        return f"{where}: outside of {max(1, control.minimum)} to {control.maximum}"
    return ""

"""Counters of mon_data, by domain; rates between two looks.

What the hardware has no number for is None with the reason, for that domain alone (cadvisor: one `Unavailable` lost a
whole container's figures). Files and directories that are not known are skipped. A class counts for its monitoring
groups too, so its total falls when one of them goes: with another set of them, as with any counter that fell, a new
baseline begins. Source: reference/kernel.md 1.6.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from agent.host.resctrl import parse
from agent.resctrl import RdtGroupReading
from slacktide.errors import Gone, KernelError
from slacktide.kernel.files import read_text, translate

OCCUPANCY: Final = "llc_occupancy"
TOTAL: Final = "mbm_total_bytes"
LOCAL: Final = "mbm_local_bytes"
_DOMAIN: Final = re.compile(r"mon_L3_([0-9]{1,9})", re.ASCII)

Counts = Mapping[int, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A reading with the monitoring groups that its totals include."""

    reading: RdtGroupReading
    children: frozenset[str] = frozenset()


def read_group(directory: str, features: frozenset[str], at: float) -> RdtGroupReading:
    """Counters of one group that the mount has (`features`). A domain that goes away meanwhile is left out.

    Raises Gone when the group has no mon_data (any more), or KernelError.
    """
    values: dict[str, dict[int, int | None]] = {event: {} for event in (OCCUPANCY, TOTAL, LOCAL) if event in features}
    missing: dict[str, str] = {}
    for domain, path in _domains(os.path.join(directory, "mon_data")):
        for event, found in values.items():
            file = os.path.join(path, event)
            try:
                found[domain], why = parse.event(read_text(file), file)
            except Gone:
                continue
            except KernelError as error:
                found[domain], why = None, str(error)
            if why:
                missing[f"{event} of domain {domain}"] = why
    return RdtGroupReading(
        at=at,
        occupancy_bytes=values.get(OCCUPANCY, {}),
        total_bytes=values.get(TOTAL, {}),
        local_bytes=values.get(LOCAL, {}),
        missing=missing,
    )


def with_rates(before: Sample | None, after: Sample, max_gap_seconds: float) -> Sample:
    """`after` with its rates; None where a counter fell or is missing, and all of them for a gap or other groups."""
    old = before.reading if before is not None and before.children == after.children else None
    elapsed = after.reading.at - old.at if old else 0.0
    now = traffic(after.reading)
    if old is None or not 0 < elapsed <= max_gap_seconds:
        return replace(after, reading=replace(after.reading, rates=dict.fromkeys(now)))
    was = traffic(old)
    rates = {domain: _rate(was.get(domain), value, elapsed) for domain, value in now.items()}
    return replace(after, reading=replace(after.reading, rates=rates))


def traffic(reading: RdtGroupReading) -> Counts:
    """The counter that stands for memory traffic: the total, or the local part where there is no other."""
    return reading.total_bytes or reading.local_bytes


def summed(counts: Mapping[int, int | None] | Mapping[int, float | None]) -> float | None:
    """Sum over all domains; None when any of them is unknown, or there is none."""
    known = [value for value in counts.values() if value is not None]
    return sum(known) if known and len(known) == len(counts) else None


def less(whole: RdtGroupReading, part: RdtGroupReading) -> RdtGroupReading:
    """`whole` without a monitoring group of it. The two are read one after the other: what would be below 0 is 0."""
    return replace(
        whole,
        occupancy_bytes=_minus(whole.occupancy_bytes, part.occupancy_bytes),
        total_bytes=_minus(whole.total_bytes, part.total_bytes),
        local_bytes=_minus(whole.local_bytes, part.local_bytes),
        rates=_minus_rates(whole.rates, part.rates),
    )


def _minus(whole: Counts, part: Counts) -> dict[int, int | None]:
    return {
        domain: None if value is None or (other := part.get(domain)) is None else max(0, value - other)
        for domain, value in whole.items()
    }


def _minus_rates(whole: Mapping[int, float | None], part: Mapping[int, float | None]) -> dict[int, float | None]:
    return {
        domain: None if value is None or (other := part.get(domain)) is None else max(0.0, value - other)
        for domain, value in whole.items()
    }


def _rate(before: int | None, after: int | None, elapsed: float) -> float | None:
    if before is None or after is None or after < before:
        return None
    return (after - before) / elapsed


def _domains(directory: str) -> Iterator[tuple[int, str]]:
    try:
        names = sorted(os.listdir(directory))
    except OSError as error:
        raise translate(directory, error) from error
    for name in names:
        found = _DOMAIN.fullmatch(name)
        if found is not None:
            yield int(found[1]), os.path.join(directory, name)

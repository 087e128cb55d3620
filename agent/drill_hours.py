"""Hours in which drills may start: `Mon-Fri 09:00-17:00` and the like, in a named time zone. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

_DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY_MINUTES: Final = 24 * 60
_TIME: Final = re.compile(r"([01]?[0-9]|2[0-4]):([0-5][0-9])-([01]?[0-9]|2[0-4]):([0-5][0-9])", re.ASCII)


@dataclass(frozen=True, slots=True)
class Span:
    """Minutes of some days: from `begin`, before `end`. One that ends before it begins goes on into the next day."""

    days: frozenset[int]
    begin: int
    end: int

    def holds(self, day: int, minute: int) -> bool:
        """Whether this minute of this weekday (Monday is 0) is within."""
        if self.begin < self.end:
            return day in self.days and self.begin <= minute < self.end
        return (day in self.days and minute >= self.begin) or ((day - 1) % 7 in self.days and minute < self.end)


def parse(text: str) -> Span:
    """`[DAYS] HH:MM-HH:MM`, where DAYS are names, ranges of them, and commas. Raises ValueError."""
    *days, times = text.split() or [""]
    found = _TIME.fullmatch(times)
    if found is None or len(days) > 1:
        raise ValueError(f"{text!r} is no span of hours; write it like 'Mon-Fri 09:00-17:00'")
    hours = [int(part) for part in found.groups()]
    begin, end = hours[0] * 60 + hours[1], hours[2] * 60 + hours[3]
    if max(begin, end) > _DAY_MINUTES or begin == end:
        raise ValueError(f"{text!r} is no span of hours: from {times.partition('-')[0]} to {times.partition('-')[2]}")
    return Span(_days(days[0], text) if days else frozenset(range(7)), begin, end)


def _days(words: str, text: str) -> frozenset[int]:
    found: set[int] = set()
    for word in words.lower().split(","):
        first, _, last = word.partition("-")
        try:
            begin, end = _DAYS.index(first), _DAYS.index(last or first)
        except ValueError:
            raise ValueError(f"{text!r}: {word!r} are no days; known: {', '.join(_DAYS)}") from None
        found.update((begin + step) % 7 for step in range((end - begin) % 7 + 1))
    return frozenset(found)


def zone(name: str) -> tzinfo:
    """A time zone by its name. Raises ValueError for one that this machine does not know."""
    if name == "UTC":
        # Also where there is no database of time zones.
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(f"time zone {name!r} is not known on this machine") from error


def why_not_now(hours: Sequence[str], zone_name: str, wall: float) -> str:
    """Why no drill may start at `wall` (seconds since the epoch); empty when one may."""
    if not hours:
        return ""
    now = datetime.fromtimestamp(wall, zone(zone_name))
    if any(parse(text).holds(now.weekday(), now.hour * 60 + now.minute) for text in hours):
        return ""
    return f"it is {now:%a %H:%M} {zone_name}, and drills may start {' or '.join(hours)} only (drill.hours)"

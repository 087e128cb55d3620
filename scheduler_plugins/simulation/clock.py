"""Simulated time: a clock that jumps, and what is to happen at which moment."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable


class Clock:
    """Seconds since the start of the simulation. `started_at` is what the wall shows then, seconds since the epoch."""

    def __init__(self, started_at: float) -> None:
        self._started_at = started_at
        self.now = 0.0

    def monotonic(self) -> float:
        """Seconds since the start."""
        return self.now

    def wall(self) -> float:
        """Seconds since the epoch."""
        return self._started_at + self.now

    def to(self, moment: float) -> None:
        """Move on to `moment`; never back."""
        self.now = max(self.now, moment)


class Timeline:
    """What will happen. Of two things at one moment the one that was planned first happens first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._serial = itertools.count()
        self._planned: list[tuple[float, int, bool, Callable[[], object]]] = []
        self._foreground = 0

    def at(self, moment: float, action: Callable[[], object], *, background: bool = False) -> None:
        """Plan `action`. What is in the background goes on for ever, and is no reason to go on."""
        heapq.heappush(self._planned, (moment, next(self._serial), background, action))
        self._foreground += not background

    def happen(self) -> None:
        """Do everything whose moment has come."""
        while self._planned and self._planned[0][0] <= self._clock.now:
            _, _, background, action = heapq.heappop(self._planned)
            self._foreground -= not background
            action()

    def next(self) -> float | None:
        """When the next thing happens; None if nothing does."""
        return self._planned[0][0] if self._planned else None

    @property
    def lasts(self) -> bool:
        """Whether anything but the background is still to come."""
        return self._foreground > 0

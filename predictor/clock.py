"""Time, injected: monotonic for durations, wall time for labels that others read."""

from __future__ import annotations

import time
from typing import NamedTuple, Protocol


class Instant(NamedTuple):
    """One moment on both clocks, in seconds; `wall` counts from the epoch."""

    monotonic: float
    wall: float


class Clock(Protocol):
    """Where the time comes from."""

    def now(self) -> Instant:
        """This moment."""
        ...


class SystemClock:
    """The clocks of this machine."""

    def now(self) -> Instant:
        """This moment."""
        return Instant(time.monotonic(), time.time())

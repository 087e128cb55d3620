"""What ingest knows of each node that reports: how far its clock is off, and how much it may send. No I/O, no clock."""

from __future__ import annotations

import collections
from typing import Final

CORRECTED_MILLIS: Final = 3_000
"""A clock that is off by less than this is left alone: delivery takes its time as well."""

STEP_MILLIS: Final = 2_000
"""Corrections come in whole steps of this, so that a sample that is sent again is placed where it was before."""

TWINS_SECONDS: Final = 600.0
"""Two machines of one name are told so often."""

_REMEMBERED: Final = 8
_JUMP_MILLIS: Final = 60_000
_AGREE_MILLIS: Final = 5_000


class ClockSkew:
    """How far a node's clock is ahead of ours, from the sending times of its messages.

    A message that was delayed makes the clock look behind, never ahead, so the largest of the last few differences
    is the nearest to the truth. A clock that was set is believed once two messages agree.
    """

    __slots__ = ("_seen", "correction_millis", "millis")

    def __init__(self) -> None:
        self._seen: collections.deque[int] = collections.deque(maxlen=_REMEMBERED)
        self.correction_millis = 0
        """To be taken off the node's times; whole steps."""
        self.millis = 0
        """The estimate; positive when the node's clock is ahead."""

    def measure(self, ahead_millis: int) -> None:
        """Take one difference: sending time by the node's clock, less receiving time by ours."""
        seen = self._seen
        if seen and ahead_millis < self.millis - _JUMP_MILLIS and abs(seen[-1] - ahead_millis) < _AGREE_MILLIS:
            before = seen[-1]
            seen.clear()
            seen.append(before)
        seen.append(ahead_millis)
        self.millis = estimate = max(seen)
        if -_JUMP_MILLIS < estimate < -CORRECTED_MILLIS and not self._steady(estimate):
            # After a restart, and while much waits, all messages are late, each by another time: that is no clock to
            # move times by, and times that move make what is sent again look new.
            return
        if abs(estimate) <= CORRECTED_MILLIS:
            self.correction_millis = 0
        elif abs(estimate - self.correction_millis) > STEP_MILLIS:
            self.correction_millis = round(estimate / STEP_MILLIS) * STEP_MILLIS

    def _steady(self, estimate: int) -> bool:
        """Whether all that is remembered says nearly the same."""
        return len(self._seen) == _REMEMBERED and estimate - min(self._seen) <= _AGREE_MILLIS


class Twins:
    """Finds out machines that report under one name: a boot that another has followed comes back only where both run.

    Ask about samples that are fresh: what an earlier boot left in its spool comes after those of the next.
    """

    __slots__ = ("_told_at", "boots")

    def __init__(self) -> None:
        self.boots: tuple[str, ...] = ()
        """Boot ids of the two that spoke last, the newer first."""
        self._told_at: float | None = None

    def found(self, boot_id: str, now: float) -> bool:
        """Whether it is to be said now, as long as it goes on every ten minutes. `now` are monotonic seconds."""
        if self.boots[:1] == (boot_id,):
            return False
        back = boot_id in self.boots
        self.boots = (boot_id, *self.boots[:1])
        if not back or (self._told_at is not None and now - self._told_at < TWINS_SECONDS):
            return False
        self._told_at = now
        return True


class Bucket:
    """A token bucket that goes into debt: nothing is ever dropped, whoever took too much has to wait."""

    __slots__ = ("_at", "_tokens")

    def __init__(self, burst: float, now: float) -> None:
        self._tokens = burst
        self._at = now

    def take(self, count: int, rate: float, burst: float, now: float) -> float:
        """Take `count` at monotonic time `now`; seconds to wait before the next may come, 0 mostly."""
        self._tokens = min(burst, self._tokens + (now - self._at) * rate) - count
        self._at = now
        return max(0.0, -self._tokens / rate)

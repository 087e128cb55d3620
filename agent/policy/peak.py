"""The highest of the last seconds' values, a sliding maximum. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Peak:
    """Values that may still become the maximum, as (monotonic seconds, value): falling, oldest first."""

    marks: tuple[tuple[float, int], ...] = ()

    @property
    def value(self) -> int:
        """The maximum; 0 when nothing was seen."""
        return self.marks[0][1] if self.marks else 0

    def seen(self, at: float, value: int | None, window_seconds: float) -> Peak:
        """With one more value (None: not known, only time passes); what is older than the window is forgotten."""
        kept = [mark for mark in self.marks if at - mark[0] <= window_seconds]
        if value is None:
            return Peak(tuple(kept))
        while kept and kept[-1][1] <= value:
            kept.pop()
        return Peak((*kept, (at, value)))

"""The last changes of the ladder, rung by rung, so that `explain` can say what happened and when. In memory, bounded.

A change is seen at the turn after it, and dated by the rung's own clock. Several levels of one turn are one change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from agent.policy.rung import RungStatus
from slacktide.explaining import RungChange

KEPT: Final = 30
"""Changes of each rung, so that one that moves often does not push out the others'."""


class Changes:
    """Fed by the control thread, read by any: what is read is replaced as a whole."""

    def __init__(self, since: float) -> None:
        self.since = since
        self._levels: dict[str, int] = {}
        self._kept: Mapping[str, tuple[RungChange, ...]] = {}

    def look(self, rungs: Mapping[str, RungStatus], at: float, wall: float) -> None:
        """The ladder after a turn, at `at` by the monotonic clock and `wall` by that of the day."""
        for name, rung in rungs.items():
            before = self._levels.get(name, 0)
            if rung.level == before:
                continue
            self._levels[name] = rung.level
            age = 0.0 if rung.since is None else max(0.0, at - rung.since)
            change = RungChange(
                at=wall - age,
                name=name,
                before=before,
                after=rung.level,
                top=rung.top,
                reason=rung.reason or (f"open: {rung.opens_when}" if rung.level == 0 else ""),
            )
            self._kept = {**self._kept, name: (*self._kept.get(name, ()), change)[-KEPT:]}

    def newest(self, count: int = KEPT) -> tuple[RungChange, ...]:
        """The last changes of all rungs, newest first."""
        every = (change for changes in self._kept.values() for change in changes)
        return tuple(sorted(every, key=lambda change: change.at, reverse=True)[:count])

"""Ledger: the records of a simulation, of which the last cycle of every pod is kept."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from scheduler_plugins.records import Cycle, Records


class Ledger(Records):
    """Keeps the last `kept` cycles that rated nodes, and of each pod the last one without its scores."""

    def __init__(self, wall_seconds: Callable[[], float], kept: int) -> None:
        super().__init__(wall_seconds, 0)
        self._rated: deque[Cycle] = deque(maxlen=kept)
        self._by_pod: dict[str, Cycle] = {}
        self.attempts = 0

    def add(self, cycle: Cycle) -> None:
        """A cycle ended."""
        super().add(cycle)
        self.attempts += 1
        if cycle.scores is not None:
            self._rated.append(cycle)
        self._by_pod[cycle.uid] = cycle if cycle.scores is None else dataclasses.replace(cycle, scores=None)

    def rated(self) -> Sequence[Cycle]:
        """The last cycles that rated nodes, the newest first."""
        return tuple(reversed(self._rated))

    @property
    def by_pod(self) -> Mapping[str, Cycle]:
        """The last cycle of each pod by uid."""
        return self._by_pod

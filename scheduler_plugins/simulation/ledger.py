"""Ledger: the records of a simulation, of which the last cycle of every pod is kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from scheduler_plugins.records import Cycle, Records


class Ledger(Records):
    """Keeps `kept` cycles whole, and of each pod the last one without its scores."""

    def __init__(self, wall_seconds: Callable[[], float], kept: int) -> None:
        super().__init__(wall_seconds, kept)
        self._by_pod: dict[str, Cycle] = {}
        self.attempts = 0

    def add(self, cycle: Cycle) -> None:
        """A cycle ended."""
        super().add(cycle)
        self.attempts += 1
        self._by_pod[cycle.uid] = cycle if cycle.scores is None else dataclasses.replace(cycle, scores=None)

    @property
    def by_pod(self) -> Mapping[str, Cycle]:
        """The last cycle of each pod by uid."""
        return self._by_pod

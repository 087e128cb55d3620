"""What a Score plugin says in words about a node that it could not rate as usual."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Final

from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.snapshot import Indices, Snapshot
from scheduler_plugins.framework.state import CycleState

MOST_REASONS: Final = 20
"""A plugin names no more nodes than this: the words are for people."""


class ScoreReasons(ABC):
    """A Score plugin that gives a node no score of its own where something about it is missing or malformed.

    Such a node gets 0 and stays in the running; the cycle goes on. The reason goes into the score table.
    """

    @abstractmethod
    def score_reasons(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> Mapping[str, str]:
        """Node name -> why its score is 0, for at most MOST_REASONS of `rows`; empty where all is well.

        Asked after Score, of the same snapshot; also about nodes that an earlier cycle rated, which is reused.
        """

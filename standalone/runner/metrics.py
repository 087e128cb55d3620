"""Prometheus metrics of the node runner."""

from __future__ import annotations

from collections import Counter as Tally

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from standalone.runner.attempts import Attempt, Phase


class Metrics:
    """All metrics of the runner, on an injected registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.turns = Histogram("slacktide_runner_turn_seconds", "Length of one turn of the loop.", registry=registry)
        self.turn_errors = Counter(
            "slacktide_runner_turn_errors", "Turns that ended in an unexpected error.", registry=registry
        )
        self.starts = Counter(
            "slacktide_runner_starts", "Containers started, by result.", ["result"], registry=registry
        )
        self.exits = Counter("slacktide_runner_exits", "Containers ended, by reason.", ["reason"], registry=registry)
        self.kills = Counter("slacktide_runner_kills", "Kills of whole containers.", registry=registry)
        self.rejections = Counter(
            "slacktide_runner_rejections", "Pods refused, by reason.", ["reason"], registry=registry
        )
        self.corrupt = Counter("slacktide_runner_corrupt_records", "Records set aside.", registry=registry)
        self.lost_lines = Counter(
            "slacktide_runner_lost_log_lines", "Log lines that could not be written.", registry=registry
        )
        self._containers = Gauge(
            "slacktide_runner_containers", "Container attempts on record, by phase.", ["phase"], registry=registry
        )

    def count(self, attempts: tuple[Attempt, ...]) -> None:
        """How many attempts are in each phase now."""
        tally = Tally(attempt.phase for attempt in attempts)
        for phase in Phase:
            self._containers.labels(phase.value).set(tally[phase])

"""Prometheus metrics of drills: what ran, how it ended, and its times against the targets."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from agent.drill import Drill, Phase

STEPS: Final = (
    *("detected", "throttled", "evicted", "silent", "relaxed", "cut", "spooled", "ageing", "closed"),
    *("lowered", "retaken", "connected", "delivered", "fresh", "recovered"),
)
"""Steps with a series each; rungs have none."""


def outcome_of(drill: Drill) -> str:
    """passed, missed (recovered, but late somewhere), aborted or failed."""
    if drill.phase is Phase.RECOVERED:
        return "passed" if drill.passed else "missed"
    return drill.phase.value


class DrillMetrics:
    """Set by what the board says; `news` may be called on any thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._active = Gauge(
            "slacktide_drill_active", "1 while a drill of this kind runs.", ["kind"], registry=registry
        )
        self._pressing = Gauge(
            "slacktide_drill_raised",
            "1 while such a drill makes its trouble.",
            ["kind"],
            registry=registry,
        )
        self._ended = Counter(
            "slacktide_drill_ended",
            "Drills that ended: passed, missed (recovered, a target missed), aborted, failed.",
            ["kind", "outcome"],
            registry=registry,
        )
        self._victims = Counter("slacktide_drill_victims", "Pods that drills evicted.", ["kind"], registry=registry)
        self._steps = Gauge(
            "slacktide_drill_step_seconds",
            "From the raise to a step of the last drill of this kind; no series where it did not come.",
            ["kind", "step"],
            registry=registry,
        )
        self._targets = Gauge(
            "slacktide_drill_target_seconds",
            "Time that the last drill of this kind had for a step, from the raise, or for what follows it from the end "
            "of the trouble.",
            ["kind", "step"],
            registry=registry,
        )
        self._pressure = Gauge(
            "slacktide_drill_ls_pressure_max",
            "Highest LS pressure that was measured in the last drill of this kind.",
            ["kind"],
            registry=registry,
        )
        self._last = Gauge(
            "slacktide_drill_last_passed_timestamp_seconds",
            "When the last drill of this kind that passed was started.",
            ["kind"],
            registry=registry,
        )

    def news(self, before: Drill | None, after: Drill) -> None:
        """A drill began, went on or ended."""
        kind = after.order.kind.value
        self._active.labels(kind).set(0 if after.phase.ended else 1)
        self._pressing.labels(kind).set(1 if after.pressing else 0)
        if before is None:
            self._began(after, kind)
            return
        for moment in after.timeline[len(before.timeline) :]:
            took = after.since_raised(moment.at)
            if moment.step in STEPS and after.at(moment.step) == moment.at and took is not None:
                self._steps.labels(kind, moment.step).set(took)
        evicted = sum(one.evicted for one in after.victims) - sum(one.evicted for one in before.victims)
        if evicted > 0:
            self._victims.labels(kind).inc(evicted)
        if after.phase.ended:
            self._over(after, kind)

    def _began(self, drill: Drill, kind: str) -> None:
        """Forget the times of the one before."""
        for step in STEPS:
            for gauge in (self._steps, self._targets):
                _forget(gauge, kind, step)
        _forget(self._pressure, kind)
        for target in drill.order.targets:
            self._targets.labels(kind, target.step).set(target.within_seconds)

    def _over(self, drill: Drill, kind: str) -> None:
        self._ended.labels(kind, outcome_of(drill)).inc()
        if drill.pressure_max is not None:
            self._pressure.labels(kind).set(drill.pressure_max)
        if drill.passed:
            self._last.labels(kind).set(drill.order.started_wall)


def _forget(gauge: Gauge, *labels: str) -> None:
    try:
        gauge.remove(*labels)
    except KeyError:
        return

"""Prometheus metrics of the agent, set once a turn from values; unknown figures are left out, never 0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from agent.act import eviction_log, gpu_publisher
from agent.act import resctrl as rdt
from agent.act.ballast import BallastView
from agent.capabilities import Capabilities
from agent.given import Given
from agent.loop import Turn
from slacktide.tier import Tier

_TURN_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
_ARRIVAL_BUCKETS: Final = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_UNKNOWN: Final = float("nan")

COUNTED: Final = {
    "turns": "Turns of the control loop.",
    "beats": "Beats of the control loop.",
    "cuts": "Cuts of BE between turns.",
    "late_beats": "Beats that began more than a period late.",
    "late_turns": "Turns that began more than a period late.",
    "errors": "Turns or beats that failed.",
    "writes": "Writes to kernel knobs.",
    "drift": "Knobs of ours that someone else had changed.",
    "fights": "Knobs that someone else changed in two rounds in a row.",
    "refused": "Reads or writes that the kernel refused.",
    "mismatch": "Writes that read back as another value.",
    "vanished": "Pods that went away while they were looked at.",
    "journal_errors": "Journal writes that the disk refused.",
    "spread_new": "BE threads seen for the first time.",
    "spread_moves": "Pinned BE threads moved to another CPU.",
    "spread_foreign": "Pinned BE threads whose CPU affinity someone else had changed.",
    "spread_refused": "CPU affinities that the kernel refused.",
    "spread_vanished": "BE threads that ended before their CPU affinity was set.",
    "watchdog": "Times the watchdog lifted hard limits of BE.",
    "watchdog_restarts": "Times the watchdog died and was started anew.",
    "spool_drops": "Samples lost to the bound of the spool or a full disk.",
    "samples_sent": "Samples sent to the predictor, repeats included.",
    "samples_acknowledged": "Samples the predictor has made durable.",
    "samples_refused": "Samples the predictor refused for good.",
    "stream_failures": "Streams to the predictor that ended in an error.",
    "arrivals": "Pods and containers that were judged on arrival.",
    "arrivals_unknown": "Newcomers that the API did not have yet.",
    "source_reads": "Reads of slow collectors that ended well.",
    "source_failures": "Reads of slow collectors that failed.",
    "source_hangs": "Reads of slow collectors that did not end in time.",
    "core_shared": "Threads that got the core scheduling cookie of their tier.",
    "core_foreign": "Threads with a cookie of somebody else, which were left alone.",
    "core_failed": "Threads whose cookie the kernel refused.",
    "audit_lost": "Lines of the audit file that the disk refused.",
    "drills": "Drills that were started.",
    "drills_aborted": "Drills that were ended early, by people or by the dead-man timer.",
    "drills_refused": "Drills that were refused for how the node stood.",
    "drills_failed": "Drills after which BE did not get its room back in time.",
    **eviction_log.COUNTED,
    **rdt.COUNTED,
    **gpu_publisher.COUNTED,
}
"""Counters and what they count."""


class AgentMetrics:
    """All metrics of one agent, in `registry`."""

    def __init__(self, registry: CollectorRegistry, capabilities: Capabilities) -> None:
        self._turn_seconds = Histogram(
            "slacktide_agent_turn_seconds", "Time one turn took.", buckets=_TURN_BUCKETS, registry=registry
        )
        self._arrival_seconds = Histogram(
            "slacktide_agent_arrival_seconds",
            "Time from when a new container was seen until its limits were written.",
            buckets=_ARRIVAL_BUCKETS,
            registry=registry,
        )
        self._rungs = Gauge(
            "slacktide_agent_rung_level", "Level of each rung of the ladder; 0 is open.", ["rung"], registry=registry
        )
        self._closed = Gauge(
            "slacktide_agent_closed", "1 while nothing more may be sold on the node.", registry=registry
        )
        self._frozen = Gauge("slacktide_agent_frozen_pods", "Pods that the agent froze.", registry=registry)
        self._ballast = {
            name: Gauge(f"slacktide_agent_ballast_{name}", text, registry=registry)
            for name, text in (
                ("cpus", "CPUs that carry a ballast thread now."),
                ("burnt_seconds", "CPU time that ballast has used since start; NaN is unknown."),
                ("resident_bytes", "Memory of the ballast processes; NaN is unknown."),
            )
        }
        self._tier_cpu = Gauge("slacktide_agent_tier_cpu_millis", "CPU use by tier.", ["tier"], registry=registry)
        self._tier_memory = Gauge(
            "slacktide_agent_tier_memory_bytes", "Working set by tier.", ["tier"], registry=registry
        )
        self._pods = Gauge("slacktide_agent_pods", "Pods on this node by tier.", ["tier"], registry=registry)
        self._unmatched = Gauge(
            "slacktide_agent_unmatched_cgroups", "Pod cgroups that no pod of the API claims.", registry=registry
        )
        self._quota = Gauge(
            "slacktide_agent_be_quota_millis", "CPU limit on BE in force; NaN is no limit.", registry=registry
        )
        self._pressure = Gauge(
            "slacktide_agent_ls_pressure", "LS pressure; NaN is unknown.", ["kind"], registry=registry
        )
        self._short = Gauge(
            "slacktide_agent_ls_short", "1 while LS is short of CPU because of BE; NaN is unknown.", registry=registry
        )
        self._steal = Gauge(
            "slacktide_agent_steal_ratio", "CPU time that the hypervisor took; NaN is unknown.", registry=registry
        )
        self._spool = Gauge("slacktide_agent_spool_bytes", "Samples that wait on disk.", registry=registry)
        self._connected = Gauge(
            "slacktide_agent_predictor_connected", "1 while the predictor answers.", registry=registry
        )
        self._counters = {
            name: Counter(f"slacktide_agent_{name}", text, registry=registry) for name, text in COUNTED.items()
        }
        self._given = Given(registry)
        self._last: dict[str, int] = {}
        skipped = Gauge(
            "slacktide_agent_skipped_info", "What this node lacks, and why.", ["what", "reason"], registry=registry
        )
        for what, reason in capabilities.skipped.items():
            skipped.labels(what, reason).set(1)

    def arrival(self, seconds: float) -> None:
        """After each newcomer that got its limits."""
        self._arrival_seconds.observe(seconds)

    def ballast(self, view: BallastView) -> None:
        """After each turn, where ballast was asked for."""
        self._ballast["cpus"].set(len(view.running))
        self._ballast["burnt_seconds"].set(_UNKNOWN if view.cpu_seconds is None else view.cpu_seconds)
        self._ballast["resident_bytes"].set(_or_nan(view.resident_bytes))

    def turn(self, turn: Turn, counters: Mapping[str, int], spool_bytes: int, *, connected: bool) -> None:
        """After each turn; `counters` are totals since start."""
        snapshot = turn.snapshot
        self._turn_seconds.observe(turn.seconds)
        for tier in Tier:
            usage = snapshot.of(tier)
            self._tier_cpu.labels(tier.value).set(_or_nan(usage.cpu_millis))
            self._tier_memory.labels(tier.value).set(_or_nan(usage.memory_bytes))
        for tier in (Tier.LS, Tier.BE):
            self._pods.labels(tier.value).set(len(snapshot.pods_of(tier)))
        self._given.add(snapshot.pods, snapshot.window_seconds)
        self._unmatched.set(snapshot.unmatched)
        self._quota.set(_or_nan(turn.plan.be_limit_millis))
        self._pressure.clear()
        if snapshot.pressure is not None:
            self._pressure.labels(snapshot.pressure.kind).set(snapshot.pressure.value)
        short = snapshot.shortage.short if snapshot.shortage is not None else None
        self._short.set(_or_nan(short))
        for name, rung in turn.plan.rungs.items():
            self._rungs.labels(name).set(rung.level)
        self._closed.set(1 if turn.plan.closed else 0)
        self._frozen.set(len(snapshot.evictor.frozen) if snapshot.evictor is not None else 0)
        self._steal.set(_UNKNOWN if snapshot.steal_ratio is None else snapshot.steal_ratio)
        self._spool.set(spool_bytes)
        self._connected.set(1 if connected else 0)
        for name, total in counters.items():
            metric = self._counters.get(name)
            if metric is not None:
                metric.inc(max(0, total - self._last.get(name, 0)))
                self._last[name] = total


def _or_nan(value: int | None) -> float:
    return _UNKNOWN if value is None else float(value)

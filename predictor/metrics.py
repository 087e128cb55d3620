"""What the predictor counts. All names begin with slacktide_predictor_."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from predictor.node_metrics import MetricsSettings, NodeMetrics, Value

_LATENCY_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_LAG_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)
_RESOURCE = ("resource",)
_MODEL = ("resource", "model")


class Metrics:
    """All metrics of one predictor, in one registry."""

    def __init__(self, registry: CollectorRegistry, nodes_max: int = MetricsSettings().nodes_max) -> None:
        """`nodes_max` nodes have metrics of their own."""

        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(f"slacktide_predictor_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
            return Gauge(f"slacktide_predictor_{name}", text, labels, registry=registry)

        def latency(name: str, text: str) -> Histogram:
            return Histogram(f"slacktide_predictor_{name}", text, buckets=_LATENCY_BUCKETS, registry=registry)

        self.samples = counter("samples", "Samples that became durable")
        self.duplicates = counter("duplicate_samples", "Samples that were durable already")
        self.refused = counter("refused_samples", "Samples refused for good", ("reason",))
        self.streams = gauge("streams", "Open usage streams")
        self.refused_calls = counter("refused_calls", "Calls and streams that were not let in, or ended", ("kind",))
        self.waiting = gauge("waiting_samples", "Samples that wait for their durable write")
        self.ack_seconds = latency("ack_seconds", "Time from receiving a sample to its acknowledgement")
        self.commit_seconds = latency("commit_seconds", "Time of one durable write")
        self.commit_failures = counter("commit_failures", "Durable writes that failed; their samples are sent again")
        self.history_rows = gauge("history_rows", "Rows in the history", ("table",))
        self.history_bytes = gauge("history_bytes", "Bytes of the history on disk")
        self.history_days_dropped = counter("history_days_dropped", "Days of history removed early for lack of room")
        self.history_usable = gauge("history_usable", "1 while samples become durable")
        self.pass_seconds = latency("pass_seconds", "Time of one forecast pass over all nodes")
        self.leader = gauge("leader", "1 while this replica publishes")
        self.publications = counter("publications", "Patches of a node by what made them due", ("cause",))
        self.publish_failures = counter("publish_failures", "Patches of a node that failed")
        self.skipped_pods = counter("skipped_pods", "Pods whose requests could not be read")
        self.publish_lag = Histogram(
            "slacktide_predictor_publish_lag_seconds",
            "Age of the newest sample of a node when a patch that changes its numbers is through",
            ("cause",),
            buckets=_LAG_BUCKETS,
            registry=registry,
        )
        self.waiting_writes = gauge("waiting_writes", "Patches that were due and did not go out in the last pass")
        self.foreign_changes = counter("foreign_changes", "Changes of published amounts by somebody else")
        self.conflicts = gauge("conflicting_nodes", "Nodes on which publishing stopped because somebody else does too")
        self.step_seconds = latency("step_seconds", "Time of one forecast of all peaks of one resource")
        self.step_failures = counter("step_failures", "Forecasts of all peaks that failed", ("resource",))
        self.forecast_age = gauge("forecast_age_seconds", "Age of the newest sample slot that the peaks rest on")
        self.paths = gauge("peaks", "Nodes by what made their peak", ("resource", "path", "model"))
        self.widened = gauge("widened_peaks", "Nodes whose peak is widened beyond the calibration", ("resource",))
        self.asked_risk = gauge("asked_risk_ratio", "Share of peaks that may rise above what was published", _RESOURCE)
        self.outcomes = counter("outcomes", "Published peaks whose outcome is known, one a node and slot", _RESOURCE)
        self.violations = counter("violations", "Those of them that the use rose above", _RESOURCE)
        self.model_violation = gauge("model_violation_ratio", "Measured share of peaks above the answer", _MODEL)
        self.model_reserve = gauge(
            "model_reserve_ratio", "Mean calibrated answer, share of the highest use of 7 days", _MODEL
        )
        self.model_decisions = gauge("model_decisions", "Decisions that the measured figures rest on", _MODEL)
        self.model_shift = gauge("model_shift", "Calibration in force, share of the highest use of 7 days", _MODEL)
        self.champion = gauge("model_champion", "1 for the model whose answers count", _MODEL)
        self.nodes = NodeMetrics(registry, nodes_max)
        """What is told of single nodes."""
        self._add_nodes()

    def _add_nodes(self) -> None:
        nodes = self.nodes

        def add(name: str, text: str, labels: tuple[str, ...], read: Callable[[], Iterable[Value]]) -> None:
            nodes.add(f"slacktide_predictor_{name}", text, labels, read)

        node, resource = ("node",), ("node", "resource")
        add("clock_skew_seconds", "How far the clock of a node is ahead", node, nodes.skews)
        add("sample_age_seconds", "Age of the newest sample", node, nodes.ages)
        add("reclaimable", "Computed amount that may be sold", resource, lambda: nodes.amounts("reclaimable"))
        add("peak", "Expected highest LS and SYSTEM use", resource, lambda: nodes.amounts("peak"))
        add("published", "Amount in the node status", resource, lambda: nodes.amounts("published"))
        add("sold", "Batch requests of the BE pods on the node", resource, lambda: nodes.amounts("sold"))
        add("closed", "1 while nothing more is sold on the node", node, nodes.closed)
        fleet = "Sum over all nodes that report: capacity, requested by LS, peak, reclaimable, published, sold"
        add("fleet_cpu_millis", fleet, ("term",), lambda: nodes.fleet("cpu_millis"))
        add("fleet_memory_bytes", fleet, ("term",), lambda: nodes.fleet("memory_bytes"))
        add("closed_nodes", "Nodes on which nothing more is sold", (), nodes.closed_count)
        add("untold_nodes", "Nodes that the metrics by node leave out", (), nodes.untold)

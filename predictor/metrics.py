"""What the predictor counts. All names begin with slacktide_predictor_."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_LATENCY_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_LAG_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)
_MODEL = ("resource", "model")


class Metrics:
    """All metrics of one predictor, in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
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
        self.model_violation = gauge("model_violation_ratio", "Measured share of peaks above the answer", _MODEL)
        self.model_reserve = gauge(
            "model_reserve_ratio", "Mean calibrated answer, share of the highest use of 7 days", _MODEL
        )
        self.model_decisions = gauge("model_decisions", "Decisions that the measured figures rest on", _MODEL)
        self.model_shift = gauge("model_shift", "Calibration in force, share of the highest use of 7 days", _MODEL)
        self.champion = gauge("model_champion", "1 for the model whose answers count", _MODEL)
        self.clock_skew = gauge("clock_skew_seconds", "How far the clock of a node is ahead", ("node",))
        self.sample_age = gauge("sample_age_seconds", "Age of the newest sample", ("node",))
        self.reclaimable = gauge("reclaimable", "Computed amount that may be sold", ("node", "resource"))
        self.peak = gauge("peak", "Expected highest LS and SYSTEM use", ("node", "resource"))
        self.published = gauge("published", "Amount in the node status", ("node", "resource"))
        self.closed = gauge("closed", "1 while nothing more is sold on the node", ("node",))

        self._told: dict[tuple[str, str], tuple[int | None, ...]] = {}

    def forget_node(self, node: str) -> None:
        """Drop the series of a node that is gone."""
        self._told = {key: values for key, values in self._told.items() if key[0] != node}
        for per_node in (self.clock_skew, self.sample_age, self.closed):
            _remove(per_node, node)
        for per_resource in (self.reclaimable, self.published, self.peak):
            for resource in ("cpu", "memory"):
                _remove(per_resource, node, resource)

    def tell_node(self, node: str, resource: str, values: tuple[int | None, int | None, int | None]) -> None:
        """Set what is reclaimable, published and expected on a node; one that is not known has no series, never 0."""
        key = (node, resource)
        before = self._told.get(key)
        if before == values:
            return
        self._told[key] = values
        for metric, value in zip((self.reclaimable, self.published, self.peak), values, strict=True):
            if value is None:
                _remove(metric, node, resource)
            else:
                metric.labels(node, resource).set(value)


def _remove(metric: Gauge, *labels: str) -> None:
    try:
        metric.remove(*labels)
    except KeyError:
        # Never set, or removed before: nothing to drop.
        return
